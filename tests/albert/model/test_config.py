"""The family of models: parameter counts against the published ones, costs against what torch measures."""

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from albert.model import PRESETS, AlbertConfig, Encoder, PretrainingModel, measure_sizes, pack
from albert.model.sizes import MASKED_SHARE, forward_operations
from data.errors import ConfigError
from tests.albert.model.test_encoder import SMALL
from tests.commands import run_here


def count(part):
    return sum(parameter.numel() for parameter in part.parameters())


# body, and body with heads, to the parameter; or the body in millions, rounded as it was published
@pytest.mark.parametrize(
    "config, body, whole",
    [
        (AlbertConfig.preset("tiny"), 4_080_520, 4_142_594),
        (AlbertConfig.preset("small"), 4_742_272, 4_813_706),
        (AlbertConfig.preset("base"), 10_547_968, 10_669_322),
        (AlbertConfig.preset("large"), 16_548_352, 16_702_986),
        (AlbertConfig.preset("xlarge"), 57_589_248, 57_877_002),
        (AlbertConfig.preset("xxlarge"), 221_459_968, 222_013_962),
        (AlbertConfig.preset("base-en"), 11_683_584, None),
        (AlbertConfig.preset("tiny", layout="bright"), 4_175_152, 4_295_186),
        (AlbertConfig.preset("base", num_hidden_groups=12), 88_514_560, None),
        (AlbertConfig.preset("base", share="none"), 88_514_560, None),
        (AlbertConfig.preset("base", share="attention"), 62.51, None),
        (AlbertConfig.preset("base", share="ffn"), 36.55, None),
        (AlbertConfig.preset("base-en", embedding_size=64), 9.7, None),
        (AlbertConfig.preset("base-en", embedding_size=768, layout="bert"), 31.1, None),
        (AlbertConfig.preset("bert-base"), 102_267_648, None),  # bert-base-chinese
        (AlbertConfig.preset("bert-large", vocab_size=30522), 335_141_888, None),  # bert-large-uncased
    ],
)
def test_parameter_counts_are_the_published_models(config, body, whole):
    with torch.device("meta"):
        model = PretrainingModel(config)
    sizes = measure_sizes(config)
    found = sizes.embeddings + sizes.encoder
    assert (count(model.encoder), count(model)) == (found, sizes.total)
    assert count(model.encoder.embedding) == sizes.embeddings
    if isinstance(body, float):
        assert f"{found / 1e6:.{len(str(body).split('.')[1])}f}" == str(body)
    else:
        assert found == body and whole in (None, sizes.total)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"layout": "bright", "hidden_act": "relu"},
        {"norm": "pre", "share": "ffn"},
        {"num_hidden_groups": 2, "inner_group_num": 2},
        {"layout": "bert", "embedding_size": 48, "share": "none"},
    ],
    ids=str,
)
def test_operations_are_those_torch_counts(change):
    config = replace(SMALL, **change)
    model = PretrainingModel(config).eval()
    S, T = 5, 20
    batch = pack([[1] * T] * S)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model.mlm_logits(model.encoder(batch)[: int(S * T * MASKED_SHARE)])
    assert counter.get_total_flops() == pytest.approx(forward_operations(config, T) * S * T)


def test_with_activation_checkpointing_the_layers_inputs_alone_are_kept():
    """The layers' share: what six layers keep above what two do."""
    S, T = 4, 24

    def kept(layers):
        encoder = Encoder(replace(SMALL, num_hidden_layers=layers))
        torch.nn.init.normal_(encoder.embedding.word)
        encoder.activation_checkpointing = True
        weights = {p.untyped_storage().data_ptr() for p in encoder.parameters()}
        storages = {}

        def keep(tensor):
            storages[tensor.untyped_storage().data_ptr()] = tensor  # held, so that no address comes twice
            return tensor

        hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
        with hooks, torch.autocast("cpu", torch.bfloat16):
            encoder(pack([[1] * T] * S))
        return sum(t.untyped_storage().nbytes() for at, t in storages.items() if at not in weights) / (S * T)

    assert kept(6) - kept(2) == pytest.approx(4 * 2 * SMALL.hidden_size)


def test_the_table_names_every_preset():
    done = run_here("checkpoint", "sizes")
    assert done.returncode == 0 and not done.stderr
    rows = {line.split()[0]: line for line in done.stdout.splitlines()[2:] if line}
    assert set(PRESETS) <= set(rows)
    assert "17,683,968" not in rows["large-en"]  # that is the body; the table has its parts
    assert f"{measure_sizes(AlbertConfig.preset('large-en')).total:,}" in rows["large-en"]
    assert rows["bert-large"].split()[10] == "1.000"


def test_presets_and_variants_are_checked_and_every_wrong_field_is_named_at_once():
    assert AlbertConfig.preset("base-zh") == AlbertConfig.preset("base")
    with pytest.raises(ConfigError, match="no preset 'enormous': there are tiny, small"):
        AlbertConfig.preset("enormous")
    message = "hidden_size=100 is not a multiple of num_attention_heads=12; 96 would be"
    with pytest.raises(ConfigError, match=message):
        replace(AlbertConfig.preset("tiny"), hidden_size=100)
    with pytest.raises(ConfigError, match="there are only 4 layers to group"):
        replace(SMALL, num_hidden_groups=5)
    with pytest.raises(ConfigError, match="nothing to group"):
        replace(SMALL, num_hidden_groups=3, share="none")
    with pytest.raises(ConfigError) as error:
        AlbertConfig(vocab_size="21128", hidden_size=-1, hidden_act="exec", share=3, layer_norm_eps=True)
    for name in ("vocab_size", "hidden_size", "hidden_act", "share", "layer_norm_eps"):
        assert f"{name}=" in str(error.value)
