"""Fine-tuning of one model on a task with its seeds, learning rates and epochs.

Devlin et al. 2019, section 4. The learning rate and the best epoch are chosen on dev; test is scored once for
each seed, at that rate and epoch. A start that does not leave chance level is counted and repeated with other
random weights (for large models Mosbach et al. 2021 find up to one such start in three).
"""

from __future__ import annotations

import copy
import math
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from albert.checkpoints import AutoEncoder, load_start, names_checkpoint
from albert.evaluation import EpochRecord, SeedResult, SweepPoint, leaves_chance, metric_name, score
from albert.finetuning.encoding import Encoded, Predictions
from albert.finetuning.exporting import FineTuned, save_fine_tuned
from albert.finetuning.learner import Learner, find_learner
from albert.finetuning.regression import Regression
from albert.finetuning.settings import FineTuneSettings
from albert.finetuning.span import Span
from albert.learning_rate import learning_rate_at
from albert.model import PRESETS, AlbertConfig, initialize
from albert.optim import adamw
from albert.runtime import autocast, bound_caches, default_device, give_back
from albert.tasks import Kind, SpanExample, TaskData
from albert.tasks import read_task as read_splits
from data.errors import InputError

_PREDICTED_TOKENS = 8192  # in a batch
QUIET_SECONDS = 30  # between two lines about a run
UNTRAINED = SeedResult(seed=0, learning_rate=0.0, dev={}, seconds=0.0)


def read_task(settings: FineTuneSettings) -> TaskData:
    """Read and check every split. Raises InputError for files that do not fit the task or each other."""
    return read_splits(settings.task, settings.split_paths, drop_overlap=settings.drop_overlap)


def check_models(settings: FineTuneSettings) -> None:
    """Raise InputError or ConfigError for a model that cannot be fine-tuned, or is a recipe's run twice."""
    weights = []
    for path in settings.models:
        if not names_checkpoint(str(path)):
            why = (
                "a preset has no vocabulary and no weights"
                if path.name in PRESETS
                else "no such folder, and no hf:OWNER/NAME"
            )
            raise InputError(f"--model {path} is not a checkpoint folder: {why}")
        weights.append(load_start(path).source.sha256)
    for name, numbers in settings.recipes().items():
        if len({weights[at] for at in numbers}) < len(numbers):
            raise InputError(f"{name} names one pretraining run twice: two checkpoints have the same weights")


@dataclass(frozen=True, kw_only=True)
class SeedRun:
    """One model trained with one seed, and its predictions."""

    result: SeedResult
    dev: Predictions
    test: Predictions | None

    @property
    def dev_score(self) -> float:
        """The task's main metric on dev."""
        return next(iter(self.result.dev.values()))


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A model of the comparison, with the task encoded by its tokenizer."""

    settings: FineTuneSettings
    data: TaskData
    path: Path
    checksum: str  # sha256 of its weights' file
    config: AlbertConfig
    name: str
    learner: Learner
    encoded: dict[str, Encoded]
    is_own: bool = True  # False: transformers' model, which is compared but not kept
    is_pretrained: bool = True  # False: its weights are drawn from the seed

    def read(self, scores: np.ndarray, split: str) -> Predictions:
        """Turn the scores of a split's sequences or tokens into predictions."""
        return self.learner.predict(scores, self.data.splits[split].examples, self.encoded[split])

    def scores(self, predictions: Predictions) -> dict[str, float]:
        """Score predictions by metric, the task's main one first."""
        return {
            metric: float(score(metric, predictions.statistics[metric].sum(0)))
            for metric in self.data.task.metrics
        }

    def without_test(self) -> Candidate:
        """Leave out the test split, for choices that must not depend on it."""
        splits = {name: split for name, split in self.data.splits.items() if name != "test"}
        return replace(
            self,
            settings=replace(self.settings, test=None),
            data=replace(self.data, splits=splits),
            encoded={name: self.encoded[name] for name in splits},
        )


def prepare(settings: FineTuneSettings, data: TaskData, model: int) -> Candidate:
    """Encode the task for the model of an index."""
    settings = settings.fitted(data)
    path = settings.models[model]
    start = load_start(path)
    length = min(settings.running.max_seq_length, start.encoder.config.max_position_embeddings)
    running = replace(settings.running, max_seq_length=length)
    if not start.is_own and running.precision == "auto":
        # some of transformers' models fail in bf16: DeBERTa masks with the smallest number of fp32
        running = replace(running, precision="fp32")
    train = data.splits["train"].examples if "train" in data.splits else ()
    unanswerable = any(isinstance(one, SpanExample) and not one.answers for one in train)
    learner = find_learner(data.task, data.labels, running.pooling, unanswerable)
    splits = data.splits.items()
    encoded = {name: learner.encode(split.examples, start.tokenizer, length) for name, split in splits}
    if isinstance(learner, Regression) and "train" in encoded:
        learner = learner.fitted(encoded["train"].targets)
    return Candidate(
        settings=replace(settings, running=running),
        data=data,
        path=path,
        checksum=start.source.sha256,
        config=start.encoder.config,
        is_own=start.is_own,
        name=settings.model_names()[model],
        learner=learner,
        encoded=encoded,
    )


class Run(NamedTuple):
    """What is trained."""

    candidate: Candidate
    seed: int
    learning_rate: float


Train = Callable[[Sequence[Run]], list[SeedRun]]
Trained = tuple[list[SeedRun], tuple[SweepPoint, ...]]  # a model's runs, and the rates that were tried


def one_by_one(runs: Sequence[Run]) -> list[SeedRun]:
    """Train the runs in this process."""
    return [fine_tune_one(*run) for run in runs]


def fine_tune_models(candidates: Sequence[Candidate], train: Train) -> list[Trained]:
    """Train each model with every seed.

    A model's learning rate is the one that is best on dev with the first seed, the first of equal ones. The
    rates of all models are tried at once, and then all seeds, so that no worker waits for the end of a model.
    """
    tried = _train_each([_sweep(candidate) for candidate in candidates], train)
    plans = []
    for candidate, runs in zip(candidates, tried, strict=True):
        best = max(runs, key=lambda run: run.dev_score, default=None)
        rate = best.result.learning_rate if best else candidate.settings.learning_rates[0]
        plans.append([Run(candidate, seed, rate) for seed in _seeds(candidate)])
    points = [
        tuple(SweepPoint(run.result.learning_rate, run.dev_score, run.result.left_chance) for run in runs)
        for runs in tried
    ]
    return list(zip(_train_each(plans, train), points, strict=True))


def _train_each(plans: Sequence[Sequence[Run]], train: Train) -> list[list[SeedRun]]:
    """Train the runs of all plans at once; returns those of each."""
    runs = [run for plan in plans for run in plan]
    trained = iter(train(runs) if runs else ())
    return [list(islice(trained, len(plan))) for plan in plans]


def _sweep(candidate: Candidate) -> list[Run]:
    """The first seed with each learning rate, if there are several; never with test."""
    first, rates = _seeds(candidate)[0], candidate.settings.learning_rates
    if len(rates) == 1 or _is_read_alone(candidate):
        return []
    return [Run(candidate.without_test(), first, rate) for rate in rates]


def _seeds(candidate: Candidate) -> tuple[int, ...]:
    seeds = candidate.settings.seeds
    assert seeds
    return seeds[:1] if _is_read_alone(candidate) else seeds


def _is_read_alone(candidate: Candidate) -> bool:
    """Whether nothing is drawn from a seed: its sentences are compared by a checkpoint as it is."""
    return candidate.data.task.kind is Kind.SIMILARITY and candidate.is_pretrained


def usual_workers() -> int:
    """The runs to train at a time: one on a GPU, which is then busy, else one for each core."""
    return 1 if torch.cuda.is_available() else torch.get_num_threads()


def worker_start(workers: int) -> Callable[[], None]:
    """The initializer of `workers` processes, which share the threads of this one."""
    return partial(torch.set_num_threads, max(1, torch.get_num_threads() // workers))


def fine_tune_one(
    candidate: Candidate, seed: int, learning_rate: float, folder: Path | None = None
) -> SeedRun:
    """Train a model with one seed and score it; what is trained is saved in `folder`, named by the run's key.

    On a CPU the result depends on the arguments and the number of threads alone.
    """
    started = time.perf_counter()
    bound_caches()
    is_trained = candidate.data.task.kind is not Kind.SIMILARITY
    if not is_trained:
        model, result = _new_model(candidate, seed), UNTRAINED
    else:
        # a model that stays at chance level starts again with another head and other dropout
        for restarts in range(candidate.settings.optimizer.max_restarts + 1):
            model, result = _train(candidate, seed, learning_rate, restarts)
            if result.left_chance:
                break
    result = replace(result, seed=seed, learning_rate=learning_rate)
    run = scored_run(candidate, result, partial(_score, candidate, model), started)
    if folder is not None and candidate.is_own and is_trained:
        if isinstance(candidate.learner, Regression):
            candidate.learner.give_units(cast(nn.Linear, model.classifier))
        save_fine_tuned(model, _record(candidate, run.result, folder.name), folder)
    return run


def scored_run(
    candidate: Candidate, result: SeedResult, scores_of: Callable[[str], np.ndarray], started: float
) -> SeedRun:
    """A run that began at `started`, with what the scores of dev, and of test if there is one, predict."""
    dev = candidate.read(scores_of("dev"), "dev")
    test = candidate.read(scores_of("test"), "test") if "test" in candidate.encoded else None
    of_dev, of_test = candidate.scores(dev), candidate.scores(test) if test else None
    # dev is scored after every epoch of every start, so its best score leaves chance level by chance
    split = candidate.data.splits["test" if test else "dev"]
    result = replace(
        result,
        left_chance=leaves_chance(candidate.data, split, next(iter((of_test or of_dev).values()))),
        dev=of_dev,
        test=of_test,
        seconds=time.perf_counter() - started,
    )
    return SeedRun(result=result, dev=dev, test=test)


def _record(candidate: Candidate, result: SeedResult, key: str) -> FineTuned:
    return FineTuned(
        task=candidate.data.task,
        labels=candidate.data.labels,
        has_unanswerable=isinstance(candidate.learner, Span) and candidate.learner.has_unanswerable,
        running=candidate.settings.running,
        checkpoint=str(candidate.path),
        texts=len(candidate.data.splits["train"].examples[0].texts()),
        checksum=candidate.checksum,
        run=key,
        seed=result.seed,
        learning_rate=result.learning_rate,
        best_epoch=result.best_epoch,
        dev=result.dev,
    )


def _new_model(candidate: Candidate, seed: int) -> nn.Module:
    """The encoder with a head drawn from the seed."""
    torch.manual_seed(seed)  # for a pooler that the checkpoint lacks
    encoder = load_start(candidate.path).encoder
    torch.manual_seed(seed)
    if not candidate.is_pretrained and isinstance(encoder, AutoEncoder):
        encoder.draw_weights()
    elif not candidate.is_pretrained:
        initialize(encoder, candidate.config.initializer_range)
    return candidate.learner.model(encoder).to(default_device())


def _train(
    candidate: Candidate, seed: int, learning_rate: float, restarts: int
) -> tuple[nn.Module, SeedResult]:
    """The model with the weights of its best epoch, and its result without scores."""
    settings, data = candidate.settings, candidate.data
    model = _new_model(candidate, int(np.random.default_rng([seed, restarts]).integers(2**31)))
    metric = data.task.metrics[0]
    best_value, best_epoch = -math.inf, 0
    weights: dict[str, Tensor] = {}
    curve, seconds, told = [], 0.0, time.monotonic()
    for epoch, (loss, took) in enumerate(_train_epochs(candidate, model, seed, learning_rate), 1):
        seconds += took
        value = candidate.scores(predict(candidate, model, "dev"))[metric]
        curve.append(EpochRecord(epoch, loss if math.isfinite(loss) else None, value))
        if value > best_value:
            best_value, best_epoch = value, epoch
            weights = copy.deepcopy(model.state_dict())
        if time.monotonic() - told >= QUIET_SECONDS:
            told = time.monotonic()
            place = f"{candidate.name}, seed {seed} at {learning_rate:g}: epoch {epoch} of {settings.epochs}"
            with suppress(OSError):  # a closed terminal is no reason to stop
                tqdm.write(f"{place}, dev {metric_name(metric)} {100 * value:.2f}", file=sys.stderr)
        if epoch - best_epoch >= settings.optimizer.patience:
            break
    model.load_state_dict(weights)
    result = replace(
        UNTRAINED,
        best_epoch=best_epoch,
        restarts=restarts,
        left_chance=leaves_chance(data, data.splits["dev"], best_value),
        curve=tuple(curve),
        examples_per_second=len(curve) * len(candidate.encoded["train"]) / seconds,
    )
    return model, result


def plan_batches(examples: int, settings: FineTuneSettings, seed: int) -> list[list[np.ndarray]]:
    """The training examples of each batch of each epoch, in the seed's order.

    Nothing is padded, so batches of examples of similar length gain nothing; and they lose much: if labels
    depend on length, as in LCQMC, such batches hold one label and little is learnt.
    """
    assert settings.epochs
    plan = []
    for epoch in range(settings.epochs):
        order = np.random.default_rng([seed, epoch]).permutation(examples)
        plan.append(np.array_split(order, range(settings.batch_size, examples, settings.batch_size)))
    return plan


def _train_epochs(
    candidate: Candidate, model: nn.Module, seed: int, learning_rate: float
) -> Iterator[tuple[float, float]]:
    """Train an epoch at a time, yielding its mean loss and its seconds."""
    settings, learner, encoded = candidate.settings, candidate.learner, candidate.encoded["train"]
    device = next(model.parameters()).device
    optimizer = adamw(model, learning_rate)
    plan = plan_batches(len(encoded), settings, seed)
    steps = sum(len(batches) for batches in plan)
    warmup, step = round(steps * settings.optimizer.warmup_share), 0
    title = f"{candidate.name} seed {seed}"
    # the bars of several processes would overwrite each other; None: where there is no terminal
    hidden = True if multiprocessing.parent_process() else None
    with tqdm(total=steps, desc=title, unit="step", disable=hidden, leave=False) as bar:
        for batches in plan:
            began = time.perf_counter()
            model.train()
            losses = torch.zeros((), device=device)
            for examples in batches:
                for group in optimizer.param_groups:
                    group["lr"] = learning_rate * learning_rate_at("linear", step, steps, warmup)
                chosen = encoded.choose(examples)
                with autocast(device, settings.running.precision):
                    scores = model(chosen.batch.to(device))
                loss = learner.loss(scores, chosen, encoded)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                losses += loss.detach() * len(examples)
                step += 1
                bar.update()
                give_back(step)
            yield float(losses) / len(encoded), time.perf_counter() - began


def predict(candidate: Candidate, model: nn.Module, split: str) -> Predictions:
    return candidate.read(_score(candidate, model, split), split)


def _score(candidate: Candidate, model: nn.Module, split: str) -> np.ndarray:
    return score_all(model, candidate.encoded[split], candidate.settings.running.precision)


@torch.no_grad()
def score_all(model: nn.Module, encoded: Encoded, precision: str, *, is_shown: bool = False) -> np.ndarray:
    """The scores of all sequences [S, ..] or tokens [T, ..], in order. Batches are sorted by length.

    If `is_shown`, a progress bar appears on a terminal.
    """
    device = next(model.parameters()).device
    model.eval()
    rows, places = [], []
    order = np.argsort(encoded.sizes, kind="stable")
    ends = np.cumsum(encoded.sizes[order])
    batches = np.split(order, np.flatnonzero(np.diff(ends // _PREDICTED_TOKENS)) + 1)
    hidden = None if is_shown else True  # None: where there is no terminal
    for examples in tqdm(batches, unit="batch", leave=False, disable=hidden):
        chosen = encoded.choose(examples)
        with autocast(device, precision):
            rows.append(model(chosen.batch.to(device)).float().cpu().numpy())
        # a sequence has two tokens or more
        places.append(chosen.tokens if len(rows[-1]) == len(chosen.tokens) else chosen.sequences)
    # a model that diverged predicts nothing; zeros are right no more often than by chance
    return np.nan_to_num(np.concatenate(rows)[np.argsort(np.concatenate(places))])
