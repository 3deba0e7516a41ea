"""Examples a second of fine-tuning and of prediction on a CPU, against transformers' Trainer.

    python -m benchmarks.fine_tune_step [--train FILE --dev FILE] [--model FOLDER] [--seeds 0 1 2]

The same checkpoint, examples, epochs and rate; seed by seed in turn in one process. Here the training of
`albert.finetuning`: batches drawn at random, without padding, in bf16. There Trainer's defaults: batches
drawn at random and padded to their longest, in fp32 and in bf16, of which the faster counts. Accuracies are
of the dev split after the last epoch.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import dataclass
from operator import truediv
from pathlib import Path

import numpy as np
import torch
import transformers

from albert.checkpoints import load_pretrained
from albert.finetuning import (
    Candidate,
    FineTuneOptimizer,
    FineTuneSettings,
    fine_tune_one,
    prepare,
    read_task,
)
from albert.finetuning.training import predict
from albert.tasks import load_task
from benchmarks.support.corpora import SAMPLES
from benchmarks.support.results import command, met, write_result

GOAL = 6.0
RATE = 1e-4


@dataclass(frozen=True, slots=True)
class Outcome:
    """Examples per second, and accuracy on dev."""

    trained: float
    predicted: float
    accuracy: float


def ours(candidate: Candidate, seed: int) -> Outcome:
    result = fine_tune_one(candidate, seed, RATE).result
    pretrained, _ = load_pretrained(candidate.path)
    model = candidate.learner.model(pretrained.encoder)
    began = time.perf_counter()
    predict(candidate, model, "dev")
    seconds = time.perf_counter() - began
    last = result.curve[-1].dev
    return Outcome(result.examples_per_second, len(candidate.encoded["dev"]) / seconds, last)


def _rows(tokenizer, candidate: Candidate, split: str) -> list[dict[str, object]]:
    """Prepare a split as users do for Trainer: tokenised, neither padded nor masked."""
    examples = candidate.data.splits[split].examples
    number = {label: i for i, label in enumerate(candidate.data.labels)}
    pairs = None if examples[0].pair is None else [one.pair for one in examples]
    encoded = tokenizer([one.text for one in examples], pairs, truncation=True, max_length=128)
    return [
        {**{name: values[i] for name, values in encoded.items()}, "labels": number[one.label]}
        for i, one in enumerate(examples)
    ]


def theirs(candidate: Candidate, seed: int, dtype: str) -> Outcome:
    settings = candidate.settings
    tokenizer = transformers.BertTokenizerFast(vocab=str(candidate.path / "vocab.txt"))
    transformers.set_seed(seed)
    model = transformers.AlbertForSequenceClassification.from_pretrained(
        candidate.path, num_labels=len(candidate.data.labels)
    )
    arguments = transformers.TrainingArguments(
        output_dir=tempfile.gettempdir(), num_train_epochs=settings.epochs, learning_rate=RATE, seed=seed,
        per_device_train_batch_size=settings.batch_size, per_device_eval_batch_size=128,
        warmup_steps=settings.optimizer.warmup_share, weight_decay=0.01, bf16=dtype == "bf16", use_cpu=True,
        save_strategy="no", logging_strategy="no", report_to=[], disable_tqdm=True,
    )  # fmt: skip
    trainer = transformers.Trainer(
        model,
        arguments,
        train_dataset=_rows(tokenizer, candidate, "train"),
        data_collator=transformers.DataCollatorWithPadding(tokenizer),
    )
    trained = trainer.train().metrics["train_samples_per_second"]
    dev = _rows(tokenizer, candidate, "dev")
    began = time.perf_counter()
    output = trainer.predict(dev)
    seconds = time.perf_counter() - began
    right = float(np.mean(output.predictions.argmax(-1) == output.label_ids))
    return Outcome(trained, len(dev) / seconds, right)


def compare(outcomes: dict[str, list[Outcome]]) -> tuple[list[str], dict[str, object]]:
    """Write the verdict's lines and record; the rival is the faster dtype."""
    best = max(("fp32", "bf16"), key=lambda name: statistics.median(o.trained for o in outcomes[name]))
    lines, record = [], {"goal": GOAL, "rival": best}
    for what in ("trained", "predicted"):
        rates = [[getattr(outcome, what) for outcome in outcomes[name]] for name in ("jixu", best)]
        times = statistics.median(map(truediv, *rates))
        rate, other = map(statistics.median, rates)
        lines.append(
            f"{what}: {rate:,.0f} examples/s, {times:.1f}x Trainer's {other:,.0f} ({best}): goal {GOAL:g}x "
            f"{met(times >= GOAL)}"
        )
        record[what] = {"examples_per_second": rate, "rival": other, "times": times}
    accuracies = {name: [o.accuracy for o in values] for name, values in outcomes.items()}
    means = ", ".join(f"{name} {statistics.mean(values):.4f}" for name, values in accuracies.items())
    lines.append(f"accuracy: {means}")
    return lines, {**record, "accuracies": accuracies}


def main(
    *, train: Path = SAMPLES / "tea_topics_train.tsv", dev: Path = SAMPLES / "tea_topics_dev.tsv",
    model: Path = SAMPLES / "tiny-zh", seeds: tuple[int, ...] = (0, 1, 2),
) -> None:  # fmt: skip
    """Run the benchmark.

    Args:
        model: Checkpoint.
    """
    settings = FineTuneSettings(
        task=load_task("benchmark"), train=train, dev=dev, models=(model,),
        seeds=seeds, epochs=1, learning_rate=RATE,
        optimizer=FineTuneOptimizer(max_restarts=0),
    )  # fmt: skip
    candidate = prepare(settings, read_task(settings), 0)
    outcomes: dict[str, list[Outcome]] = {"jixu": [], "fp32": [], "bf16": []}
    for seed in seeds:
        outcomes["jixu"].append(ours(candidate, seed))
        for dtype in ("fp32", "bf16"):
            outcomes[dtype].append(theirs(candidate, seed, dtype))
    lines, record = compare(outcomes)
    sizes = {name: len(split.examples) for name, split in candidate.data.splits.items()}
    about = {"torch": torch.__version__, "threads": torch.get_num_threads(), "examples": sizes}
    write_result("fine_tune_step", "\n".join(lines), {**about, **record})


if __name__ == "__main__":
    command(main)
