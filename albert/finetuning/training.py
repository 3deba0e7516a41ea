"""Fine-tuning of one model on a task: seeds, rates and epochs, and the learner of each kind of task.

Devlin et al. 2019, section 4. The learning rate and the best epoch are chosen on dev; test is scored once a
seed, by the run at that rate and epoch. A start that does not leave chance level is given up and begun anew
with other random weights (Mosbach et al. 2021 find as many such starts as one in three for large models), and
counted.
"""

from __future__ import annotations

import copy
import hashlib
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn
from tqdm import tqdm

from albert.checkpoints import Source, find_source, load_pretrained, names_checkpoint
from albert.evaluation import EpochRecord, SeedResult, SweepPoint, leaves_chance, score
from albert.finetuning.choice import Choice
from albert.finetuning.classification import Classification
from albert.finetuning.encoding import Encoded
from albert.finetuning.learner import Learner, Predictions
from albert.finetuning.regression import Regression, Similarity
from albert.finetuning.settings import FineTuneSettings
from albert.finetuning.span import Span
from albert.finetuning.tagging import Tagging
from albert.learning_rate import linear_schedule
from albert.model import PRESETS, AlbertConfig
from albert.optim import adamw
from albert.runtime import bound_caches, give_back
from albert.tasks import Kind, TaskData
from albert.tasks import read_task as read_splits
from data.errors import InputError
from data.files import sha256

_PREDICTED_TOKENS = 8192  # to a batch
SeedAndRate = tuple[int, float]


def read_task(settings: FineTuneSettings) -> TaskData:
    """Every split of the task, checked. Raises InputError for files that do not fit it or each other."""
    return read_splits(settings.task, settings.split_paths)


def check_models(settings: FineTuneSettings) -> None:
    """Raise InputError or ConfigError for a model that cannot be fine-tuned, before any work."""
    for path in settings.models:
        if not names_checkpoint(str(path)):
            known = "a preset has no vocabulary and no weights" if path.name in PRESETS else "no such file"
            raise InputError(f"--model {path} is not a checkpoint folder: {known}")
        load_pretrained(path)


@dataclass(frozen=True, kw_only=True)
class SeedRun:
    """One model trained with one seed, and what it says of every example."""

    result: SeedResult
    dev: Predictions
    test: Predictions | None


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A model of the comparison with the task as its tokenizer has it."""

    settings: FineTuneSettings
    data: TaskData
    path: Path
    checksum: str  # sha256 of its weights' file
    config: AlbertConfig
    name: str
    learner: Learner
    encoded: dict[str, Encoded]

    def scores(self, split: str, predictions: Predictions) -> dict[str, float]:
        """By metric, the task's main one first."""
        return {
            metric: float(score(metric, predictions.statistics[metric].sum(0)))
            for metric in self.data.task.metrics
        }

    def without_test(self) -> Candidate:
        """The same where test is not there, for choices that it has no say in."""
        splits, encoded = (
            {name: one for name, one in parts.items() if name != "test"}
            for parts in (self.data.splits, self.encoded)
        )
        settings, data = replace(self.settings, test=None), replace(self.data, splits=splits)
        return replace(self, settings=settings, data=data, encoded=encoded)


def prepare(settings: FineTuneSettings, data: TaskData, model: int) -> Candidate:
    """Tokenize the task for the model of that number."""
    path = settings.models[model]
    pretrained, tokenizer = load_pretrained(path)
    length = min(settings.running.max_seq_length, pretrained.config.max_position_embeddings)
    learner = find_learner(data)
    encoded = {name: learner.encode(split.examples, tokenizer, length) for name, split in data.splits.items()}
    return Candidate(
        settings=settings,
        data=data,
        path=path,
        checksum=_checksum(find_source(str(path))),
        config=pretrained.config,
        name=settings.model_names()[model],
        learner=learner,
        encoded=encoded,
    )


def _checksum(source: Source) -> str:
    """sha256 of the weights' file, or of those of all of them where there are several."""
    digests = [sha256(path) for path in source.files]
    return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()


def fine_tune_model(
    candidate: Candidate, train: Callable[[Candidate, Sequence[SeedAndRate]], list[SeedRun]] | None = None
) -> tuple[list[SeedRun], tuple[SweepPoint, ...]]:
    """A model with every seed, at the learning rate that is best on dev with the first seed, of equal ones
    the first given; and all rates that were tried. `train` makes the runs that it is asked for, several at
    once if it can.
    """
    train = train or _one_by_one
    settings, metric = candidate.settings, candidate.data.task.metrics[0]
    first, *others = settings.seeds
    if candidate.data.task.kind is Kind.SIMILARITY:
        return train(candidate, [(first, settings.learning_rates[0])]), ()
    if len(settings.learning_rates) == 1:
        (rate,) = settings.learning_rates
        return train(candidate, [(seed, rate) for seed in settings.seeds]), ()
    tried = train(candidate.without_test(), [(first, rate) for rate in settings.learning_rates])
    best = max(tried, key=lambda run: run.result.dev[metric])
    rate = best.result.learning_rate
    if "test" in candidate.encoded:
        # what a sweep trains never sees test: the run that was chosen is made once more, to be scored on it
        runs = train(candidate, [(seed, rate) for seed in settings.seeds])
    else:
        runs = [best, *train(candidate, [(seed, rate) for seed in others])]
    return runs, tuple(
        SweepPoint(run.result.learning_rate, run.result.dev[metric], run.result.left_chance) for run in tried
    )


def _one_by_one(candidate: Candidate, wanted: Sequence[SeedAndRate]) -> list[SeedRun]:
    return [fine_tune_one(candidate, seed, rate) for seed, rate in wanted]


def usual_workers() -> int:
    """How many seeds to train at a time: one on a GPU, which is full with it, else as many as cores."""
    return 1 if torch.cuda.is_available() else torch.get_num_threads()


def worker_start(workers: int) -> Callable[[], None]:
    """What each of so many processes calls first: they share the threads of this one."""
    return partial(_become_worker, max(1, torch.get_num_threads() // workers))


def _become_worker(threads: int) -> None:
    torch.set_num_threads(threads)
    os.environ["TQDM_DISABLE"] = "1"  # the bars of several would be one above the other


def fine_tune_one(candidate: Candidate, seed: int, learning_rate: float) -> SeedRun:
    """Train a model with one seed and score it; a pure function of the arguments on a CPU."""
    started = time.perf_counter()
    bound_caches()
    if candidate.data.task.kind is Kind.SIMILARITY:
        model, training = _new_model(candidate, seed), None
        splits = [name for name in ("dev", "test") if name in candidate.encoded]
        predicted = {name: predict(candidate, model, name) for name in splits}
    else:
        training = _train_until_learnt(candidate, seed, learning_rate)
        predicted = {"dev": training.dev}
        if "test" in candidate.encoded:
            predicted["test"] = predict(candidate, training.model, "test")
    scores = {name: candidate.scores(name, one) for name, one in predicted.items()}
    result = SeedResult(
        seed=seed,
        learning_rate=learning_rate,
        best_epoch=training.best_epoch if training else 0,
        restarts=training.restarts if training else 0,
        left_chance=training.left_chance if training else True,
        dev=scores["dev"],
        test=scores.get("test"),
        curve=training.curve if training else (),
        seconds=time.perf_counter() - started,
        examples_per_second=training.examples_per_second if training else 0.0,
    )
    return SeedRun(result=result, dev=predicted["dev"], test=predicted.get("test"))


@dataclass(frozen=True, kw_only=True)
class _Training:
    """How a start went; the model has the weights of its best epoch."""

    model: nn.Module
    best_epoch: int
    dev: Predictions
    curve: tuple[EpochRecord, ...]
    left_chance: bool
    restarts: int
    examples_per_second: float


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _new_model(candidate: Candidate, seed: int) -> nn.Module:
    """The pretrained encoder with a head drawn from the seed."""
    pretrained, _ = load_pretrained(candidate.path)
    torch.manual_seed(seed)
    return candidate.learner.model(pretrained.encoder).to(_device())


def _train_until_learnt(candidate: Candidate, seed: int, learning_rate: float) -> _Training:
    """Train, again with another head and other dropout while the model stays at chance level."""
    for restarts in range(candidate.settings.optimizer.max_restarts + 1):
        training = _train(candidate, seed, learning_rate, restarts)
        if training.left_chance:
            break
    return training


def _train(candidate: Candidate, seed: int, learning_rate: float, restarts: int) -> _Training:
    settings, data = candidate.settings, candidate.data
    model = _new_model(candidate, int(np.random.default_rng([seed, restarts]).integers(2**31)))
    metric = data.task.metrics[0]
    best: tuple[float, int, Predictions, dict[str, torch.Tensor]] | None = None
    curve, seconds = [], 0.0
    epochs = _train_epochs(candidate, model, seed, learning_rate)
    for epoch in range(1, settings.epochs + 1):
        began = time.perf_counter()
        loss = next(epochs)
        seconds += time.perf_counter() - began
        dev = predict(candidate, model, "dev")
        value = candidate.scores("dev", dev)[metric]
        curve.append(EpochRecord(epoch, loss if math.isfinite(loss) else None, value))
        if best is None or value > best[0]:
            best = (value, epoch, dev, copy.deepcopy(model.state_dict()))
    value, best_epoch, dev, weights = best
    model.load_state_dict(weights)
    return _Training(
        model=model,
        best_epoch=best_epoch,
        dev=dev,
        curve=tuple(curve),
        left_chance=leaves_chance(data, data.splits["dev"], value),
        restarts=restarts,
        examples_per_second=settings.epochs * len(candidate.encoded["train"]) / seconds,
    )


def plan_batches(examples: int, settings: FineTuneSettings, seed: int) -> list[list[np.ndarray]]:
    """The training examples of each batch of each epoch, in an order that is the seed's.

    Nothing is padded, so there is nothing to gain from examples of like length in a batch; and there is much
    to lose: where labels go with length, as in LCQMC, such batches are of one label and little is learnt.
    """
    plan = []
    for epoch in range(settings.epochs):
        order = np.random.default_rng([seed, epoch]).permutation(examples)
        plan.append(np.array_split(order, range(settings.batch_size, examples, settings.batch_size)))
    return plan


def _train_epochs(candidate: Candidate, model: nn.Module, seed: int, learning_rate: float) -> Iterator[float]:
    """Train an epoch at a time, yielding its mean loss after each."""
    settings, learner, encoded = candidate.settings, candidate.learner, candidate.encoded["train"]
    device = next(model.parameters()).device
    optimizer = adamw(model, learning_rate)
    plan = plan_batches(len(encoded), settings, seed)
    steps = sum(len(batches) for batches in plan)
    warmup, step = round(steps * settings.optimizer.warmup_share), 0
    title = f"{candidate.name} seed {seed}"
    with tqdm(total=steps, desc=title, unit="step", disable=not sys.stderr.isatty(), leave=False) as bar:
        for batches in plan:
            model.train()
            losses = torch.zeros((), device=device)
            for examples in batches:
                for group in optimizer.param_groups:
                    group["lr"] = learning_rate * linear_schedule(step, steps, warmup)
                chosen = encoded.choose(examples)
                with _autocast(settings, device):
                    scores = model(chosen.batch.to(device))
                loss = learner.loss(scores, chosen, encoded)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                losses += loss.detach()
                step += 1
                bar.update()
                give_back(step)
            yield float(losses) / len(batches)


def _autocast(settings: FineTuneSettings, device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, torch.bfloat16, enabled=settings.running.precision == "bf16")


@torch.no_grad()
def predict(candidate: Candidate, model: nn.Module, split: str) -> Predictions:
    """What the model says of a split; computed by length, given in the split's order."""
    encoded, learner = candidate.encoded[split], candidate.learner
    device = next(model.parameters()).device
    model.eval()
    scores: np.ndarray | None = None
    for examples in _by_length(encoded.sizes):
        chosen = encoded.choose(examples)
        with _autocast(candidate.settings, device):
            found = model(chosen.batch.to(device)).float().cpu().numpy()
        if scores is None:
            total = encoded.offsets[-1] if learner.per_token else len(encoded.offsets) - 1
            scores = np.empty((total, found.shape[1]), dtype=np.float32)
        scores[chosen.tokens if learner.per_token else chosen.sequences] = found
    # a model that has come apart says nothing at all; it is right no more often than by accident
    scores = np.nan_to_num(scores)
    return learner.predict(scores, candidate.data.splits[split].examples, encoded)


def _by_length(sizes: np.ndarray) -> Iterator[np.ndarray]:
    order = np.argsort(sizes, kind="stable")
    ends = np.cumsum(sizes[order])
    return iter(np.split(order, np.flatnonzero(np.diff(ends // _PREDICTED_TOKENS)) + 1))


def find_learner(data: TaskData) -> Learner:
    """What the task's kind trains and predicts."""
    task = data.task
    match task.kind:
        case Kind.SINGLE | Kind.PAIR:
            return Classification(data.labels, task.metrics)
        case Kind.CHOICE:
            return Choice()
        case Kind.SPAN:
            train = data.splits["train"].examples
            return Span(task.answers, has_unanswerable=any(not one.answers for one in train))
        case Kind.TOKENS:
            return Tagging(data.labels)
        case Kind.REGRESSION:
            return Regression(task.metrics)
        case Kind.SIMILARITY:
            return Similarity(task.metrics)
    raise AssertionError(f"a task whose kind is not decided: {task}")
