"""Progress of a run: metrics.jsonl, a tracker, and lines or a progress bar."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from operator import add

from tqdm import tqdm

from albert.pretraining.settings import METRICS_FILE, PretrainSettings
from albert.pretraining.state import Figures, Metrics, TrainerState
from albert.pretraining.tracking import Tracker
from data.files import write_text

# entries of a record that only the report shows
_detail = re.compile(r"^probe_|^full_|_(low|high|documents|masked_tokens|pairs|seen|bigram_loss)(@|$)")


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One finished step, over all processes."""

    step: int
    tokens: int
    corpora: Mapping[int, Figures]  # by corpus in the step
    gradient_norm: float
    learning_rate: float


class ProgressLog:
    """Records the history, in the run's folder too, and shows a bar on a terminal or lines elsewhere.

    Only the first of several processes writes and shows anything (`speaks`).
    """

    def __init__(self, settings: PretrainSettings, state: TrainerState, *, speaks: bool):
        self.settings, self.speaks = settings, speaks
        self.path = settings.run_folder / METRICS_FILE
        self.on_terminal = speaks and sys.stderr.isatty()
        self.bar = tqdm(total=settings.steps, initial=state.step, unit="step", disable=not self.on_terminal)
        self.tracker = self._open_tracker(state)
        self._rewrite(state)

    def _open_tracker(self, state: TrainerState) -> Tracker:
        name = self.settings.running.tracker if self.speaks else None
        return Tracker(name, self.settings, state.step + 1 if state.history else 0, self.say)

    def _rewrite(self, state: TrainerState) -> None:
        """Write the history's records to the file, and begin to measure the speed after them."""
        if self.speaks:
            write_text(self.path, "".join(json.dumps(record) + "\n" for record in state.history))
        self.tokens, self.seconds = 0, state.seconds

    def step(self, step: StepRecord, state: TrainerState) -> None:
        """Add a finished step; write a record every `log_every` steps."""
        for figures in step.corpora.values():
            state.sums = Figures(*map(add, state.sums, figures))
        self.tokens += step.tokens
        self.bar.update()
        if step.step % self.settings.running.log_every and step.step != self.settings.steps:
            return
        sums = state.sums
        record: Metrics = {
            "step": step.step,
            "mlm_loss": sums.mlm_loss / max(sums.mlm_count, 1),
            "mlm_accuracy": sums.mlm_correct / max(sums.mlm_count, 1),
            "gradient_norm": step.gradient_norm,
            "learning_rate": step.learning_rate,
            "tokens_per_second": self.tokens / max(state.seconds - self.seconds, 1e-9),
        }
        if sums.sop_count:
            record["sop_accuracy"] = sums.sop_correct / sums.sop_count
        for name in ("boundary_loss", "contrast_loss"):
            if total := getattr(sums, name):
                record[name] = total / sums.mlm_count
        self.record(record, state)
        state.sums, self.tokens, self.seconds = Figures(), 0, state.seconds

    def record(self, record: Metrics, state: TrainerState) -> None:
        """Add a record to the history, the file and the screen."""
        state.history.append(record)
        if not self.speaks:
            return
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        shown = {name: value for name, value in record.items() if name != "step" and not _detail.search(name)}
        self.tracker.log(shown, int(record["step"]))
        line = "  ".join(f"{name} {_short(value)}" for name, value in shown.items())
        if self.on_terminal:
            self.bar.set_postfix_str(line)
        if not self.on_terminal or "held_out_mlm_loss" in record:
            self.say(f"step {record['step']}/{self.settings.steps}  {line}{self._time_left(state)}")

    def _time_left(self, state: TrainerState) -> str:
        if not state.step or state.step >= self.settings.steps:
            return ""
        seconds = state.seconds / state.step * (self.settings.steps - state.step)
        return f"  {timedelta(seconds=round(seconds))} left"

    def roll_back(self, state: TrainerState) -> None:
        """Show that training was rolled back to an earlier step."""
        self.bar.n = state.step
        self.bar.refresh()
        if self.tracker.sink is not None:
            self.tracker.close()
            self.tracker = self._open_tracker(state)
        self._rewrite(state)

    def say(self, line: str) -> None:
        """Print a line above the bar; a closed terminal is no reason to stop."""
        if self.speaks:
            with suppress(OSError):
                self.bar.write(line, file=sys.stderr)

    def close(self) -> None:
        self.bar.close()
        self.tracker.close()


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
