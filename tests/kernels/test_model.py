"""The whole model on the kernels: against torch, in torch.compile, autocast and activation checkpointing."""

from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map

import kernels
from albert.model import AlbertConfig, Batch, MeanPooler, PretrainingModel, pack
from tests.kernels.checks import DEVICE, offsets

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


def test_heads_of_26_are_computed_32_wide_without_more_parameters(triton):
    model, batch = make()
    attention = model.encoder.attentions[0]
    x = torch.randn(batch.tokens, 52, device=DEVICE)
    weight, bias = attention.query_key_value.weight, attention.query_key_value.bias
    qkv, _ = kernels.split_heads(x, weight, bias, 2)
    assert qkv.shape == (batch.tokens, 3, 2, 32) and qkv[..., 26:].eq(0).all()
    assert (qkv[..., :26] - (x @ weight.T + bias).view(-1, 3, 2, 26)).abs().max() < 1e-5
    assert weight.shape == (156, 52)


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


def test_neither_pass_asks_the_device_for_a_number(triton):
    """A CUDA graph needs this; a fake tensor has nothing but a shape."""
    model, batch = make(**DROPOUT)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = replace(batch, input_ids=mode.from_tensor(batch.input_ids))
        output, means = model(fake), MeanPooler(model.encoder)(fake)
        gradients = torch.autograd.grad(output.loss, list(model.parameters()))
    assert output.loss.shape == () and output.sop_count.shape == () and means.shape == (3, 52)
    assert [g.shape for g in gradients] == [p.shape for p in model.parameters()]


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
def test_torch_compile_takes_the_whole_encoder_as_one_graph(triton):
    model, batch = make(9, **DROPOUT)
    torch._dynamo.reset()

    @torch.compile(fullgraph=True, backend="aot_eager")
    def loss_of(index, labels, cu_seqlens, ids):
        b = Batch(ids, ids * 0, torch.zeros_like(ids), cu_seqlens, 20, index, labels)
        states = model.mlm(model.encoder(b)[index], model.encoder.embedding)
        return kernels.mlm_loss(states, model.encoder.embedding.word, model.mlm.bias, labels)[0].mean()

    arguments = (batch.masked_index, batch.masked_labels, batch.cu_seqlens, batch.input_ids)
    results = []
    for function in (loss_of, torch.compiler.disable(loss_of.__wrapped__)):
        torch.manual_seed(5)
        loss = function(*arguments)
        results.append((loss, *torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)))
    (compiled, *ours), (plain, *theirs) = results
    assert torch.allclose(compiled, plain) and any(x is not None for x in theirs)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


OPS = torch.ops.jixu


def operators() -> dict[str, tuple[object, ...]]:
    """Return every operator with arguments, by a name."""
    qkv = torch.randn(9, 3, 2, 26, device=DEVICE, requires_grad=True)
    cu_seqlens, seed = offsets([6, 0, 3]), torch.tensor([3], device=DEVICE)
    schedule = OPS.attention_schedule(cu_seqlens, 9, 6, 16)
    x = [torch.randn(s, device=DEVICE, requires_grad=True) for s in [(5, 16), (40, 16), (40,)]]
    labels = torch.tensor([3, -100, 39, 0, 3], device=DEVICE)
    y = [torch.randn(s, device=DEVICE, requires_grad=True) for s in [(5, 12), (12,), (5, 12), (12,), (12,)]]
    rows = torch.arange(5, device=DEVICE) * 3
    cases = {
        "schedule": (OPS.attention_schedule, cu_seqlens, 9, 6, 16),
        "attention": (OPS.attention, qkv, cu_seqlens, schedule, seed, 6, 0.25, 0.1),
        "attention without dropout": (OPS.attention, qkv, cu_seqlens, schedule, None, 6, 0.25, 0.0),
        "mlm_loss": (OPS.mlm_loss, *x, labels),
        "mlm_loss of half states": (OPS.mlm_loss, x[0].detach().half().requires_grad_(), *x[1:], labels),
        "add_layer_norm": (OPS.add_layer_norm, *y, 1e-5, 0.0, None, None),
        "add_layer_norm without a bias": (OPS.add_layer_norm, y[0], None, *y[2:], 1e-5, 0.0, None, None),
        "add_layer_norm with dropout": (OPS.add_layer_norm, *y, 1e-5, 0.1, seed, rows),
        "bias_gelu": (OPS.bias_gelu, y[0], y[1], "gelu_new"),
    }
    ids, place = torch.tensor([3, 0, 3], device=DEVICE), torch.arange(3, device=DEVICE)
    for layout, W in (("google", 8), ("bright", 24), ("bert", 8)):
        shapes = [(5, 8), (2, W), (4, W), (W,), (W,), (24, 8), (24,)]
        tables = [torch.randn(s, device=DEVICE, requires_grad=True) for s in shapes]
        tables = [*tables[:5], None, None] if layout == "bert" else tables
        settings = (1e-5, layout == "bright", torch.float32)
        cases[f"embed {layout}"] = (OPS.embed, ids, place * 0, place, *tables, *settings)
    return cases


def backward_operator(name: str) -> tuple[object, ...]:
    """Return the operator of a backward pass, with the arguments that the forward pass leaves it."""
    operator, *arguments = operators()[name]
    arguments = tree_map(lambda x: x.detach() if isinstance(x, torch.Tensor) else x, arguments)
    output, *saved = outputs if isinstance(outputs := operator(*arguments), tuple) else (outputs,)
    dy = torch.randn_like(output)
    if operator is OPS.attention:
        return OPS.attention_backward, dy, arguments[0], output, *saved, *arguments[1:]
    if operator is OPS.mlm_loss:
        return OPS.mlm_loss_backward, dy, *arguments, saved[1]
    if operator is OPS.add_layer_norm:
        return OPS.add_layer_norm_backward, dy, *arguments[:4], *saved, *arguments[7:], arguments[6]
    if operator is OPS.bias_gelu:
        return OPS.bias_gelu_backward, dy, *arguments
    return OPS.embed_backward, dy, *saved, *arguments


@pytest.mark.parametrize("name", [name for name in operators() if name != "schedule"])
def test_outputs_of_a_backward_operator_are_as_its_fake_says(name):
    operator, *arguments = backward_operator(name)
    torch.library.opcheck(operator.default, arguments, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", list(operators()))
def test_the_operator_is_what_torch_asks_of_one(name):
    operator, *arguments = operators()[name]
    torch.library.opcheck(operator.default, arguments)
