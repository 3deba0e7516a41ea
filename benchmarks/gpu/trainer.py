"""The real trainer with its loader, on shards that were carried to the machine."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from benchmarks.gpu.scale import Scale

if TYPE_CHECKING:
    from albert.pretraining.progress import StepRecord
    from albert.pretraining.trainer import Trainer

WARM_UP_SECONDS, SECONDS = 4.0, 3.0  # most graphs are captured in the warm-up
PROFILED = 20  # steps after that, for the share of time that the GPU computes


@contextmanager
def a_trainer(
    shards: tuple[Path, ...], folder: Path, init: str, batch_tokens: int, rate: float, *, steps: int = 10**6,
    **running: object,
) -> Iterator[Trainer]:  # fmt: skip
    """Make a trainer of random weights."""
    from albert.pretraining import PretrainSettings, check_start
    from albert.pretraining.trainer import Trainer
    from albert.runtime import join

    settings = PretrainSettings(
        run_folder=folder, shards=shards, init=init, steps=steps, batch_tokens=batch_tokens,
        held_out_share=0.02, running={"accumulate": 1, **running},
    )  # fmt: skip
    with join() as process:
        yield Trainer(settings, check_start(settings), rate, process)


def train(scale: Scale, shards: tuple[Path, ...], init: str, batch_tokens: int) -> dict[str, object]:
    """Train some seconds from random weights; returns tokens a second, time spent waiting, and the losses."""
    from albert.batching import Loader

    with (
        tempfile.TemporaryDirectory() as folder,
        a_trainer(shards, Path(folder) / "models" / "run", init, batch_tokens, 1e-4) as trainer,
        closing(Loader(trainer.data, trainer.state.data, trainer.prepare)) as loader,
    ):
        records: list[StepRecord] = []
        problems: list[str | None] = []

        def steps(seconds: float, most: int = 10**6) -> None:
            until = time.perf_counter() + seconds
            for number in range(most):
                trainer.step(next(loader))
                if trainer.is_review_due or number == most - 1 or time.perf_counter() > until:
                    done, wrong = trainer.review()  # waits for the device
                    records.extend(done)
                    problems.append(wrong)
                    if time.perf_counter() > until:
                        return

        steps(0.2 if scale.is_small else WARM_UP_SECONDS)
        began, waited, tokens = time.perf_counter(), loader.waited, trainer.state.tokens
        first, graphs = trainer.state.step, captured(trainer)
        steps(0.2 if scale.is_small else SECONDS)
        seconds, count = time.perf_counter() - began, trainer.state.step - first
        tokens, waited = trainer.state.tokens - tokens, loader.waited - waited
        graphs = captured(trainer) - graphs
        busy = None if scale.is_small else _busy(lambda: steps(60, PROFILED))
    losses = [one.mlm_loss / one.mlm_count for record in records for one in record.corpora.values()]
    return {
        "model": init,
        "batch_tokens": batch_tokens,
        "tokens_per_second": tokens / seconds,
        "milliseconds_a_step": 1e3 * seconds / count,
        "waiting_for_data": waited / seconds,
        "busy_milliseconds_a_step": busy and busy / PROFILED,
        "graphs_captured_meanwhile": graphs,  # each takes about a second of the time
        "losses": [round(x, 4) for x in losses[:: max(1, len(losses) // 40)]],
        "problem": next(filter(None, problems), None),
        "notices": trainer.notices,  # such as of CUDA graphs that were given up
    }


def captured(trainer: Trainer) -> int:
    """Count the graphs of batches so far."""
    return 0 if trainer.graphs is None else sum(g is not None for g in trainer.graphs._graphs.values())


def _busy(run) -> float:
    """The milliseconds of a GPU's kernels in a run."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        run()
        torch.cuda.synchronize()
    return sum(event.self_device_time_total for event in profiler.key_averages()) / 1e3
