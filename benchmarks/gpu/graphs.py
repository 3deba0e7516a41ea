"""The trainer with CUDA graphs beside single launches: the same losses and weights in every kind of run."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from unittest.mock import patch

import torch

from benchmarks.gpu.scale import Scale
from benchmarks.gpu.trainer import a_trainer, captured

STEPS = 60
# allowed of a step's loss, and of the way that the weights went; an H100's graphs differed by 6e-5 and 1e-3,
# a dropout that is the same at every step would by 3e-3 and 0.24
LOSS, WEIGHTS = 5e-4, 0.02
TOO_LARGE = 2.0**40  # a scale at which fp16 gradients overflow


@dataclass
class Outcome:
    """Some steps of a trainer."""

    losses: list[float]
    weights: list[torch.Tensor]
    start: list[torch.Tensor]
    notices: list[str]
    captured: int  # graphs of batches and of the update
    launched: int  # batches that ran kernel by kernel
    peak_bytes: int
    seconds: float


Train = Callable[..., Outcome]  # from random weights, or from the checkpoint of the run with this name


def check_graphs(scale: Scale, shards: tuple[Path, ...], case: str) -> dict[str, object]:
    """Check one of `CASES`; returns its figures. Raises AssertionError where they are wrong."""
    with tempfile.TemporaryDirectory() as folder:
        return CASES[case](scale, partial(_train, scale, shards, Path(folder)))


def _same(scale: Scale, train: Train, init: str, **running: object) -> dict[str, object]:
    """Compare with single launches; `running` options hold for both."""
    plain = train("plain", init, cuda_graphs="off", **running)
    return _beside(scale, train("graphed", init, **running), plain)


def _beside(scale: Scale, graphed: Outcome, plain: Outcome, *, with_graphs: bool = True) -> dict[str, object]:
    loss = max(abs(a - b) / b for a, b in zip(graphed.losses, plain.losses, strict=True))
    went = max(_distance(plain.weights, plain.start), 1e-30)
    figures = {
        "losses_differ_by": loss,
        "weights_differ_by": _distance(graphed.weights, plain.weights) / went,
        "last_loss": graphed.losses[-1],
        "graphs": graphed.captured,
        "launched_singly": graphed.launched,
        "notices": graphed.notices,
        "peak_gib": [round(one.peak_bytes / 2**30, 3) for one in (graphed, plain)],
    }
    assert loss <= LOSS and figures["weights_differ_by"] <= WEIGHTS, figures
    if not scale.is_small and with_graphs:
        assert graphed.captured and not graphed.notices, figures
    return figures


def _checkpointed(scale: Scale, train: Train) -> dict[str, object]:
    """Activations computed again give what kept ones give; there are no graphs then."""
    kept = train("kept", "bert-tiny", cuda_graphs="off")
    again = train("again", "bert-tiny", activation_checkpointing=True)
    return _beside(scale, again, kept, with_graphs=False)


def _resumed(scale: Scale, train: Train) -> dict[str, object]:
    """A run that is stopped and resumed ends with the weights of one that is not, to the last bit."""
    whole = train("whole", "tiny")
    first, second = train("two", "tiny", steps=_steps(scale) // 2), train("two", "tiny")
    differ = sum(not torch.equal(a, b) for a, b in zip(whole.weights, second.weights, strict=True))
    figures = {"tensors_that_differ": differ, "share": _distance(second.weights, whole.weights)}
    assert not differ and first.losses + second.losses == whole.losses, figures
    return figures


def _refused(scale: Scale, train: Train) -> dict[str, object]:
    """A capture that CUDA refuses ends the graphs, not the run, nor what torch draws and frees afterwards."""
    from albert.pretraining.trainer import Trainer

    passes = Trainer._passes

    def asks_for_a_number(self, batch, weights, figures):
        passes(self, batch, weights, figures)
        figures.sum().item()  # the host waits for the device, which a capture refuses

    plain = train("plain", "tiny", cuda_graphs="off")
    with patch.object(Trainer, "_passes", asks_for_a_number):
        refused = train("refused", "tiny")
    figures = _beside(scale, refused, plain, with_graphs=False)
    if not scale.is_small:
        drawn = torch.rand(1000, device=scale.device)
        torch.cuda.empty_cache()
        assert 0 < float(drawn.mean()) < 1 and len(refused.notices) == 1 and not refused.captured, figures
    return figures


def _overflow(scale: Scale, train: Train) -> dict[str, object]:
    """Gradients in fp16 that overflow cost their step and halve the scale, with graphs as without."""
    from albert.pretraining.trainer import Trainer

    set_model = Trainer._set_model

    def too_large(self, model):
        set_model(self, model)
        self.scaler = torch.amp.GradScaler(self.process.device.type, init_scale=TOO_LARGE)

    steps = 2 if scale.is_small else STEPS  # a CPU takes long over fp16
    with patch.object(Trainer, "_set_model", too_large):
        return _same(scale, train, "tiny", steps=steps, precision="fp16")


def _long(scale: Scale, train: Train) -> dict[str, object]:
    """Count what a longer run of small batches launches kernel by kernel, and the memory of its graphs."""
    found = train("long", "tiny", steps=_steps(scale, 500))
    return {
        "graphs": found.captured,
        "launched_singly": found.launched,
        "notices": found.notices,
        "peak_gib": round(found.peak_bytes / 2**30, 3),
        "milliseconds_a_step": 1e3 * found.seconds / len(found.losses),
    }


CASES: dict[str, Callable[..., dict[str, object]]] = {
    "bf16": partial(_same, init="tiny"),
    "dropout": partial(_same, init="bert-tiny"),
    "in parts": partial(_same, init="tiny", accumulate=2),
    "activation checkpointing": _checkpointed,
    "resumed": _resumed,
    "refused": _refused,
    "fp16 overflow": _overflow,
    "long": _long,
}


def _steps(scale: Scale, steps: int = STEPS) -> int:
    return 6 if scale.is_small else steps


def _train(
    scale: Scale, shards: tuple[Path, ...], folder: Path, name: str, init: str, *, steps: int = 0,
    **running: object,
) -> Outcome:  # fmt: skip
    """Train from random weights, or from the checkpoint of a run, which it leaves at the end."""
    tokens, all_steps = 256 if scale.is_small else 4096, _steps(scale, max(STEPS, steps))
    with a_trainer(shards, folder / name, init, tokens, 1e-3, steps=all_steps, **running) as trainer:
        trainer.resume()
        before = [p.detach().clone() for p in trainer.objective.parameters()]
        if not scale.is_small:
            torch.cuda.reset_peak_memory_stats()
        records = []
        with _counted(trainer) as launched:
            began, last = time.perf_counter(), steps or _steps(scale)
            for step in islice(trainer.data.steps(trainer.state.data), last - trainer.state.step):
                trainer.step(trainer.prepare(step))
                if trainer.is_review_due or trainer.state.step == last:
                    done, wrong = trainer.review()
                    assert wrong is None, wrong
                    records += done
            seconds = time.perf_counter() - began
        (folder / name).mkdir(exist_ok=True)
        trainer.checkpoint()
        updates = 0 if trainer.graphs is None else len(trainer.graphs._updates)
        return Outcome(
            losses=[f.mlm_loss / f.mlm_count for one in records for f in one.corpora.values()],
            weights=[p.detach().clone() for p in trainer.objective.parameters()],
            start=before,
            notices=list(trainer.notices),
            captured=captured(trainer) + updates,
            launched=launched[0],
            peak_bytes=0 if scale.is_small else torch.cuda.max_memory_allocated(),
            seconds=seconds,
        )


@contextmanager
def _counted(trainer):
    """Count the batches that no graph ran."""
    launched = [0]
    if trainer.graphs is None:
        yield launched
        return
    run = trainer.graphs.run

    def counted(*arguments: object) -> bool:
        was_run = run(*arguments)
        launched[0] += not was_run
        return was_run

    with patch.object(trainer.graphs, "run", counted):
        yield launched


def _distance(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> float:
    squares = [(a.double() - b.double()).square().sum() for a, b in zip(ours, theirs, strict=True)]
    return float(torch.stack(squares).sum().sqrt())
