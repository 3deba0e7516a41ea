"""The whole model on the kernels: against torch, in torch.compile, autocast and activation checkpointing."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import kernels
from albert.batching import Shape, pad
from albert.model import AlbertConfig, Batch, PretrainingModel, pack
from tests.kernels.checks import DEVICE

SHAPE = {
    "vocab_size": 300,
    "embedding_size": 16,
    "hidden_size": 52,  # two heads of 26
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 104,
    "max_position_embeddings": 80,
}
# in fp32 a GPU runs torch's attention, which drops by itself
DROPOUT = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.0 if DEVICE == "cuda" else 0.1}


def make(length: int = 70, **changes: object) -> tuple[PretrainingModel, Batch]:
    """Make a model and a batch whose longest sequence has `length` tokens: over 64 are several tiles."""
    torch.manual_seed(0)
    batch = pack([list(range(5, 5 + length)), [7, 8, 9], [3] * 20])
    masked = torch.tensor([1, 3, length - 1, length, length + 22])
    batch = replace(
        batch, masked_index=masked, masked_labels=torch.tensor([6, 299, 0, 7, 3]),
        sop_labels=torch.tensor([0, 1, -100]),
    )  # fmt: skip
    model = PretrainingModel(AlbertConfig(**{**SHAPE, "initializer_range": 0.2, **changes}))
    return model.to(DEVICE), batch.to(DEVICE)


def gradients(model: PretrainingModel, batch: Batch, half: torch.dtype | None = None):
    """Return the loss and the gradients by name, under autocast to `half`."""
    model.zero_grad()
    with torch.autocast(DEVICE, half, enabled=half is not None):
        loss = model(batch).loss
    loss.backward()
    return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters()}


def assert_same(ours, theirs, tolerance: float) -> None:
    assert abs(ours[0] - theirs[0]) <= tolerance * theirs[0]
    for name, gradient in theirs[1].items():
        scale = gradient.abs().max().clamp_min(1e-3)
        assert (ours[1][name] - gradient).abs().max() <= tolerance * scale, name


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"layout": "bright", "share": "none", "hidden_act": "relu"},
        {"layout": "bert", "embedding_size": 52, "hidden_act": "gelu", **DROPOUT},
    ],
    ids=["albert", "bright", "bert"],
)
def test_loss_and_gradients_are_those_of_the_torch_path(triton, changes):
    model, batch = make(**changes)
    results = []
    for choice in ("torch", "triton"):
        kernels.use(choice)
        torch.manual_seed(0)
        results.append(gradients(model, batch))
    assert_same(results[1], results[0], 2e-5)


def test_a_padded_batch_draws_the_same_dropout(triton):
    """Bit for bit up to the states; sums over rows that count for nothing may be in another order."""
    model, batch = make(9, layout="bert", embedding_size=52, **DROPOUT)
    padded = pad(batch.to("cpu"), Shape(50, 7, 9, 40, True)).to(DEVICE)
    losses, states = [], []
    for each in (batch, padded):
        torch.manual_seed(3)
        losses.append(gradients(model, each))
        torch.manual_seed(3)
        states.append(model.encoder(each))
    assert torch.equal(states[1][: batch.tokens], states[0])
    assert_same(losses[1], losses[0], 1e-6)


@pytest.mark.parametrize("layout", ["google", "bright"])
def test_the_last_layer_computes_the_same_for_some_rows_as_for_all(triton, layout):
    model, batch = make(layout=layout, **DROPOUT)
    rows = torch.cat([batch.masked_index, batch.cu_seqlens[:-1]])
    torch.manual_seed(3)
    every = model.encoder(batch)[rows]
    torch.manual_seed(3)
    wanted = model.encoder(batch, rows)
    assert wanted.shape == (8, 52) and (wanted - every).abs().max() < 2e-6 * every.abs().max()
    masked, first = wanted.tensor_split([5])
    torch.manual_seed(3)
    assert torch.equal(model.losses(masked, first, batch).loss, model(batch).loss)


def test_heads_of_26_are_computed_32_wide_without_more_parameters(triton):
    model, batch = make()
    attention = model.encoder.attentions[0]
    x = torch.randn(batch.tokens, 52, device=DEVICE)
    weight, bias = attention.query_key_value.weight, attention.query_key_value.bias
    qkv, _ = kernels.split_heads(x, weight, bias, 2)
    assert qkv.shape == (batch.tokens, 3, 2, 32) and qkv[..., 26:].eq(0).all()
    assert (qkv[..., :26] - (x @ weight.T + bias).view(-1, 3, 2, 26)).abs().max() < 1e-5
    assert weight.shape == (156, 52)


def test_dropout_trains_and_is_a_function_of_torchs_seed(triton):
    model, batch = make(9, **DROPOUT)
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(gradients(model, batch))
    assert torch.equal(drawn[0][0], drawn[1][0]) and drawn[0][0] != drawn[2][0]
    assert all(torch.equal(g, drawn[1][1][name]) for name, g in drawn[0][1].items())


def test_autocast_computes_in_half_precision_and_keeps_the_parameters_gradients_in_fp32(triton):
    model, batch = make(9, **DROPOUT)
    torch.manual_seed(3)
    exact = gradients(model, batch)
    # the interpreter multiplies bf16 matrices wrongly: on a CPU fp16 stands in for it
    dtype = torch.bfloat16 if DEVICE == "cuda" else torch.float16
    with torch.autocast(DEVICE, dtype):
        assert model.encoder(batch).dtype == dtype
    torch.manual_seed(3)
    loss, found = gradients(model, batch, dtype)
    # computes the layers again where the copies are gone, with the same dropout
    model.encoder.activation_checkpointing = True
    torch.manual_seed(3)
    again = gradients(model, batch, dtype)
    assert abs(loss - exact[0]) < 0.02 * exact[0] and torch.equal(loss, again[0])
    for name, gradient in found.items():
        assert gradient.dtype == torch.float32 and torch.equal(gradient, again[1][name]), name
        largest = exact[1][name].abs().max().clamp_min(0.01)
        assert (gradient - exact[1][name]).abs().max() < 0.1 * largest, name


def test_neither_pass_asks_the_device_for_a_number(triton, monkeypatch):
    """A CUDA graph needs this."""
    model, batch = make(**DROPOUT)
    asked = set()

    def watch(name):
        real = getattr(torch.Tensor, name)

        def watched(*arguments):
            file = Path(sys._getframe(1).f_code.co_filename)
            if file.parent.name in ("kernels", "model"):  # Triton's interpreter does ask
                asked.add(f"{file.name}: {name}")
            return real(*arguments)

        monkeypatch.setattr(torch.Tensor, name, watched)

    numbers = ("__int__", "__float__", "__bool__", "__index__")
    for name in ("item", "tolist", "cpu", "numpy", "nonzero", *numbers):
        watch(name)
    model(batch).loss.backward()
    assert not asked


@pytest.mark.skipif(not torch.cuda.is_available(), reason="a GPU")
def test_a_cuda_graph_holds_both_passes(triton):
    model, batch = make()
    expected = gradients(model, batch)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # compiles outside of the capture
        model(batch).loss.backward()
    torch.cuda.current_stream().wait_stream(side)
    model.zero_grad()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = model(batch).loss
        loss.backward()
    graph.replay()
    assert_same((loss, {name: p.grad for name, p in model.named_parameters()}), expected, 2e-5)


def test_a_batch_without_order_labels_trains_on_its_masks_alone():
    model, batch = make()
    unknown = replace(batch, sop_labels=torch.full_like(batch.sop_labels, -100))
    output = model(unknown)
    output.loss.backward()
    assert output.sop_loss == 0 and output.sop_count == 0 and output.loss == output.mlm_loss
    assert model.sop.weight.grad.eq(0).all()
    # fewer rows in a product: on several threads it may be added up in another order
    assert abs(model(replace(batch, sop_labels=None)).loss - output.loss) < 1e-6 * output.loss


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # torch.compile reads it
def test_torch_compile_takes_the_whole_model_as_one_graph(either):
    model, batch = make(9, **DROPOUT)
    model.eval()
    plain = gradients(model, batch)
    torch._dynamo.reset()
    loss, found = gradients(torch.compile(model, backend="aot_eager", fullgraph=True), batch)
    assert_same((loss, {name.removeprefix("_orig_mod."): g for name, g in found.items()}), plain, 2e-5)
