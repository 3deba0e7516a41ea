"""Predictions of a fine-tuned model for a file, labelled or not."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from albert.checkpoints import read_checkpoint
from albert.finetuning.encoding import Encoded, Predictions
from albert.finetuning.exporting import FineTuned, read_fine_tuned
from albert.finetuning.learner import Learner, find_learner
from albert.finetuning.training import score_all
from albert.runtime import default_device
from albert.tasks import AnyExample, Kind, TaggedExample, Task, entities_of, read_split
from data.errors import InputError
from data.tokenization import Tokenizer

_ROWS = {1: "single texts", 2: "pairs of texts"}  # by the texts of an example


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """A model's predictions for the examples of a file."""

    record: FineTuned
    examples: Sequence[AnyExample]
    predictions: Predictions
    skipped: Sequence[str]  # a line for each row that could not be read
    cut: str | None = None  # how many texts were too long

    def table(self, delimiter: str = "\t") -> str:
        """Lines of an id, the answer, and a probability for each label or choice, for the answer, or for each
        of its tags.
        """
        predictions, names = self.predictions, []
        cells: Sequence[Sequence[str]] = [[]] * len(self.examples)
        if predictions.probabilities is not None:
            names = [*self.record.labels] or [*map(str, range(predictions.probabilities.shape[1]))]
            cells = [[f"{share:.6f}" for share in row] for row in predictions.probabilities.tolist()]
        elif predictions.confidence is not None:
            names = ["probability"]
            cells = [[" ".join(f"{share:.6f}" for share in row)] for row in predictions.confidence]
        answers = predictions.answers if predictions.tags is None else map(" ".join, predictions.tags)
        table = zip(self.examples, answers, cells, strict=True)
        rows = [["id", "prediction", *names], *([one.id, answer, *row] for one, answer, row in table)]
        if delimiter == "\t":  # without quotes, as it is read
            return "".join("\t".join(" ".join(cell.split()) for cell in row) + "\n" for row in rows)
        sink = io.StringIO()
        csv.writer(sink, delimiter=delimiter, lineterminator="\n").writerows(rows)
        return sink.getvalue()

    def submission(self) -> str:
        """The predictions as CLUE's baselines write them (github.com/CLUEbenchmark/CLUE): a JSON object a
        line, which is numbered, not named; for spans and ChID one of all answers. Raises InputError if a line
        or an answer would be missing.
        """
        ids, labels = [one.id for one in self.examples], self._labels()
        if self.record.task.kind is Kind.SPAN or all(one.startswith("#idiom") for one in ids):
            answers = dict(zip(ids, labels, strict=True))
            if len(answers) < len(ids):
                raise InputError(
                    f"{len(ids)} questions have {len(answers)} ids; CLUE names answers by them: give each "
                    "question an id of its own, or write a table"
                )
            return json.dumps(answers, ensure_ascii=False, indent=1) + "\n"
        if self.skipped:
            raise InputError(
                f"{len(self.skipped)} row(s) could not be read, first: {self.skipped[0]}; CLUE numbers the "
                "lines: mend the rows, or write a table"
            )
        rows = [{"id": number, "label": label} for number, label in enumerate(labels)]
        return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)

    def _labels(self) -> Sequence[object]:
        found = self.predictions
        if self.record.task.kind is Kind.CHOICE and found.probabilities is not None:
            return found.probabilities.argmax(-1).tolist()
        if self.record.task.kind is Kind.MULTILABEL and found.probabilities is not None:
            labels = np.array(self.record.labels, dtype=object)
            return [labels[row > 0.5].tolist() for row in found.probabilities]
        if found.tags is not None:
            tagged = (one for one in self.examples if isinstance(one, TaggedExample))
            return [_entities(one, tags) for one, tags in zip(tagged, found.tags, strict=True)]
        return found.answers


def _entities(example: TaggedExample, tags: Sequence[str]) -> dict[str, dict[str, list[list[int]]]]:
    """CLUENER's entities: by kind and text the first and last token of each."""
    found: dict[str, dict[str, list[list[int]]]] = {}
    for kind, begin, end in sorted(entities_of(tags), key=lambda entity: entity[1]):
        text = "".join(example.tokens[begin : end + 1])
        found.setdefault(kind, {}).setdefault(text, []).append([begin, end])
    return found


@dataclass(frozen=True, kw_only=True)
class Predictor:
    """A fine-tuned model that was read from its folder."""

    record: FineTuned
    learner: Learner
    model: nn.Module
    tokenizer: Tokenizer

    def scores(self, examples: Sequence[AnyExample]) -> tuple[Encoded, np.ndarray]:
        """The encoded examples, and the scores of their sequences [S, ..] or tokens [T, ..]."""
        running = self.record.running
        encoded = self.learner.encode(examples, self.tokenizer, running.max_seq_length)
        return encoded, score_all(self.model, encoded, running.precision, is_shown=True)


def load_fine_tuned(folder: Path | str, task: Task | None = None) -> Predictor:
    """Read a fine-tuned model; a task of its kind says more of one that Trainer saved. Raises InputError for
    a folder that does not hold one.
    """
    record = read_fine_tuned(Path(folder))
    record = record if task is None else record.of_task(task)
    learner = find_learner(record.task, record.labels, record.running.pooling, record.has_unanswerable)
    checkpoint, head = read_checkpoint(folder), record.head()
    model: Any = learner.model(checkpoint.build().encoder)
    names = {ours: f"{head.name}.{ours}" for ours in ("weight", "bias")}
    if missing := [name for name in names.values() if name not in checkpoint.tensors]:
        raise InputError(f"{folder} has no head: no {missing[0]} in {checkpoint.source.weights.name}")
    try:
        model.classifier.load_state_dict({ours: checkpoint.tensors[name] for ours, name in names.items()})
    except (AttributeError, RuntimeError):  # the task's model has no head, or one of another shape
        raise InputError(f"{folder}: its head does not fit task {record.task.name}") from None
    model.to(default_device())
    return Predictor(record=record, learner=learner, model=model, tokenizer=checkpoint.tokenizer())


def predict_file(folder: Path | str, path: Path | str, task: Task | None = None) -> Predicted:
    """Predict the examples of a file; its labels, if it has any, are not read.

    Raises InputError for a folder without a fine-tuned model, and for a file that does not fit its task.
    """
    predictor, path = load_fine_tuned(folder, task), Path(path)
    record = predictor.record
    _, split = read_split(path, record.task, is_labelled=False)
    texts = len(split.examples[0].texts())
    if record.texts not in (0, texts):
        raise InputError(
            f"{path} has {_ROWS[texts]}, and {folder} learnt from {_ROWS[record.texts]}: rename its columns, "
            "or name them in a task file for --task"
        )
    encoded, scores = predictor.scores(split.examples)
    return Predicted(
        record=record,
        examples=split.examples,
        predictions=predictor.learner.predict(scores, split.examples, encoded),
        skipped=split.skipped,
        cut=encoded.describe_cut(path.name) if encoded.cut else None,
    )
