"""transformers itself is the oracle: over a grid of shapes the same weights give the same numbers there and
here, forward and backward, and come back the same.

S = sequences, L = padded length.
"""

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor

from albert.checkpoints import load_model, save_pretrained
from albert.checkpoints.names import Naming
from albert.model import Batch, PretrainingModel, pack

VOCABULARY, POSITIONS, LAYERS = 211, 160, 3
HEADS = [(12, 26), (4, 64), (2, 128)]  # the sizes of tiny, base and xlarge
ACTIVATIONS = ["gelu", "gelu_new", "relu"]
LENGTHS = {"padded": (POSITIONS, 1, 17, 40), "unpadded": (48, 48, 48)}
SHORT = (17, 1, 5, 9, 2, 12, 3, 7)


@dataclass(frozen=True)
class Case:
    architecture: str  # albert or bert
    heads: int
    head_dim: int
    activation: str
    groups: int = 1
    inner: int = 1

    def __str__(self) -> str:
        shape = f"{self.architecture}-{self.heads}x{self.head_dim}-{self.activation}"
        return shape + (f"-G{self.groups}x{self.inner}" if self.architecture == "albert" else "")


def cases(architecture: str) -> list[Case]:
    """Every activation, and heads of every size."""
    shapes = [(HEADS[0], activation) for activation in ACTIVATIONS] + [(heads, "relu") for heads in HEADS[1:]]
    return [Case(architecture, *heads, activation) for heads, activation in shapes]


GRID = [
    *cases("albert"),
    *(Case("albert", *HEADS[0], "gelu_new", groups, inner) for groups, inner in ((2, 1), (3, 1), (2, 2))),
    *cases("bert"),
    Case("bert", *HEADS[0], "gelu_pytorch_tanh"),  # another name of gelu_new
]


def theirs(case: Case, seed: int = 0) -> transformers.PreTrainedModel:
    """transformers' model with random weights, biases and LayerNorms too, or no mixed-up name would show."""
    torch.manual_seed(seed)
    shape = {
        "vocab_size": VOCABULARY,
        "max_position_embeddings": POSITIONS,
        "hidden_size": case.heads * case.head_dim,
        "num_attention_heads": case.heads,
        "num_hidden_layers": LAYERS,
        "intermediate_size": 272,
        "hidden_act": case.activation,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    if case.architecture == "albert":
        groups = {"num_hidden_groups": case.groups, "inner_group_num": case.inner}
        model = transformers.AlbertForPreTraining(transformers.AlbertConfig(**shape, **groups))
    else:
        model = transformers.BertForPreTraining(transformers.BertConfig(**shape))
    scale = shape["hidden_size"] ** -0.5
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.6 * scale)
        else:
            torch.nn.init.normal_(parameter, mean=1.0 if "orm.weight" in name else 0.0, std=0.2)
    return model.eval()  # its SOP head drops out in training, as the published one did not


def ours(model: transformers.PreTrainedModel) -> PretrainingModel:
    """The same model here, by way of its files."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        loaded, report = load_model(Path(folder))
    assert not (report.new or report.unused or report.wrong_shape)
    return loaded


def batch_of(lengths: tuple[int, ...], seed: int = 1) -> Batch:
    """Random tokens, a first and a second segment, 15% of the positions masked, sentence-order labels."""
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randint(1, VOCABULARY, (length,), generator=generator).tolist() for length in lengths]
    types = [[0] * (n - n // 3) + [1] * (n // 3) for n in lengths]
    batch = pack(rows, types)
    n = max(1, batch.tokens * 15 // 100)
    return replace(
        batch,
        masked_index=torch.randperm(batch.tokens, generator=generator)[:n].sort().values,
        masked_labels=torch.randint(0, VOCABULARY, (n,), generator=generator),
        sop_labels=torch.randint(0, 2, (len(lengths),), generator=generator),
    )


def their_numbers(model: transformers.PreTrainedModel, batch: Batch) -> dict[str, Tensor]:
    """States, logits, losses and gradients; of packed tokens alone, as ours are."""
    lengths = batch.cu_seqlens.diff().tolist()
    inside = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]  # [S, L]

    def padded(values: Tensor, fill: int = 0) -> Tensor:
        return torch.full(inside.shape, fill).masked_scatter(inside, values)

    labels = torch.full((batch.tokens,), -100)
    labels[batch.masked_index] = batch.masked_labels
    order = "sentence_order_label" if hasattr(model, "sop_classifier") else "next_sentence_label"
    inputs = {"attention_mask": inside.long(), "token_type_ids": padded(batch.token_type_ids)}
    inputs["input_ids"] = padded(batch.input_ids, 7)  # what padded positions hold is nobody's business
    encoded = []
    hook = model.base_model.register_forward_hook(lambda *call: encoded.append(call[-1]))
    gold = {"labels": padded(labels, -100), order: batch.sop_labels}
    output = model(**inputs, **gold, output_hidden_states=True)
    hook.remove()
    model.zero_grad()
    output.loss.backward()
    sop = output.sop_logits if hasattr(output, "sop_logits") else output.seq_relationship_logits
    numbers = {f"hidden {n}": state[inside] for n, state in enumerate(output.hidden_states)}
    pooled = encoded[0].pooler_output
    numbers |= {"pooled": pooled, "mlm logits": output.prediction_logits[inside], "sop logits": sop}
    flat = torch.nn.functional.cross_entropy(numbers["mlm logits"].float(), labels)
    numbers |= {"loss": output.loss, "mlm loss": flat}
    for name, parameter in model.named_parameters():
        if "decoder" not in name:
            numbers[f"gradient {name}"] = parameter.grad
    return {name: value.detach().clone() for name, value in numbers.items()}


def our_numbers(model: PretrainingModel, batch: Batch) -> dict[str, Tensor]:
    """The same of ours, under transformers' names."""
    model.zero_grad()
    output = model(batch)
    output.loss.backward()
    with torch.no_grad():
        states = model.encoder.hidden_states(batch)
        numbers = {f"hidden {n}": state for n, state in enumerate(states)}
        first = states[-1][batch.cu_seqlens[:-1]]
        numbers |= {"pooled": model.encoder.pool(first), "sop logits": model.sop_logits(first)}
        numbers |= {"mlm logits": model.mlm_logits(states[-1])}
        assert torch.equal(model.encoder(batch), states[-1])
    numbers |= {"loss": output.loss, "mlm loss": output.mlm_loss}
    naming = Naming(model.config, model.config.file_format)
    for name, parameter in model.named_parameters():
        parts = naming.of(name)
        for part, gradient in zip(parts, parameter.grad.chunk(len(parts)), strict=True):
            numbers[f"gradient {part}"] = gradient
    return {name: value.detach().clone() for name, value in numbers.items()}


def differences(got: dict[str, Tensor], want: dict[str, Tensor]) -> dict[str, float]:
    """Largest absolute difference of each, over the largest value where that is above 1."""
    assert set(got) == set(want), set(got) ^ set(want)
    result = {}
    for name, value in want.items():
        scale = max(1.0, value.abs().max().item())
        result[name] = (got[name].double() - value.double()).abs().max().item() / scale
    return result


SMALL_CASES = [Case("albert", *HEADS[0], "gelu_new", *groups) for groups in ((1, 1), (3, 1), (2, 2))]


@pytest.mark.parametrize("case", GRID, ids=str)
def test_states_logits_losses_and_all_gradients_agree(case):
    oracle = theirs(case)
    model = ours(oracle)
    for title, lengths in LENGTHS.items():
        batch = batch_of(lengths)
        for name, value in differences(our_numbers(model, batch), their_numbers(oracle, batch)).items():
            assert value < (1e-4 if name.startswith("gradient") else 1e-5), f"{title}: {name}"


@pytest.mark.parametrize("case", [*cases("albert"), *cases("bert")], ids=str)
def test_under_autocast_we_are_as_near_to_fp64_as_transformers_is(case):
    oracle = theirs(case)
    model, batch = ours(oracle), batch_of(SHORT)
    with torch.autocast("cpu", torch.bfloat16):
        here, there = our_numbers(model, batch), their_numbers(oracle, batch)
    exact = their_numbers(oracle.double(), batch)
    gradients = [name for name in exact if name.startswith("gradient")]
    assert all(here[name].dtype == torch.float32 for name in (*gradients, "loss", "mlm loss"))
    hidden = [name for name in exact if name.startswith("hidden")]
    for names in (gradients, hidden, ["loss"], ["mlm loss"], ["pooled"], ["mlm logits"], ["sop logits"]):
        off = [
            sum((got[n].double() - exact[n]).square().sum() / exact[n].square().sum() for n in names) ** 0.5
            for got in (here, there)
        ]
        # 2**-9 is half of what one rounding of the result may cost
        assert off[0] <= 1.5 * off[1] + 2**-9, f"{names[0]}: {off[0]:.4f} against {off[1]:.4f}"


@pytest.mark.parametrize("case", [*SMALL_CASES, Case("bert", *HEADS[0], "gelu")], ids=str)
def test_there_here_and_back_is_byte_identical_with_the_same_config(case, tmp_path):
    theirs(case).save_pretrained(tmp_path / "a")
    model, _ = load_model(tmp_path / "a")
    save_pretrained(model, None, tmp_path / "b")
    a, b = (load_file(tmp_path / name / "model.safetensors") for name in "ab")
    assert set(a) <= set(b)
    for name, value in a.items():
        assert value.dtype == b[name].dtype and value.numpy().tobytes() == b[name].numpy().tobytes(), name
    before, after = (transformers.AutoConfig.from_pretrained(tmp_path / name).to_dict() for name in "ab")
    unimportant = {"transformers_version", "_name_or_path", "dtype", "torch_dtype"}
    changed = {k: (v, after.get(k)) for k, v in before.items() if k not in unimportant and after.get(k) != v}
    # a preset of transformers that is none of ours, and that an encoder makes no use of
    assert set(changed) <= {"classifier_dropout"}, changed
    _, info = type(theirs(case)).from_pretrained(tmp_path / "b", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
