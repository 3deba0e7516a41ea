"""A fine-tuned model as a folder that transformers and `jixu predict` open.

`task.json` beside the weights says what transformers' config cannot: the task, its labels in order, and where
the model comes from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from pydantic import TypeAdapter
from torch import nn

from albert.checkpoints import (
    HUB_PREFIX,
    TASK_FILE,
    Head,
    find_source,
    read_head,
    record_sources,
    save_with_head,
)
from albert.finetuning.settings import FineTuneRunning, short_name
from albert.model import AlbertConfig, Encoder
from albert.tasks import Kind, Task
from data.errors import InputError
from data.files import read_json, write_bytes
from data.options import parse
from data.tokenization import load_tokenizer

_LABELS = "SequenceClassification"
_HEADS = {  # of transformers; the last is that of every other kind
    Kind.TOKENS: Head("TokenClassification", None),
    Kind.SPAN: Head("QuestionAnswering", None, name="qa_outputs"),
    Kind.CHOICE: Head("MultipleChoice", "cls"),
    Kind.REGRESSION: Head(_LABELS, "cls", problem="regression"),
    Kind.MULTILABEL: Head(_LABELS, "cls", problem="multi_label_classification"),
    None: Head(_LABELS, "cls"),
}


@dataclass(frozen=True, kw_only=True)
class FineTuned:
    """What a fine-tuned model predicts, and how it was made."""

    task: Task  # with its kind
    labels: tuple[str, ...]  # in the order of its scores; of single, pair, multilabel and tokens, else empty
    has_unanswerable: bool  # whether it learnt that a passage may not hold the answer
    running: FineTuneRunning  # the length is the model's
    checkpoint: str  # hf:OWNER/NAME, or a folder's short name
    # what follows is empty for a model that transformers' Trainer saved
    texts: int = 0  # of each example: two of a pair
    checksum: str = ""
    run: str = ""  # the key of its run
    seed: int = 0
    learning_rate: float = 0.0
    best_epoch: int = 0
    dev: Mapping[str, float] = field(default_factory=dict)  # scores by metric, the main one first

    def head(self) -> Head:
        """The head as transformers has it."""
        head = _HEADS.get(self.task.kind, _HEADS[None])
        pooling = head.pooling and self.running.pooling
        return replace(head, pooling=pooling, labels=self.labels, max_seq_length=self.running.max_seq_length)

    def of_task(self, task: Task) -> FineTuned:
        """The same for a task of its kind, which says the columns and whether answers may be missing."""
        task = replace(task, kind=self.task.kind or task.kind)
        return replace(self, task=task, has_unanswerable=self.has_unanswerable or task.answers == "squad2")

    def opened_with(self, config: AlbertConfig) -> str:
        """What opens the model, in words."""
        if config.file_format == "jixu":
            return "only jixu predict opens it: transformers cannot express its encoder"
        head = self.head()
        with_code = "" if head.pooling in (None, "cls") else " with trust_remote_code=True"
        return f"transformers' AutoModelFor{head.architecture} opens it{with_code}"


def save_fine_tuned(model: nn.Module, record: FineTuned, folder: Path) -> None:
    """Write a trained model with its record, which comes last: a folder without one is incomplete."""
    tokenizer = load_tokenizer(find_source(record.checkpoint).vocabulary)
    encoder, classifier = cast(Encoder, model.encoder), cast(nn.Linear, model.classifier)
    save_with_head(encoder, classifier, record.head(), folder, tokenizer)
    record_sources(folder, [record.checkpoint])
    if not record.checkpoint.startswith(HUB_PREFIX):  # the folder may be pushed, where a path says too much
        record = replace(record, checkpoint=short_name(Path(record.checkpoint)))
    write_bytes(folder / TASK_FILE, TypeAdapter(FineTuned).dump_json(record, indent=2))


def read_fine_tuned(folder: Path) -> FineTuned:
    """The record of a fine-tuned model, also of one that transformers' Trainer saved. Raises InputError for a
    folder without one.
    """
    path = folder / TASK_FILE
    if not path.is_file():
        if found := _of_transformers(folder):
            return found
        raise InputError(
            f"no {TASK_FILE} in {folder}: it is not a fine-tuned model; pass a folder that jixu fine-tune "
            "kept in models/ of the workspace"
        )
    return parse(FineTuned, read_json(path), f"{path} is damaged")


def _of_transformers(folder: Path) -> FineTuned | None:
    """What a config.json says of a model with a head; None if it names no head."""
    head = read_head(folder)
    alike = [kind for kind, one in _HEADS.items() if one.architecture == head.architecture]
    if not alike:
        return None
    kind = next(kind for kind in alike if _HEADS[kind].problem in (None, head.problem))
    if kind is None and len(head.labels) == 1:
        kind = Kind.REGRESSION
    # None: a table with a second sentence is one of pairs
    return FineTuned(
        task=Task(name="predictions", kind=kind),
        labels=head.labels if kind in (None, Kind.MULTILABEL, Kind.TOKENS) else (),
        has_unanswerable=False,
        running=FineTuneRunning(
            pooling="cls", precision="fp32", max_seq_length=min(head.max_seq_length, 512)
        ),
        checkpoint=str(folder),
    )
