"""A pretraining run from its settings to its result."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from albert.batching import Loader
from albert.evaluation import PROBE_RULE, PROBE_SENTENCES, Probe, measure_layer_changes, probe_model
from albert.learning_rate import choose_learning_rate
from albert.pretraining.audits import Audits, audit_data, peak_memory
from albert.pretraining.evaluate import baselines_of, evaluate, load_sums, save_sums
from albert.pretraining.progress import ProgressLog
from albert.pretraining.result import PretrainResult, record_failure, write_result
from albert.pretraining.sentinel import RISE
from albert.pretraining.settings import START_FILE, PretrainSettings
from albert.pretraining.start import (
    BATCH_TOKENS,
    Start,
    check_same_run,
    check_start,
    prepare_folder,
    settled,
)
from albert.pretraining.state import Metrics, TrainerState, checkpoint_folder, step_of
from albert.pretraining.trainer import Trainer
from albert.runtime import Process, bound_caches, check_operators, give_back, join, notice_of_operators
from data.errors import ConfigError, InputError

OnCheckpoint = Callable[[TrainerState, Path, str], None]


def pretrain(
    settings: PretrainSettings,
    on_checkpoint: OnCheckpoint = lambda state, folder, status: None,
    check: Callable[[], None] = lambda: None,
) -> PretrainResult:
    """Train until `settings.steps`, resuming from the run's newest whole checkpoint if there is one.

    Only one call at a time may train a run: the flow holds a lock meanwhile, and nothing here does.
    Under torchrun this is one of several processes; the first one writes. In it, `on_checkpoint` is called
    with the state, the folder and the run's status, before the first step and after each checkpoint, and
    `check` after each step: it may raise.
    SIGTERM and Ctrl-C end the run after the current step, or with several GPUs within ten, with a checkpoint
    and the status "interrupted".
    Raises ConfigError or InputError; if the training had begun, `read_failure` returns the reason afterwards.
    """
    bound_caches()
    with (
        join() as process,
        _deterministic(settings.running.deterministic),
        _stop_signals(process) as stopping,
    ):
        check_operators(process.device)
        settings = settled(settings, process)
        start = check_start(settings)
        check_same_run(settings)
        with record_failure(settings.run_folder), _explain_errors(settings, process):
            process.wait_for_all()  # before the first one writes where the others read
            if process.is_first:
                prepare_folder(settings)
            process.wait_for_all()
            with closing(_Run(settings, start, process, on_checkpoint)) as run:
                return run.train(stopping, check)


@contextmanager
def _explain_errors(settings: PretrainSettings, process: Process) -> Iterator[None]:
    """Explain what to do about a full disk or lost processes."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise InputError(
            f"the disk of {settings.run_folder} is full ({error}): make room and run the same command again "
            "to resume from the newest checkpoint"
        ) from error
    except RuntimeError as error:
        if not process.is_lost(error):
            raise
        raise ConfigError(
            f"process {process.rank} of {process.world_size} lost the others: run the same command again to "
            "resume from the newest checkpoint"
        ) from error


@contextmanager
def _deterministic(asked: bool) -> Iterator[None]:
    if asked:
        # torch refuses matrix products on a GPU without it; cuBLAS reads it at the first one
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(asked or before)
    # every output is written, so that filling it before would be one more kernel each
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


@contextmanager
def _stop_signals(process: Process) -> Iterator[threading.Event]:
    """Set an event on SIGTERM or Ctrl-C during the block; say so of Ctrl-C. A second one acts as usual.

    A second SIGTERM does nothing: stopping a worker and its run sends one from each.
    """
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    before: dict[int, Any] = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)}

    def request(number: int, frame: object) -> None:
        event.set()
        if number == signal.SIGINT and process.is_first:
            # the signal may have come amid a print, which cannot begin another
            os.write(2, b"stopping after this step, with a checkpoint; Ctrl-C again stops at once\n")
        signal.signal(signal.SIGINT, before[signal.SIGINT])

    for number in before:
        signal.signal(number, request)
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Run:
    """One process of a run."""

    def __init__(
        self, settings: PretrainSettings, start: Start, process: Process, on_checkpoint: OnCheckpoint
    ):
        self.settings, self.process, self.on_checkpoint = settings, process, on_checkpoint
        self.report = start.report
        self.learning_rate = choose_learning_rate(
            settings.optimizer.name,
            settings.batch_tokens or BATCH_TOKENS["cpu"],
            from_checkpoint=start.report is not None,
            given=settings.learning_rate,
            given_for=settings.optimizer.reference_batch_tokens,
        )
        self.trainer = Trainer(settings, start, self.learning_rate.rate, process)
        damaged = self.trainer.resume()
        self.resumed_from = self.trainer.state.step
        self.log = ProgressLog(settings, self.trainer.state, speaks=process.is_first)
        self.notices = list(start.report.notices()) if start.report else []
        for notice in damaged:
            self.notify(notice)
        self._log_resuming()
        self.log.say(self._describe_passes())
        self.log.say(self.learning_rate.explanation)
        if settings.never_trained_share > settings.held_out_share:
            self.log.say(
                f"{settings.never_trained_share:.1%} of the documents are not trained on: as many are held "
                f"out of a corpus of the workspace; of this one {settings.held_out_share:.1%}; "
                "if that is a trial, jixu corpus remove NAME gives them back"
            )
        for warning in (self.learning_rate.warning, notice_of_operators(process.device)):
            if warning:
                self.notify(warning)
        self.loader = Loader(self.trainer.data, self.trainer.state.data, self.trainer.prepare)
        self.newest = checkpoint_folder(settings.run_folder, self.resumed_from)
        self.status: Literal["completed", "interrupted"] = "completed"
        self.seconds = 0.0  # trained in this process
        self.clock = time.perf_counter()  # up to when they are counted
        self.saved_at = time.monotonic()

    def _describe_passes(self) -> str:
        passes = zip(self.trainer.streams, self.trainer.data.passes(self.settings.steps), strict=True)
        read = [f"{name or 'the corpus'} about {times:.2g} times" for name, times in passes]
        return f"{self.settings.steps:,} steps read {', '.join(read)}"

    def _log_resuming(self) -> None:
        state, now = self.trainer.state, self.process.world_size
        if not state.history:
            return
        halved = f", at {state.rate_scale:g} of the learning rate" if state.rate_scale < 1 else ""
        if not self._is_over():
            self.log.say(f"resuming at step {state.step:,}{halved}")
        if state.processes != now:
            parts = self.settings.running.accumulate
            self.notify(
                f"up to step {state.step} the run had {state.processes} process(es), now it has {now}: a "
                f"step stays {parts} parts, so that batches and their order are the same"
            )

    def notify(self, notice: str) -> None:
        """Log a notice, and keep it for the report."""
        self.log.say(notice)
        self.notices.append(notice)

    def close(self) -> None:
        self.loader.close()
        self.log.close()

    def train(self, stopping: threading.Event, check: Callable[[], None]) -> PretrainResult:
        """Train to the end, or until `stopping` is set."""
        try:
            return self._train(stopping, check)
        except asyncio.CancelledError:  # Prefect raises it, anywhere, in a run whose slot was taken away
            trainer = self.trainer
            is_new = trainer.state.step > step_of(self.newest)
            if self.process.world_size == 1 and trainer.is_between_steps and is_new and not self._review():
                self._checkpoint("interrupted")
            raise

    def _train(self, stopping: threading.Event, check: Callable[[], None]) -> PretrainResult:
        self._begin()
        self.clock = time.perf_counter()
        stop = False
        while not (stop or self._is_over()):
            self.trainer.step(next(self.loader))
            check()
            now = time.perf_counter()
            self.trainer.state.seconds += now - self.clock
            self.seconds += now - self.clock
            self.clock = now
            if self.process.device.type == "cpu":
                give_back(self.trainer.state.step)
            stop = self._follow_up(stopping.is_set())
        return self._finish()

    def _follow_up(self, stop: bool) -> bool:
        """Review, evaluate and save what is due after a step; returns whether training must stop."""
        settings, trainer = self.settings, self.trainer
        step, at_end = trainer.state.step, trainer.state.step == settings.steps
        evaluation_due = self._is_evaluation_due
        interval = settings.running.checkpoint_every or settings.evaluation_interval
        checkpoint_due = at_end or step % interval == 0
        is_due = evaluation_due or checkpoint_due or trainer.is_review_due
        if not is_due and self.process.world_size > 1:
            return False  # they ask each other only after steps at which they meet anyway
        # the first process alone looks at the clock
        waited = time.monotonic() - self.saved_at if self.process.is_first else 0.0
        stop, overdue = self.process.any(stop, waited >= 60 * settings.running.checkpoint_minutes)
        if not (is_due or stop or overdue):
            return False
        if self._review():
            self.clock = time.perf_counter()
            return False
        checkpoint_due |= stop or overdue
        if evaluation_due:
            checkpoint_due |= trainer.judge(self._evaluate()) or self._is_stale()
        if checkpoint_due:
            self.status = "interrupted" if stop and not at_end else "completed"
            is_over = stop or at_end or self._is_stale()
            self._checkpoint(self.status if is_over else "running")
        if evaluation_due or checkpoint_due:
            self.clock = time.perf_counter()
        return stop

    def _begin(self) -> None:
        """Probe and evaluate the start, before the first step."""
        trainer = self.trainer
        if not self._is_over() and self.process.is_first:
            self.on_checkpoint(trainer.state, self.newest, "running")
        if not trainer.state.history:
            options = self.settings.evaluation
            scored = max(options.full_tokens, options.held_out_tokens)
            known = baselines_of(trainer.streams, scored) if self.process.is_first else {}
            if self.report is not None:
                own = trainer.streams[""]
                start = probe_model(trainer.model, own.probe_batches(PROBE_RULE, PROBE_SENTENCES))
                self.log.say(f"before training, {start.describe()}")
                start.check()
                known |= start.to_record()
            self._evaluate(known)
        began = Probe.from_record(trainer.state.history[0])
        if began is not None and (warning := began.warning()):
            self.notify(f"before training, {warning}")
        evaluated = {record["step"] for record in trainer.state.history if "held_out_mlm_loss" in record}
        if self._is_evaluation_due and trainer.state.step not in evaluated:
            self._follow_up(False)  # the run was cancelled in this evaluation

    @property
    def _is_evaluation_due(self) -> bool:
        step, settings = self.trainer.state.step, self.settings
        return step == settings.steps or step % settings.evaluation_interval == 0

    def _evaluate(self, known: Metrics | None = None) -> Metrics:
        trainer, options = self.trainer, self.settings.evaluation
        # at the start, and where it may be the last
        is_full = trainer.state.step in (0, self.settings.steps)
        is_full |= trainer.state.stale_evaluations + 1 == options.patience
        start = self.settings.run_folder / START_FILE
        is_start = trainer.state.step == 0
        figures, sums = evaluate(
            trainer.model,
            trainer.streams,
            options.held_out_tokens,
            self.process,
            full_tokens=options.full_tokens if is_full else 0,
            before=None if is_start else load_sums(start),
        )
        if is_start and self.process.is_first:
            save_sums(start, sums)
        record: Metrics = {"step": trainer.state.step, **figures, **(known or {})}
        self.log.record(record, trainer.state)
        return record

    def _is_worse(self) -> bool:
        """Whether a corpus's held-out loss is far above its lowest one."""
        trainer, tokens = self.trainer, self.settings.evaluation.held_out_tokens
        figures, _ = evaluate(trainer.model, trainer.streams, tokens, self.process)
        self.clock = time.perf_counter()
        for name, loss in figures.items():
            if name.split("@")[0] == "held_out_mlm_loss":
                lowest = min(record[name] for record in trainer.state.history if name in record)
                if not loss < lowest + RISE / 2:
                    return True
        self.log.say("the training loss rose, but no held-out loss: the text is harder here")
        return False

    def _review(self) -> bool:
        """Log the steps since the last review; returns whether training was rolled back."""
        done, wrong = self.trainer.review(self._is_worse)
        while self.trainer.notices:
            self.notify(self.trainer.notices.pop(0))
        for step in done:
            self.log.step(step, self.trainer.state)
        if wrong is None:
            return False
        self.loader.close()  # else it pads batches for the graphs of the new model
        self.notify(self.trainer.roll_back(wrong))
        self.log.roll_back(self.trainer.state)
        self.loader.begin(self.trainer.state.data)
        self._checkpoint("running")
        return True

    def _is_over(self) -> bool:
        return self.trainer.state.step >= self.settings.steps or self._is_stale()

    def _is_stale(self) -> bool:
        patience = self.settings.evaluation.patience
        return patience is not None and self.trainer.state.stale_evaluations >= patience

    def _checkpoint(self, status: str) -> None:
        self.newest = self.trainer.checkpoint()
        self.saved_at = time.monotonic()
        if self.process.is_first:
            self.on_checkpoint(self.trainer.state, self.newest, status)

    def _finish(self) -> PretrainResult:
        settings, trainer, state = self.settings, self.trainer, self.trainer.state
        if self._is_stale():
            self.notify(
                f"stopped at step {state.step}: {state.stale_evaluations} evaluations without a better one"
            )
        model = trainer.model
        with trainer.precision():
            held_out = next(trainer.streams[""].held_out_batches(settings.evaluation.held_out_tokens))
            layers = measure_layer_changes(model.encoder, held_out.to(self.process.device))
        best = checkpoint_folder(settings.run_folder, state.best.step) if state.best else None
        result = PretrainResult(
            run_folder=settings.run_folder,
            checkpoint=self.newest,
            best_checkpoint=best,
            status=self.status,
            steps=state.step,
            tokens=state.tokens,
            passes=self.trainer.data.passes(state.step)[0],
            tokens_per_second=state.tokens / max(state.seconds, 1e-9),
            resumed_from=self.resumed_from,
            history=state.history,
            notices=tuple(self.notices),
            learning_rate=self.learning_rate.rate,
            parameters=sum(p.numel() for p in model.parameters()),
            layers=layers,
            events=tuple(state.events),
            audits=self._audits(),
        )
        if self.process.is_first:
            write_result(result)
        return result

    def _audits(self) -> Audits:
        audits = audit_data(self.trainer.streams[""], self.trainer.data.rule_at(0, step=0))
        if not self.seconds:  # the run was complete before
            return audits
        return replace(
            audits,
            loader_wait_share=self.loader.waited / self.seconds,
            peak_memory_bytes=peak_memory(self.process.device),
        )
