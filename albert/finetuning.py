"""Fine-tuning on sentence or sentence-pair classification: several models under the same seeds, order and
budget.

Devlin et al. 2019, section 4.1. The best epoch is chosen on dev; test is scored once, at that epoch.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F
from tqdm import tqdm

from albert.batch import Batch, pack
from albert.checkpoints import load_pretrained, names_checkpoint
from albert.config import PRESETS, ConfigError
from albert.evaluation import PairedDifference, Scores, Summary, paired_difference, score, summarize
from albert.heads import SequenceClassifier
from albert.optim import adamw, linear_schedule
from albert.tasks import Example, Split, Task, label_set, read_split
from data.records import InputError
from data.tokenization import Tokenizer


@dataclass(frozen=True, kw_only=True)
class FineTuneSettings:
    """What to compare, on what, and how."""

    task: Task
    train: Path
    dev: Path
    test: Path | None = None
    models: tuple[Path, ...]
    names: tuple[str, ...] | None = None  # of the models in tables; None: their folders'
    seeds: tuple[int, ...] = (0, 1, 2)
    epochs: int = 3
    batch_size: int = 32
    learning_rate: float = 1e-4  # albert_zh's for LCQMC; it tries 2e-5 to 1e-4
    warmup_share: float = 0.1
    max_seq_length: int = 128
    precision: str = "bf16"

    def __post_init__(self):
        if not self.models:
            raise ConfigError("no model to fine-tune: pass --model with a checkpoint folder")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ConfigError(f"seeds={self.seeds}: give one or more, each once")
        if self.names is not None and len(self.names) != len(self.models):
            raise ConfigError(f"{len(self.names)} names for {len(self.models)} models")
        for name, low, high in (("epochs", 1, 1000), ("batch_size", 1, 4096), ("max_seq_length", 8, 512)):
            if not low <= getattr(self, name) <= high:
                raise ConfigError(f"{name}={getattr(self, name)}: it must be from {low} to {high}")
        if not 0 < self.learning_rate < 1:
            raise ConfigError(f"learning_rate={self.learning_rate}: it must be more than 0 and less than 1")

    def model_names(self) -> tuple[str, ...]:
        """A short name for each model, each once."""
        names = list(self.names or [_short_name(path) for path in self.models])
        return tuple(n if names.count(n) == 1 else f"{n} ({i})" for i, n in enumerate(names, 1))


def _short_name(path: Path) -> str:
    return f"{path.parent.name}/{path.name}" if path.name.startswith("checkpoint-") else path.name


@dataclass(frozen=True, slots=True)
class SeedResult:
    """One model trained with one seed."""

    model: str
    seed: int
    best_epoch: int  # counted from 1
    dev: Scores
    test: Scores | None
    seconds: float
    predictions: tuple[int, ...]  # on test, or on dev where there is none


@dataclass(frozen=True, kw_only=True)
class FineTuneResult:
    """The comparison, the first model being what the others are compared with."""

    task: str
    labels: tuple[str, ...]
    examples: dict[str, int]  # by split
    skipped: tuple[str, ...]
    majority_share: float  # accuracy of always giving the most frequent training label
    models: tuple[str, ...]
    seeds: tuple[SeedResult, ...]

    def summary(self, model: str, split: str, metric: str) -> Summary | None:
        """Mean and deviation over the seeds; None for a split there is not."""
        scores = [getattr(r, split) for r in self.seeds if r.model == model]
        return None if None in scores else summarize([getattr(s, metric) for s in scores])

    def difference(self, model: str, split: str, metric: str = "accuracy") -> PairedDifference:
        """How much `model` scores above the first model."""
        first, second = self.summary(self.models[0], split, metric), self.summary(model, split, metric)
        return paired_difference(first.values, second.values)

    @property
    def reported_split(self) -> str:
        return "test" if "test" in self.examples else "dev"


@dataclass(frozen=True, slots=True)
class EncodedSplit:
    sequences: list[list[int]]
    token_types: list[list[int]]
    labels: np.ndarray  # [n]

    def __len__(self) -> int:
        return len(self.sequences)

    def batch(self, rows: Sequence[int]) -> Batch:
        return pack([self.sequences[i] for i in rows], [self.token_types[i] for i in rows])


def encode_examples(
    examples: Sequence[Example], labels: Sequence[str], tokenizer: Tokenizer, max_seq_length: int
) -> EncodedSplit:
    """[CLS] text [SEP], or [CLS] text [SEP] pair [SEP]; the longer of the two is cut to fit."""
    number = {label: i for i, label in enumerate(labels)}
    sequences, types = [], []
    for example in examples:
        a = tokenizer.encode(example.text)[0].tolist()
        b = tokenizer.encode(example.pair)[0].tolist() if example.pair is not None else []
        room = max_seq_length - (3 if example.pair is not None else 2)
        while len(a) + len(b) > room:
            (a if len(a) >= len(b) else b).pop()
        ids = [tokenizer.cls_id, *a, tokenizer.sep_id]
        first = len(ids)
        if example.pair is not None:
            ids += [*b, tokenizer.sep_id]
        sequences.append(ids)
        types.append([0] * first + [1] * (len(ids) - first))
    return EncodedSplit(sequences, types, np.array([number[e.label] for e in examples]))


@dataclass(frozen=True, slots=True)
class TaskData:
    splits: dict[str, Split]
    labels: tuple[str, ...]


def read_task(settings: FineTuneSettings) -> TaskData:
    """Every split of the task, checked. Raises InputError for files that do not fit it or each other."""
    paths = {"train": settings.train, "dev": settings.dev, "test": settings.test}
    splits = {name: read_split(path, settings.task) for name, path in paths.items() if path is not None}
    others = [split for name, split in splits.items() if name != "train"]
    return TaskData(splits, label_set(splits["train"], others))


def fine_tune(settings: FineTuneSettings) -> FineTuneResult:
    """Train every model with every seed and score them."""
    data = read_task(settings)
    results = []
    for path, name in zip(settings.models, settings.model_names(), strict=True):
        for seed in settings.seeds:
            result = fine_tune_one(settings, data, path, name, seed)
            results.append(result)
            split = result.test or result.dev
            print(
                f"{settings.task.name}  {name}  seed {seed}  epoch {result.best_epoch}  dev "
                f"{result.dev.accuracy:.4f}"
                f"  {'test' if result.test else 'dev'} {split.accuracy:.4f}  {result.seconds:.0f} s",
                file=sys.stderr,
            )
    return collect(settings, data, results)


def collect(settings: FineTuneSettings, data: TaskData, results: Sequence[SeedResult]) -> FineTuneResult:
    """The comparison of what was trained."""
    counts = {label: 0 for label in data.labels}
    for example in data.splits["train"].examples:
        counts[example.label] += 1
    majority = max(counts, key=lambda label: counts[label])
    reported = data.splits.get("test", data.splits["dev"]).examples
    return FineTuneResult(
        task=settings.task.name,
        labels=data.labels,
        examples={name: len(split.examples) for name, split in data.splits.items()},
        skipped=tuple(line for split in data.splits.values() for line in split.skipped),
        majority_share=sum(e.label == majority for e in reported) / len(reported),
        models=settings.model_names(),
        seeds=tuple(results),
    )


def fine_tune_one(settings: FineTuneSettings, data: TaskData, path: Path, name: str, seed: int) -> SeedResult:
    """Train one model with one seed; a pure function of the arguments on a CPU."""
    started = time.perf_counter()
    pretrained, tokenizer = load_pretrained(path)
    length = min(settings.max_seq_length, pretrained.config.max_position_embeddings)
    encoded = {
        split: encode_examples(part.examples, data.labels, tokenizer, length)
        for split, part in data.splits.items()
    }
    torch.manual_seed(seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = SequenceClassifier(pretrained.encoder, len(data.labels)).to(device)
    best: tuple[float, int, dict[str, torch.Tensor]] | None = None
    for epoch in _train_epochs(model, encoded["train"], settings, seed, device, f"{name} seed {seed}"):
        dev = score(predict(model, encoded["dev"], settings, device), encoded["dev"].labels, len(data.labels))
        if best is None or dev.accuracy > best[0]:
            best = (dev.accuracy, epoch, copy.deepcopy(model.state_dict()))
    _, best_epoch, weights = best
    model.load_state_dict(weights)
    predicted = {
        split: predict(model, encoded[split], settings, device)
        for split in ("dev", "test")
        if split in encoded
    }
    scores = {split: score(p, encoded[split].labels, len(data.labels)) for split, p in predicted.items()}
    reported = predicted.get("test", predicted["dev"])
    return SeedResult(
        name,
        seed,
        best_epoch,
        scores["dev"],
        scores.get("test"),
        time.perf_counter() - started,
        tuple(reported.tolist()),
    )


def _train_epochs(
    model: SequenceClassifier,
    train: EncodedSplit,
    settings: FineTuneSettings,
    seed: int,
    device: torch.device,
    title: str,
) -> Iterator[int]:
    """Train an epoch at a time, yielding its number after each. The order depends on the seed alone."""
    optimizer = adamw(model, settings.learning_rate)
    rng = np.random.default_rng(seed)
    per_epoch = -(-len(train) // settings.batch_size)
    steps = per_epoch * settings.epochs
    warmup, step = round(steps * settings.warmup_share), 0
    labels = torch.from_numpy(train.labels)
    with tqdm(total=steps, desc=title, unit="step", disable=not sys.stderr.isatty(), leave=False) as bar:
        for epoch in range(1, settings.epochs + 1):
            model.train()
            for rows in np.array_split(rng.permutation(len(train)), per_epoch):
                for group in optimizer.param_groups:
                    group["lr"] = settings.learning_rate * linear_schedule(step, steps, warmup)
                with torch.autocast(device.type, torch.bfloat16, enabled=settings.precision == "bf16"):
                    logits = model(train.batch(rows).to(device))
                loss = F.cross_entropy(logits, labels[rows].to(device))
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                step += 1
                bar.update()
            yield epoch


@torch.no_grad()
def predict(
    model: SequenceClassifier, split: EncodedSplit, settings: FineTuneSettings, device: torch.device
) -> np.ndarray:
    """The likeliest label [n] of every example; batched by length, in the split's order."""
    model.eval()
    order = np.argsort([len(sequence) for sequence in split.sequences], kind="stable")
    predicted = np.empty(len(split), dtype=np.int64)
    for begin in range(0, len(order), 128):
        rows = order[begin : begin + 128]
        with torch.autocast(device.type, torch.bfloat16, enabled=settings.precision == "bf16"):
            predicted[rows] = model(split.batch(rows).to(device)).argmax(-1).cpu().numpy()
    return predicted


def check_models(settings: FineTuneSettings) -> None:
    """Raise InputError or ConfigError for a model that cannot be fine-tuned, before any work."""
    for path in settings.models:
        if not names_checkpoint(str(path)):
            known = "a preset has no vocabulary and no weights" if path.name in PRESETS else "no such file"
            raise InputError(f"--model {path} is not a checkpoint folder: {known}")
        load_pretrained(path)
