"""CUDA graphs of a step, as far as a CPU shows them: the same padded batches, buffers and checks."""

import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch

from albert.batching import Shape, flatten
from albert.model import Batch, pack
from albert.pretraining import Corpus
from albert.pretraining.graphs import WARM_UP, StepGraphs
from albert.pretraining.trainer import PreparedStep, Trainer
from albert.runtime import Process
from tests.albert.pretraining.conftest import assert_same, steps_of, trainer_of, with_options
from tests.conftest import save_small_model

STEPS = 2 * WARM_UP + 4


@pytest.fixture
def settings(settings):
    return with_options(settings, steps=STEPS, running={"precision": "fp32", "accumulate": 2})


@pytest.fixture
def unordered(corpora):
    return Corpus(name="other", shards=corpora["general"], share=0.5, held_out_share=0.1)


def prepare(settings, *, graphs: bool) -> tuple[Trainer, list[PreparedStep]]:
    trainer = trainer_of(settings)
    trainer.graphs = trainer.make_graphs() if graphs else None
    return trainer, [trainer.prepare(step) for step in islice(steps_of(trainer), STEPS)]


def train(settings, *, graphs: bool) -> tuple[Trainer, list[float]]:
    """A trainer after some steps, and their losses."""
    trainer, steps = prepare(settings, graphs=graphs)
    for step in steps:
        trainer.step(step)
    records, _ = trainer.review()
    return trainer, [f.mlm_loss / f.mlm_count for r in records for f in r.corpora.values()]


@pytest.mark.parametrize("mixed", [False, True])
def test_losses_and_weights_are_those_of_single_launches(settings, unordered, tokenizer, tmp_path, mixed):
    dropout = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}  # drawn again in a replay
    init = save_small_model(tmp_path / "small", tokenizer, max_position_embeddings=64, **dropout)
    settings = replace(settings, init=str(init))
    if mixed:  # some steps without an order label
        settings = replace(settings, mix=(unordered,), running={"precision": "fp32", "accumulate": 1})
    (plain, losses), (graphed, graphed_losses) = (train(settings, graphs=g) for g in (False, True))
    assert all(graphed.graphs._graphs.values()) and not graphed.notices
    assert set(graphed.graphs._updates) == ({False, True} if mixed else {True})
    assert torch.allclose(torch.tensor(losses), torch.tensor(graphed_losses), rtol=1e-5)
    found, expected = (one.objective.state_dict() for one in (graphed, plain))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


def test_a_step_without_order_labels_leaves_that_heads_gradients_where_a_graph_writes(settings, unordered):
    settings = replace(settings, mix=(unordered,), running={"precision": "fp32", "accumulate": 1})
    trainer, steps = prepare(settings, graphs=True)
    assert {step.data.is_ordered for step in steps} == {False, True}
    places, head = set(), [*trainer.objective.model.sop.parameters()]
    for step in steps:
        trainer.step(step)
        places.add(tuple(p.grad is not None and p.grad.data_ptr() for p in head))
    assert len(places - {(False, False)}) == 1


def graphs_of(passes, parameters=(), **options) -> StepGraphs:
    given = {"tokens": 512, "longest": 64, "notify": lambda text: None, **options}
    return StepGraphs(passes, list(parameters), torch.device("cpu"), **given)


def batch_of(length: int, sequences: int) -> Batch:
    """A batch with its first token masked."""
    masked = {"masked_index": torch.tensor([0]), "masked_labels": torch.tensor([1])}
    return replace(pack([[1] * length] * sequences), **masked)


def test_a_filler_has_no_more_positions_than_the_model_and_a_batch_that_outgrows_its_graph_a_larger_one():
    graphs = graphs_of(None, longest=100)
    fitted = [graphs.fit(batch_of(length, 2)) for length in [70] * WARM_UP + [80, 50]]
    assert [batch.tokens for batch in fitted[WARM_UP:]] == [512, 100]
    assert fitted[WARM_UP].max_seqlen == 100 == fitted[WARM_UP].position_ids.max() + 1
    graphs = graphs_of(None)
    shapes = [Shape.of(graphs.fit(batch_of(*sizes))) for sizes in [(60, 8)] * (WARM_UP + 1) + [(15, 30)] * 2]
    assert all(shape.tokens == 512 for shape in shapes[WARM_UP:])
    assert shapes[WARM_UP].sequences < 30 <= shapes[-1].sequences and shapes[-1] == shapes[-2]
    assert len(graphs.seen) == WARM_UP + 1
    # another run that has seen as much makes the same shapes
    assert Shape.of(graphs_of(None, seen=graphs.seen).fit(batch_of(60, 8))) == shapes[-1]
    too_large = batch_of(60, 9)
    assert graphs.fit(too_large) is too_large and len(graphs.seen) == WARM_UP + 1


def test_there_are_no_graphs_where_they_are_off_or_processes_several_or_losses_further(settings, corpora):
    trainer = trainer_of(settings)
    assert trainer.make_graphs() is not None
    trainer.process = Process(0, 2)
    assert trainer.make_graphs() is None
    off = {"running": {"cuda_graphs": "off"}}, {"running": {"activation_checkpointing": True}}
    further = {"shards": corpora["spans"]}, {"objective": {"contrast_weight": 0.1}}
    for options in (*off, *further):
        assert trainer_of(with_options(settings, **options)).make_graphs() is None, options


@pytest.mark.parametrize("graphs", [False, True])
def test_a_step_asks_no_tensor_for_a_number(settings, monkeypatch, graphs):
    """On a GPU the host would wait there for all that was launched."""
    trainer, steps = prepare(settings, graphs=graphs)
    asked = set()

    def watch(name):
        real = getattr(torch.Tensor, name)

        def watched(*arguments, **more):
            file = Path(sys._getframe(1).f_code.co_filename)
            if file.name in ("trainer.py", "static.py") or file.parent.name == "model":
                asked.add(name)
            return real(*arguments, **more)

        monkeypatch.setattr(torch.Tensor, name, watched)

    numbers = ("__int__", "__float__", "__bool__", "__index__")
    for name in ("item", "tolist", "cpu", "numpy", "nonzero", *numbers):
        watch(name)
    for step in steps:
        trainer.step(step)
    assert not asked
    if graphs:
        assert all(trainer.graphs._graphs.values())


def test_a_resumed_run_pads_the_same_batches_and_arrives_at_the_same_bits(settings, tmp_path):
    settings = replace(settings, run_folder=tmp_path / "run")
    straight, _ = train(settings, graphs=True)
    for before in (1, WARM_UP + 2):  # in the first batches of a bucket, and with graphs
        first, steps = prepare(settings, graphs=True)
        for step in steps[:before]:
            first.step(step)
        first.checkpoint()
        resumed, _ = prepare(settings, graphs=False)
        resumed.resume()
        resumed.graphs = resumed.make_graphs()
        for step in islice(steps_of(resumed), STEPS - before):
            resumed.step(resumed.prepare(step))
        assert all(resumed.graphs._graphs.values()) and resumed.state.step == STEPS
        assert_same(straight.objective.state_dict(), resumed.objective.state_dict())


def test_a_graph_that_gives_other_gradients_is_given_up_with_a_notice(settings):
    trainer, _ = train(replace(settings, steps=1), graphs=False)
    notices: list[str] = []
    passes, calls = trainer._passes, []

    def unlike(batch, weights, figures):
        calls.append(batch)
        passes(batch, weights if len(calls) % 2 else weights * 1.01, figures)

    graphs = graphs_of(unlike, trainer.objective.parameters(), notify=notices.append)
    stream = trainer.streams[""]
    batch = next(stream.held_out_batches(256))
    row = torch.zeros(7, dtype=torch.float64)

    def run() -> bool:
        fitted = graphs.fit(batch)
        return graphs.run(flatten(fitted, (1.0, 1.0)), Shape.of(fitted), row, lambda: None)

    took = [run() for _ in range(WARM_UP + 2)]
    assert took == [False] * WARM_UP + [True, False] and len(calls) == 2
    assert len(notices) == 1 and "CUDA graphs are off" in notices[0]
    assert not graphs._graphs  # nor is their memory kept
    trainer.optimizer.zero_grad()
    passes(batch, (1.0, 1.0), figures := torch.zeros_like(row))
    assert torch.allclose(row, figures)  # the batch counted once, as it was before the replay


def test_gradients_that_overflow_are_nothing_to_check_a_graph_by():
    """In fp16 the step is not taken, and its batch's shape has its graph captured next time."""
    weight, factors = torch.nn.Parameter(torch.ones(2)), iter([float("inf"), 1.0, 1.0])
    notices: list[str] = []

    def passes(batch, weights, figures):
        (weight.sum() * next(factors)).backward()
        figures += 1

    graphs = graphs_of(passes, [weight], notify=notices.append)
    fitted = [graphs.fit(batch_of(20, 2)) for _ in range(WARM_UP + 2)][WARM_UP:]
    row = torch.zeros(7, dtype=torch.float64)
    for batch in fitted:
        weight.grad = torch.zeros(2)
        assert graphs.run(flatten(batch, (1.0, 1.0)), Shape.of(batch), row, lambda: None)
    assert not notices and all(graphs._graphs.values()) and row.eq(2).all() and weight.grad.eq(1).all()


def test_an_update_that_gives_other_weights_is_given_up_with_a_notice(settings, monkeypatch):
    trainer, steps = prepare(settings, graphs=True)
    take, calls = trainer._update, []

    def unlike():
        calls.append(take())
        if len(calls) == WARM_UP + 2:  # the replay
            next(trainer.objective.parameters()).data += 1
        return calls[-1]

    monkeypatch.setattr(trainer, "_update", unlike)
    for step in steps:
        trainer.step(step)
    assert trainer.graphs.is_off and not (trainer.graphs._updates or trainer.graphs._graphs)
    (notice,) = trainer.notices
    assert notice == "CUDA graphs are off, which costs speed alone: the weights after a step differ"
    plain, _ = train(settings, graphs=False)
    found, expected = (one.objective.state_dict() for one in (trainer, plain))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


def test_an_update_that_does_not_fit_into_memory_twice_is_taken_without_a_graph():
    class Large:
        def clone(self):
            raise torch.OutOfMemoryError("no room for a copy")

    notices: list[str] = []
    graphs, taken = graphs_of(None, notify=notices.append), []

    def take() -> torch.Tensor:
        taken.append(True)
        return torch.tensor(1.0)

    for _ in range(WARM_UP + 2):
        assert graphs.update(True, take, lambda: [Large()]) == 1.0
    assert len(taken) == WARM_UP + 2 and graphs.is_off
    assert notices == ["CUDA graphs are off, which costs speed alone: no room for a copy"]
