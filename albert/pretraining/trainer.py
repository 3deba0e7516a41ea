"""The trainer: one step of the optimiser, rollbacks after divergence, and checkpoints."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from albert.batching import DataState, Sender, Shape, StepData, TrainingData, flatten, unflatten, weights_of
from albert.checkpoints import load_model
from albert.evaluation import count_neighbours, frequencies_of, token_vectors
from albert.learning_rate import learning_rate_at
from albert.model import (
    IGNORED,
    Batch,
    PretrainingModel,
    PretrainingObjective,
    PretrainingOutput,
    start_from_corpus,
    word_width,
)
from albert.optim import make_optimizer
from albert.pretraining.graphs import StepGraphs
from albert.pretraining.progress import StepRecord
from albert.pretraining.result import TrainingDiverged
from albert.pretraining.sentinel import MOST_ROLLBACKS, RISE, Sentinel
from albert.pretraining.settings import PretrainSettings
from albert.pretraining.start import Start, build_model, phases
from albert.pretraining.state import (
    Best,
    Event,
    Figures,
    Metrics,
    TrainerState,
    checkpoint_folder,
    is_whole,
    list_checkpoints,
    load_tensors,
    read_trainer_state,
    remove_old_checkpoints,
    save_checkpoint,
)
from albert.runtime import Process, autocast, multiplies_bf16, usual_precision

# steps between fetches of their figures: on a GPU each fetch waits for all queued work
REVIEW_INTERVAL = {"cpu": 1, "cuda": 10}


class PreparedStep(NamedTuple):
    """A process's part of a step, on its device or on its way there."""

    data: StepData
    buffers: list[Tensor]  # of the batches, flat
    shapes: list[Shape]
    seen: tuple[Shape, ...]  # by the graphs, up to this step


class Trainer:
    """Model, optimiser and the state of a run, in one of the processes that train together."""

    def __init__(self, settings: PretrainSettings, start: Start, rate: float, process: Process):
        self.settings, self.streams, self.rate, self.process = settings, start.streams, rate, process
        self.data = TrainingData(
            list(start.streams.values()),
            phases(settings),
            accumulate=settings.running.accumulate or 1,
            rank=process.rank,
            world_size=process.world_size,
            mask_rates=settings.objective.mask_rates,
        )
        rules = [stream.info.rule for stream in start.streams.values()]
        self._span_boundary = any(rule.objective == "spanbert" for rule in rules)
        self._vocab_size = start.model.config.vocab_size
        # of the steps to be reviewed: number, tokens and rate, then figures and the gradient's norm
        self._pending: list[tuple[int, int, float, Tensor, Tensor]] = []
        self.notices: list[str] = []  # for the log
        self.sender = Sender(process.device)
        self.is_between_steps = True  # weights and state are those of the same step
        self.state = TrainerState(data=DataState.start(len(start.streams)))
        self._set_model(start.model)

    @property
    def model(self) -> PretrainingModel:
        return self.objective.model

    def _set_model(self, model: PretrainingModel) -> None:
        """Train this model, with a new optimiser."""
        torch.manual_seed(self.settings.seed)
        contrast = self.settings.objective.contrast_weight > 0
        self.objective = PretrainingObjective(model, span_boundary=self._span_boundary, contrast=contrast)
        self.objective.to(self.process.device).train()
        model.encoder.activation_checkpointing = self.settings.running.activation_checkpointing
        self.module: torch.nn.Module = self.objective
        if self.process.world_size > 1:
            self.module = DistributedDataParallel(self.objective, gradient_as_bucket_view=True)
            if self.settings.running.compress_gradients:
                # by its own name torch refuses it on a CPU, where gloo adds up bf16 too
                self.module.register_comm_hook(None, lambda group, bucket: bf16_compress_hook(group, bucket))
        self.optimizer = make_optimizer(
            self.settings.optimizer.name, self.objective, self.rate, self.settings.optimizer.weight_decay
        )
        self._number_format = self._choose_number_format()
        # gradients of a mean are small: this scale overflows none at first, and grows
        self.scaler = torch.amp.GradScaler(
            self.process.device.type, init_scale=2.0**12, enabled=self._number_format == "fp16"
        )
        self.graphs = self.make_graphs() if self.process.device.type == "cuda" else None

    def make_graphs(self) -> StepGraphs | None:
        """The graphs of a GPU's steps; none with several processes, or where there is a further loss.

        Nor with activation checkpointing: a capture cannot set back the generator, as it does.
        """
        running = self.settings.running
        is_off = running.cuda_graphs == "off" or running.activation_checkpointing
        if is_off or self.process.world_size > 1 or self._span_boundary or self.objective.contrast:
            return None
        if self._graphs_update:
            # as it is in the warm-up
            warnings.filterwarnings("ignore", "This instance was constructed with capturable=True")
            for group in self.optimizer.param_groups:  # a graph holds numbers, and would keep its first rate
                rate = torch.tensor(self.rate, device=self.process.device)
                group |= {"lr": rate, "capturable": True}
        return StepGraphs(
            self._passes,
            list(self.objective.parameters()),
            self.process.device,
            tokens=max(stream.batch_tokens for stream in self.streams.values()),
            longest=self.objective.model.config.max_position_embeddings,
            notify=self.notices.append,
            seen=self.state.graph_shapes,
        )

    @property
    def _graphs_update(self) -> bool:
        """Whether the optimiser's step may be a graph too."""
        return isinstance(self.optimizer, torch.optim.AdamW) and not self.scaler.is_enabled()

    def resume(self) -> list[str]:
        """Load the newest whole checkpoint, or start anew; returns a notice for each damaged one."""
        notices: list[str] = []
        for folder in list_checkpoints(self.settings.run_folder):
            if is_whole(folder):
                self._load(folder)
                return notices
            notices.append(f"{folder.name} is damaged: going on from the one before it")
        if self.settings.init_weights == "corpus":
            self._begin()
        return [*notices, "no checkpoint is whole: beginning anew"] if notices else []

    def _begin(self) -> None:
        """Set the weights that the run starts from."""
        # on the CPU, where every process gets the same weights
        model, _ = build_model(self.settings, self._vocab_size)
        if self.settings.init_weights == "corpus":
            own, seed = self.streams[""], self.settings.seed
            pairs, special_ids = count_neighbours(own, self._vocab_size), own.info.vocabulary.special_ids
            vectors = token_vectors(pairs, word_width(model.config), special_ids=special_ids, seed=seed)
            start_from_corpus(model, vectors, frequencies_of(pairs), seed=seed)
        self._set_model(model)

    def _load(self, folder: Path) -> None:
        model, _ = load_model(folder)
        self.state = read_trainer_state(folder)
        best = self.state.best
        if best and not checkpoint_folder(self.settings.run_folder, best.step).is_dir():
            self.state.best = None  # removed since, when a later one was better
        self._set_model(model)
        load_tensors(folder, self.objective, self.optimizer)
        if self.state.scaler and self.scaler.is_enabled():
            self.scaler.load_state_dict(self.state.scaler)

    def _last_good(self) -> Path | None:
        """The newest sound checkpoint whose losses had not begun to rise, else the oldest sound one."""
        whole = filter(is_whole, list_checkpoints(self.settings.run_folder))
        states = {folder: read_trainer_state(folder) for folder in whole}
        sound = [folder for folder, state in states.items() if not _is_ruined(state.history)]
        calm = [folder for folder in sound if Sentinel(states[folder].trends).is_calm]
        return next(iter(calm or reversed(sound)), None)

    def _choose_number_format(self) -> str:
        """The settings' format; "auto" stays what it was when the run began, on any machine."""
        chosen, device = self.settings.running.precision, self.process.device
        if chosen != "auto":
            return chosen
        is_old = device.type == "cuda" and not multiplies_bf16(device)
        usual = "fp16" if is_old else usual_precision(device)
        self.state.precision = self.state.precision or usual
        return self.state.precision

    def precision(self) -> torch.autocast:
        """The context a forward pass runs in."""
        return autocast(self.process.device, self._number_format)

    def prepare(self, data: StepData) -> PreparedStep:
        """Flatten a step's batches and begin to copy them to the device; the loader calls this in its thread.

        With each batch go its weights; of several processes its counts, as none knows those of the others.
        """
        weights = torch.tensor([_counts(batch) for batch in data.batches], dtype=torch.float64)
        if self.process.world_size == 1:
            weights = _shares(weights, weights.sum(0))
        batches = data.batches if self.graphs is None else [self.graphs.fit(b) for b in data.batches]
        buffers = [self.sender.send(flatten(b, w)) for b, w in zip(batches, weights, strict=True)]
        seen = () if self.graphs is None else tuple(self.graphs.seen)
        return PreparedStep(data, buffers, [Shape.of(batch) for batch in batches], seen)

    def step(self, prepared: PreparedStep) -> None:
        """Take one step of the optimiser.

        Losses are means over the whole step, so that they do not depend on which process has which batch.
        """
        state, settings, data = self.state, self.settings, prepared.data
        rate = self.rate * state.rate_scale
        rate *= learning_rate_at(settings.schedule.name, state.step, settings.steps, settings.warmup_steps)
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        # a graph writes gradients where they were when it was captured
        self.optimizer.zero_grad(set_to_none=self.graphs is None)
        shape = len(self.streams), len(Figures._fields)
        sums = torch.zeros(shape, dtype=torch.float64, device=self.process.device)
        self._add_gradients(prepared, sums)
        # only what is learnt trains the order head: else AdamW would decay it by its gradient of 0
        is_ordered = data.is_ordered and settings.objective.sop_weight > 0
        unused = [] if is_ordered else [(p, p.grad) for p in self._order_head]
        for p, _ in unused:
            p.grad = None
        self.is_between_steps = False
        if self.graphs is None or not self._graphs_update:
            norm = self._update()
        else:
            norm = self.graphs.update(is_ordered, self._update, self._updated)
        if self.graphs is not None:
            for p, gradient in unused:
                p.grad = gradient  # the next step's graph writes there
        state.step += 1
        state.tokens += data.tokens
        state.data, state.graph_shapes = data.after, prepared.seen
        self._pending.append((state.step, data.tokens, rate, sums, norm))
        self.is_between_steps = True

    def _update(self) -> Tensor:
        """Clip the gradients and take the optimiser's step; returns their norm."""
        self.scaler.unscale_(self.optimizer)
        parameters, longest = self.objective.parameters(), self.settings.optimizer.clip_norm
        norm = torch.nn.utils.clip_grad_norm_(parameters, longest)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return norm

    def _updated(self) -> list[Tensor]:
        """What `_update` changes."""
        parameters = list(self.objective.parameters())
        gradients = [p.grad for p in parameters if p.grad is not None]
        return [
            *parameters,
            *gradients,
            *(x for p in parameters for x in self.optimizer.state.get(p, {}).values()),
        ]

    def _add_gradients(self, prepared: PreparedStep, sums: Tensor) -> None:
        """Add the gradients of this process's batches, and their figures to the rows of their corpora."""
        data, buffers, shapes, _seen = prepared
        self.sender.receive(buffers)
        weights = [weights_of(buffer) for buffer in buffers]
        if self.process.world_size > 1:  # added up on the device: no host waits for another
            counts = torch.stack(weights).double()
            weights = list(_shares(counts, self.process.sum(counts.sum(0))))
        for number, (buffer, shape, corpus) in enumerate(zip(buffers, shapes, data.corpora, strict=True)):
            seed = partial(self._seed, data.after.batches, number)
            if self.graphs is None or not self.graphs.run(buffer, shape, sums[corpus], seed):
                seed()
                is_last = number == len(buffers) - 1
                is_shared = isinstance(self.module, DistributedDataParallel)
                with self.module.no_sync() if is_shared and not is_last else nullcontext():  # type: ignore[operator]
                    self._passes(unflatten(buffer, shape), weights[number], sums[corpus])

    @property
    def _order_head(self) -> list[torch.nn.Parameter]:
        """What only batches with order labels train."""
        model = self.objective.model
        return [*model.sop.parameters(), *model.encoder.pooler.parameters()]

    def _seed(self, batches: int, number: int) -> None:
        """Make dropout a function of the seed and the batch's number in the run, whichever process has it."""
        number = batches + number * self.process.world_size + self.process.rank
        seed = int(np.random.SeedSequence([self.settings.seed, number]).generate_state(1)[0])
        # `torch.manual_seed` asks for every kind of device that torch knows, which takes half a millisecond
        torch.default_generator.manual_seed(seed)
        if self.process.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def _passes(self, batch: Batch, weights: Tensor, figures: Tensor) -> None:
        """Add a batch's part of the step's gradient, and its figures to its corpus's.

        The weights are the batch's shares of the step's masked tokens and of its ordered sequences.
        """
        settings = self.settings.objective
        with self.precision():
            output: PretrainingOutput = self.module(batch)
        loss = weights[0] * output.mlm_loss
        if output.sop_loss is not None:
            loss = loss + (settings.sop_weight * weights[1]) * output.sop_loss
        if output.boundary_loss is not None:
            loss = loss + weights[0] * output.boundary_loss
        if output.contrast_loss is not None:
            loss = loss + (settings.contrast_weight * weights[0]) * output.contrast_loss
        if self.process.world_size > 1 and output.sop_loss is None:
            # the processes wait for every parameter's gradient
            loss = loss + 0 * torch.stack([p.sum() for p in self._order_head]).sum()
        # gradients are averaged over the processes
        self.scaler.scale(loss * self.process.world_size).backward()
        _add(figures, output)

    @property
    def is_review_due(self) -> bool:
        """Whether it is time to fetch the figures of the steps since the last review."""
        is_logged = self.state.step % self.settings.running.log_every == 0
        return is_logged or len(self._pending) >= REVIEW_INTERVAL[self.process.device.type]

    def review(self, is_worse: Callable[[], bool] = lambda: True) -> tuple[list[StepRecord], str | None]:
        """The good steps since the last review, and what is wrong with the first bad one, if there is any.

        Every process must call it after the same step. `is_worse`: see `Sentinel`.
        """
        if not self._pending:
            return [], None
        # a scaled gradient may overflow: its step was not taken, and the scale halved
        may_overflow = self.scaler.is_enabled() and self.scaler.get_scale() >= 1
        sums = self.process.sum(torch.stack([sums for *_, sums, _ in self._pending])).tolist()
        norms = torch.stack([norm for *_, norm in self._pending]).tolist()
        sentinel, done, wrong = Sentinel(self.state.trends, is_worse), [], None
        for (step, tokens, rate, *_), by_corpus, norm in zip(self._pending, sums, norms, strict=True):
            figures = {i: Figures(*row) for i, row in enumerate(by_corpus) if Figures(*row).mlm_count}
            losses = {i: f.mlm_loss / f.mlm_count for i, f in figures.items()}
            checked = 0.0 if may_overflow else norm
            # steps are counted from 1, and what is masked changes from one to the next
            before, now = (self.data.rule_at(0, n).rate for n in (step - 2, step - 1))
            wrong = sentinel.check(losses, checked, is_harder=now > before)
            if wrong:
                break
            done.append(StepRecord(step, tokens, figures, norm, rate))
        self._pending = []
        return done, wrong

    def roll_back(self, wrong: str) -> str:
        """Roll back to the last good checkpoint or the start, at half the rate, and skip the data since.

        Returns a notice. Raises TrainingDiverged after too many rollbacks.
        """
        before, good = self.state, self._last_good()
        if before.rollbacks == MOST_ROLLBACKS:
            left = f"{good.name} is sound" if good else "No checkpoint is sound"
            raise TrainingDiverged(
                f"training diverged for the {MOST_ROLLBACKS + 1}th time, at step {before.step} and "
                f"1/{1 / before.rate_scale:.0f} of the learning rate: {wrong}. {left}. Start another run "
                "with a lower --learning-rate, and look at what the corpus holds"
            )
        if good is not None:
            self._load(good)
        else:
            self.state = TrainerState(history=[record for record in before.history if record["step"] == 0])
            self._begin()
        self.process.wait_for_all()  # before the first one writes where the others read
        text = (
            f"step {before.step}: {wrong}. Back to step {self.state.step} at half the learning rate, without "
            "the batches since"
        )
        batches = self.state.step * (self.settings.running.accumulate or 1)
        self.state.data = before.data.rolled_back_to(batches)
        self.state.rollbacks, self.state.rate_scale = before.rollbacks + 1, before.rate_scale / 2
        self.state.events = [*before.events, Event(before.step, "rollback", text)]
        self.state.trends = {}
        return text

    def checkpoint(self) -> Path:
        """Write a checkpoint, in the first process, and remove the oldest."""
        settings, state = self.settings, self.state
        state.processes, state.scaler = self.process.world_size, self.scaler.state_dict()
        if self.process.is_first:
            tokenizer = settings.tokenizer_folder
            save_checkpoint(settings.run_folder, self.objective, self.optimizer, state, tokenizer)
            best = state.best.step if state.best else None
            remove_old_checkpoints(settings.run_folder, state.step, settings.running.keep_checkpoints, best)
        self.process.wait_for_all()
        return checkpoint_folder(settings.run_folder, state.step)

    def judge(self, record: Metrics) -> bool:
        """Compare an evaluation with the best one; returns whether it is better."""
        state, start = self.state, self.state.history[0]
        loss = record["held_out_mlm_loss"]
        forgotten = [record[name] - start[name] for name in record if name.startswith("held_out_mlm_loss@")]
        bound = self.settings.evaluation.max_forgetting
        allowed = bound is None or all(rise <= bound for rise in forgotten)
        if allowed and loss < (state.best.loss if state.best else math.inf):
            state.best, state.stale_evaluations = Best(state.step, loss), 0
            return True
        state.stale_evaluations += 1
        return False


def _is_ruined(history: list[Metrics]) -> bool:
    """Whether every held-out loss was far above that of the start when last evaluated."""
    evaluated = [record for record in history if "held_out_mlm_loss" in record]
    names = [name for name in (evaluated or [{}])[0] if name.partition("@")[0] == "held_out_mlm_loss"]
    return bool(names) and all(not evaluated[-1][n] < evaluated[0][n] + RISE / 2 for n in names)


def _shares(counts: Tensor, totals: Tensor) -> Tensor:
    """Each batch's shares [batches, 2] fp32 of the whole step's masked tokens and ordered sequences."""
    return (counts / totals.clamp_min(1)).float()


def _counts(batch: Batch) -> tuple[int, int]:
    """Masked tokens and sequences with an order label, of a batch in the host's memory."""
    ordered = 0 if batch.sop_labels is None else int(np.count_nonzero(batch.sop_labels.numpy() != IGNORED))
    return len(batch.masked()[1]), ordered


@torch.no_grad()
def _add(sums: Tensor, output: PretrainingOutput) -> None:
    """Add a batch to its corpus's row, in the order of `Figures`."""
    sums[0] += output.mlm_loss.double() * output.mlm_count
    sums[1] += output.mlm_correct
    sums[2] += output.mlm_count
    if output.sop_correct is not None and output.sop_count is not None:
        sums[3] += output.sop_correct
        sums[4] += output.sop_count
    for column, loss in ((5, output.boundary_loss), (6, output.contrast_loss)):
        if loss is not None:
            sums[column] += loss.double() * output.mlm_count
