"""The real trainer with its loader, on shards that were carried to the machine."""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.gpu.scale import Scale

WARM_UP_SECONDS, SECONDS = 4.0, 3.0  # most graphs are captured in the warm-up
PROFILED = 20  # steps after that, for the share of time that the GPU computes


def train(scale: Scale, shards: tuple[Path, ...], init: str, batch_tokens: int) -> dict[str, object]:
    """Train some seconds from random weights; returns tokens a second, time spent waiting, and the losses."""
    from albert.batching import Loader, TrainingData
    from albert.pretraining import PretrainSettings, check_start
    from albert.pretraining.progress import StepRecord
    from albert.pretraining.start import phases
    from albert.pretraining.trainer import Trainer
    from albert.runtime import join

    with tempfile.TemporaryDirectory() as folder, join() as process:
        settings = PretrainSettings(
            run_folder=Path(folder) / "models" / "run", shards=shards, init=init, steps=10**6,
            batch_tokens=batch_tokens, held_out_share=0.02,
        )  # fmt: skip
        settings = replace(settings, running=replace(settings.running, accumulate=1))
        start = check_start(settings)
        trainer = Trainer(settings, start, 1e-4, process)
        data = TrainingData(list(start.streams.values()), phases(settings))
        loader = Loader(data, trainer.state.data, trainer.prepare)
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

        try:
            steps(0.2 if scale.is_small else WARM_UP_SECONDS)
            began, waited, tokens = time.perf_counter(), loader.waited, trainer.state.tokens
            first, graphs = trainer.state.step, captured(trainer)
            steps(0.2 if scale.is_small else SECONDS)
            seconds, count = time.perf_counter() - began, trainer.state.step - first
            tokens, waited = trainer.state.tokens - tokens, loader.waited - waited
            graphs = captured(trainer) - graphs
            busy = None if scale.is_small else _busy(lambda: steps(60, PROFILED))
        finally:
            loader.close()
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


def captured(trainer) -> int:
    """Count the graphs of batches so far."""
    return 0 if trainer.graphs is None else sum(g is not None for g in trainer.graphs._graphs.values())


def _busy(run) -> float:
    """The milliseconds of a GPU's kernels in a run."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        run()
        torch.cuda.synchronize()
    return sum(event.self_device_time_total for event in profiler.key_averages()) / 1e3
