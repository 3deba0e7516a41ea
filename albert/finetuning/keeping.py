"""Keep fine-tuned models: the best run on dev of each row of a comparison, or every run."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex

from albert.checkpoints import TASK_FILE
from albert.evaluation import metric_name
from albert.finetuning.cache import run_key
from albert.finetuning.compare import ModelRuns
from albert.finetuning.exporting import read_fine_tuned
from albert.finetuning.training import Candidate, Run
from albert.tasks import Kind
from data.errors import InputError

_WAITING = ".training"  # folder of weights from which one is chosen
TrainAgain = Callable[[Run], object]


@dataclass(frozen=True)
class KeptModels:
    """A folder with a folder for each kept model."""

    folder: Path
    every_seed: bool
    lines: list[str] = field(default_factory=list)  # what was kept, for a person
    names: dict[str, str] = field(default_factory=dict)  # by the folder's, which has no space or slash
    best: dict[tuple[str, bool], tuple[str, float]] = field(default_factory=dict)  # key and score on dev

    def place(self, key: str) -> Path:
        """Return where a run's weights are saved before one is chosen."""
        return self.folder / _WAITING / key

    def begin(self, key: str) -> Path:
        """Return the same place, without what a killed process left there."""
        shutil.rmtree(self.place(key), ignore_errors=True)
        return self.place(key)

    def drop_worse(self, candidate: Candidate, key: str, score: float) -> None:
        """Remove the weights of a run, or of the best before it if that is worse on dev, unless all are kept.

        The runs of a sweep, which are never scored on test, are compared with each other alone.
        """
        if self.every_seed:
            return
        model = (candidate.name, "test" in candidate.encoded)
        best, most = self.best.setdefault(model, (key, score))
        if key == best:  # also where a run that chose the rate or the number of seeds comes again
            return
        if score > most:
            self.best[model] = (key, score)
        shutil.rmtree(self.place(best if score > most else key), ignore_errors=True)

    def choose(self, models: Iterable[ModelRuns], train_again: TrainAgain) -> None:
        """Keep each row's best run on dev, or all its runs; `train_again` saves weights that are missing."""
        for model in models:
            self._choose(model, train_again)
        shutil.rmtree(self.folder / _WAITING, ignore_errors=True)

    def _choose(self, model: ModelRuns, train_again: TrainAgain) -> None:
        if model.candidates[0].data.task.kind is Kind.SIMILARITY:
            return
        if not all(candidate.is_own for candidate in model.candidates):
            self.lines.append(
                f"model {model.name} is compared only, and not kept: transformers trains it as well"
            )
            return
        each = len(model.runs) // len(model.candidates)
        runs = [(model.candidates[at // each], run) for at, run in enumerate(model.runs)]
        if not self.every_seed:
            runs = [max(runs, key=lambda pair: pair[1].dev_score)]
        for candidate, run in runs:
            name = f"{candidate.name}-seed-{run.result.seed}" if self.every_seed else model.name
            target = self.folder / self._folder_name(name)
            self._move(Run(candidate, run.result.seed, run.result.learning_rate), target, train_again)
            record = read_fine_tuned(target)
            scores = ", ".join(f"{metric_name(one)} {100 * v:.2f}" for one, v in record.dev.items())
            opened = record.opened_with(candidate.config)
            self.lines.append(f"model {target}: seed {run.result.seed}, dev {scores}; {opened}")

    def _folder_name(self, name: str) -> str:
        """A folder's name for a model's, and another for each model: `a b` and `a-b` would share one."""
        found = re.sub(r"[^\w.-]+", "-", name).strip("-.") or "model"
        while self.names.setdefault(found, name) != name:
            found += "-2"
        return found

    def _move(self, run: Run, target: Path, train_again: TrainAgain) -> None:
        key = run_key(*run)
        with suppress(InputError):
            if read_fine_tuned(target).run == key:
                return
        if target.exists() and not (target / TASK_FILE).is_file():
            raise InputError(f"{target} is there and no fine-tuned model: name another --run")
        if not (self.place(key) / TASK_FILE).is_file():
            train_again(run)
        if target.exists():  # removing takes longer than renaming, and this process may be killed
            os.replace(target, self.place(f"{key}-{token_hex(4)}"))
        os.replace(self.place(key), target)
