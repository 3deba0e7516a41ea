import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from albert.evaluation import measure_layer_changes
from albert.model import AlbertConfig, Batch, PretrainingModel, PretrainingObjective, grow, pack
from data.errors import ConfigError, InputError
from kernels.shapes import LEAST

SMALL = AlbertConfig(
    vocab_size=61,
    embedding_size=16,
    hidden_size=48,
    num_attention_heads=4,
    num_hidden_layers=4,
    intermediate_size=80,
    max_position_embeddings=40,
)

GROUPS = {"num_hidden_groups": 2, "inner_group_num": 2}


def with_dropout(p, **changes):
    """The small config with a share of states and of attention dropped, and other changes."""
    return replace(SMALL, hidden_dropout_prob=p, attention_probs_dropout_prob=p, **changes)


def random_model(config=SMALL):
    torch.manual_seed(0)
    model = PretrainingModel(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1 if parameter.dim() > 1 else 0.4)
    return model


def masked_batch():
    generator = torch.Generator().manual_seed(1)
    batch = pack([torch.randint(1, 61, (length,), generator=generator).tolist() for length in (17, 1, 8)])
    at = torch.randperm(batch.tokens, generator=generator)[:9].sort().values
    labels = torch.randint(0, 61, (9,), generator=generator)
    return replace(batch, masked_index=at, masked_labels=labels, sop_labels=torch.tensor([0, -100, 1]))


def gradients(model, batch):
    model.zero_grad()
    model(batch).loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def test_longer_sequences_than_the_models_positions_are_refused_and_further_token_types_are_its_last():
    encoder, longest = random_model().encoder, SMALL.max_position_embeddings
    encoder(pack([[1] * longest]))
    with pytest.raises(InputError, match="sequences of 41 tokens: the model has 40 positions"):
        encoder(pack([[1], [1] * (longest + 1)]))
    model, ids = random_model(replace(SMALL, type_vocab_size=1)).eval(), [[5, 6, 7, 8]]
    with torch.no_grad():
        assert torch.equal(model.encoder(pack(ids, [[0, 0, 1, 1]])), model.encoder(pack(ids)))


def test_threads_that_share_a_model_read_with_it_at_once():
    encoder, batch = random_model().eval().encoder, masked_batch()
    both_inside = threading.Barrier(2)

    def read(_):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            return encoder(batch)

    alone = read(None)
    encoder.embedding.register_forward_pre_hook(lambda *_: (both_inside.wait(30), None)[1])
    with ThreadPoolExecutor(2) as pool:
        assert all(torch.equal(states, alone) for states in pool.map(read, range(2)))


@pytest.mark.parametrize("span_boundary", [False, True])
def test_a_batch_without_a_masked_token_has_no_loss_and_a_finite_gradient(span_boundary):
    none = torch.empty(0, dtype=torch.int64)
    batch = replace(masked_batch(), masked_index=none, masked_labels=none)
    objective = PretrainingObjective(random_model(), span_boundary=span_boundary)
    losses = objective(batch)
    assert losses.mlm_loss == 0 and losses.boundary_loss == (0 if span_boundary else None)
    (losses.loss + (losses.boundary_loss or 0)).backward()
    assert all(p.grad.isfinite().all() for p in objective.parameters() if p.grad is not None)


def test_a_texts_mean_is_told_from_the_other_texts_of_the_batch():
    batch = masked_batch()
    objective = PretrainingObjective(random_model(), contrast=True)
    assert objective.model.config.hidden_dropout_prob == 0  # as published, and yet passes differ
    trained = [objective(batch).contrast_loss.item() for _ in range(2)]
    assert trained[0] != trained[1]
    clean = batch.input_ids.clone()
    clean[batch.masked_index] = batch.masked_labels
    encoder = objective.eval().model.encoder
    lengths = batch.cu_seqlens.diff().tolist()
    means = torch.stack([encoder(pack([ids.tolist()])).mean(0) for ids in clean.split(lengths)])
    cosines = torch.nn.functional.cosine_similarity(means[:, None], means[None], dim=-1) / 0.05
    losses = objective(batch)
    torch.testing.assert_close(losses.contrast_loss, -cosines.log_softmax(-1).diagonal().mean())
    torch.testing.assert_close(losses.loss, objective.model(batch).loss)


@pytest.mark.parametrize("share", ["attention", "ffn", "none"])
@pytest.mark.parametrize("change", [{}, GROUPS], ids=["one", "groups"])
def test_unshared_layers_begin_as_the_shared_ones(share, change):
    model = random_model(replace(SMALL, **change)).eval()
    grown = grow(model, share=share).eval()
    assert grown.config.share == share
    assert sum(p.numel() for p in grown.parameters()) > sum(p.numel() for p in model.parameters())
    batch = masked_batch()
    with torch.no_grad():
        assert torch.equal(grown.encoder(batch), model.encoder(batch))
        assert torch.equal(grown(batch).loss, model(batch).loss)


@pytest.mark.parametrize("change", [{"share": "none"}, GROUPS], ids=["tiled in order", "groups stay"])
def test_more_layers_have_the_weights_of_those_that_there_were(change):
    model = random_model(replace(SMALL, **change))
    grown = grow(model, num_hidden_layers=10).encoder
    for part in ("attentions", "feed_forwards"):
        before = getattr(model.encoder, part)
        for number, block in enumerate(getattr(grown, part)):
            for p, copied in zip(block.parameters(), before[number % len(before)].parameters(), strict=True):
                assert torch.equal(p, copied) and p.data_ptr() != copied.data_ptr()


def test_layers_that_share_all_can_be_fewer_but_not_none_and_growth_never_loses_parameters():
    model, batch = random_model().eval(), masked_batch()
    fewer = grow(model, num_hidden_layers=2)
    assert torch.equal(fewer.encoder(batch), model.encoder.hidden_states(batch)[2])
    with pytest.raises(ConfigError, match="num_hidden_layers=0"):
        grow(model, num_hidden_layers=0)
    model = random_model(replace(SMALL, share="ffn"))
    for share in ("all", "attention"):
        with pytest.raises(ConfigError, match="which can become ffn, none"):
            grow(model, share=share)
    with pytest.raises(ConfigError, match="layers are only added"):
        grow(model, num_hidden_layers=3)


@pytest.mark.parametrize("change", [{}, {"share": "ffn", "norm": "pre"}], ids=str)
@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("half", [False, True])
def test_the_same_seed_gives_the_same_bits_with_checkpointed_activations_too(change, dropout, half):
    model = random_model(with_dropout(dropout, **change)).train()
    batch = masked_batch()
    results = []
    for checkpointing in (False, True):
        model.encoder.activation_checkpointing = checkpointing
        torch.manual_seed(3)  # the same dropout
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            results.append(gradients(model, batch))
    torch.testing.assert_close(*results, rtol=0, atol=0)


@pytest.mark.parametrize("change", [{}, {"share": "none", "norm": "pre"}, {"num_hidden_layers": 1}], ids=str)
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_states_of_some_tokens_alone_are_those_among_all(change, checkpointing, dropout):
    encoder = random_model(with_dropout(dropout, **change)).double().encoder
    encoder.activation_checkpointing = checkpointing
    batch, rows = masked_batch(), torch.tensor([5, 0, 25, 5])  # one of them twice
    weights = torch.randn(4, 48, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    results = []
    for some in (True, False):
        torch.manual_seed(3)  # the same dropout
        states = encoder(batch, rows) if some else encoder(batch)[rows]
        encoder.zero_grad()
        (states * weights).sum().backward()
        used = [p.grad.clone() for p in encoder.parameters() if p.grad is not None]
        results.append([states.detach(), *used])
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-12)


class ProductSizes(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.sizes = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.addmm_):
            self.sizes.update(n for x in args for n in x.shape)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(("dropout", "span_boundary"), [(0.0, False), (0.2, False), (0.0, True)])
def test_products_in_16_bits_repeat_their_shapes_and_nothing_else_changes(dropout, span_boundary):
    model = random_model(with_dropout(dropout))
    objective = PretrainingObjective(model, span_boundary=span_boundary).train()
    seen = {True: ProductSizes(), False: ProductSizes()}
    for seed in range(14):
        generator = torch.Generator().manual_seed(seed)
        lengths = torch.randint(33, 41, (26 + seed % 5,), generator=generator).tolist()
        batch = pack([torch.randint(1, 61, (n,), generator=generator).tolist() for n in lengths])
        at = torch.arange(1 + seed, batch.tokens - 1, 6)  # neither the first token nor the last
        labels, orders = at % 61, torch.randint(2, (len(lengths),), generator=generator)
        batch = replace(batch, masked_index=at, masked_labels=labels, sop_labels=orders)
        results = []
        for half, shapes in seen.items():
            torch.manual_seed(seed)  # of dropout
            with shapes, torch.autocast("cpu", torch.bfloat16, enabled=half):
                losses = objective(batch)
                loss = losses.loss + (losses.boundary_loss if span_boundary else 0)
                found = torch.autograd.grad(loss, list(objective.parameters()), materialize_grads=True)
            results.append(torch.cat([g.flatten() for g in found]))
        assert (results[0] - results[1]).norm() < 0.05 * results[1].norm()
    # all but the 61 entries of the vocabulary and, of the order head, the sequences, at most 30
    odd, usual = ({n for n in s.sizes if n > 30 and n % LEAST and n != 61} for s in seen.values())
    assert not odd and len(usual) > 20


@pytest.mark.parametrize("layout", ["google", "bright", "bert"])
def test_dropout_drops_the_configs_share_of_embeddings_and_of_attention(layout):
    p, E = 0.3, 48 if layout == "bert" else 16
    model = random_model(with_dropout(p, layout=layout, embedding_size=E)).train()
    embedding, attention = model.encoder.embedding, model.encoder.attentions[0]
    if layout == "google":  # a projection that repeats the normalised row
        embedding.projection.weight.data = torch.eye(E).repeat(3, 1)
        embedding.projection.bias.data.zero_()
    batch = pack([[1 + n % 60 for n in range(40)] for _ in range(200)])
    torch.manual_seed(0)
    dropped, kept = embedding(batch), model.eval().encoder.embedding(batch)
    # as in transformers' ALBERT the row is dropped from before it is projected, so that its copies agree
    assert torch.equal(dropped[:, :16], dropped[:, 16:32]) == (layout == "google")
    some = dropped[:, :16] if layout == "google" else dropped
    # of a binomial share the standard deviation is sqrt(p (1-p) / n); five of them
    assert abs((some == 0).double().mean().item() - p) < 5 * (p * (1 - p) / some.numel()) ** 0.5
    assert torch.allclose(dropped[dropped != 0], (kept / (1 - p))[dropped != 0])
    attention.dropout = 0.0  # what differs then is the attention alone
    exact, again = (attention(kept, batch.cu_seqlens, batch.max_seqlen) for _ in range(2))
    first, second = (attention.train()(kept, batch.cu_seqlens, batch.max_seqlen) for _ in range(2))
    assert torch.equal(exact, again) and not torch.equal(first, second)


def test_layer_changes_are_distances_and_angles_of_its_states():
    model = random_model()
    batch: Batch = masked_batch()
    changes = measure_layer_changes(model.encoder, batch)
    assert model.encoder.training and [change.layer for change in changes] == [1, 2, 3, 4]
    with torch.no_grad():
        states = model.encoder.eval().hidden_states(batch)
    for change, before, after in zip(changes, states[:-1], states[1:], strict=True):
        lengths = [float((b - a).square().sum().sqrt()) for a, b in zip(before, after, strict=True)]
        cosines = [float(a @ b / (a.norm() * b.norm())) for a, b in zip(before, after, strict=True)]
        assert change.distance == pytest.approx(sum(lengths) / len(lengths), rel=1e-5)
        assert change.cosine == pytest.approx(sum(cosines) / len(cosines), rel=1e-4, abs=1e-6)


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # torch.compile reads it
def test_a_compiled_model_learns_the_same_on_a_cpu():
    model = random_model(replace(SMALL, hidden_act="gelu_new")).train()
    batch = masked_batch()
    plain = gradients(model, batch)
    compiled = gradients(torch.compile(model, backend="aot_eager"), batch)
    torch.testing.assert_close([*compiled.values()], [*plain.values()])
