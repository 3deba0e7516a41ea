"""The real trainer with its loader, on shards that were carried to the machine."""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.gpu.scale import Scale

STEPS, WARM_UP = 60, 20


def train(scale: Scale, shards: tuple[Path, ...], init: str, batch_tokens: int) -> dict[str, object]:
    """Train some steps from random weights; returns tokens a second, time spent waiting, and the losses."""
    from albert.batching import Loader, TrainingData
    from albert.pretraining import PretrainSettings, check_start
    from albert.pretraining.progress import StepRecord
    from albert.pretraining.start import phases
    from albert.pretraining.trainer import Trainer
    from albert.runtime import join

    steps, warm_up = (3, 1) if scale.is_small else (STEPS, WARM_UP)
    with tempfile.TemporaryDirectory() as folder, join() as process:
        settings = PretrainSettings(
            run_folder=Path(folder) / "models" / "run", shards=shards, init=init, steps=steps,
            batch_tokens=batch_tokens, held_out_share=0.02,
        )  # fmt: skip
        settings = replace(settings, running=replace(settings.running, accumulate=1))
        start = check_start(settings)
        trainer = Trainer(settings, start, 1e-4, process)
        data = TrainingData(list(start.streams.values()), phases(settings))
        loader = Loader(data, trainer.state.data, trainer.prepare)
        records: list[StepRecord] = []
        problem: str | None = None
        try:
            for step in range(steps):
                if step == warm_up:
                    records += trainer.review()[0]  # waits for the device
                    began, waited, tokens = time.perf_counter(), loader.waited, trainer.state.tokens
                trainer.step(next(loader))
                if trainer.is_review_due or step == steps - 1:
                    done, wrong = trainer.review()
                    records, problem = records + done, problem or wrong
            seconds = time.perf_counter() - began
        finally:
            loader.close()
    figures = [record.corpora[0] for record in records]
    return {
        "model": init,
        "batch_tokens": batch_tokens,
        "tokens_per_second": (trainer.state.tokens - tokens) / seconds,
        "waiting_for_data": (loader.waited - waited) / seconds,
        "losses": [round(one.mlm_loss / one.mlm_count, 4) for one in figures],
        "problem": problem,
        "notices": trainer.notices,  # such as of CUDA graphs that were given up
    }
