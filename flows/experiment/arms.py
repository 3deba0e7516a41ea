"""The recipes that the experiment compares, and the texts they are made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from albert.learning_rate import OptimizerName
from albert.tasks import Example, load_task, read_lines, read_split, suffix_of
from data.files import write_text
from flows.experiment.flawed_control import BATCH_TOKENS, RATE_OF_LARGE_BATCHES, group_by_labels

# of similar cost: the same layers, width and heads, with and without shared parameters
ARCHITECTURES = {"albert": "tiny", "bert": "bert-tiny"}


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A recipe of continued pretraining."""

    name: str
    note: str | None = None
    corpus: str  # its name after the experiment's; the same for arms whose corpora are
    # sentences of the task grouped by gold labels, or each by itself; or text of the field as it came
    documents: Literal["grouped", "sentences", "given"] = "given"
    splits: tuple[str, ...] = ("train",)  # of the task, for grouped and sentences
    is_guarded: bool = False  # whether documents that hold text of dev or test are dropped
    sop: Literal["auto", "on", "off"] = "auto"
    max_ngram: int = 3
    masking: Literal["dynamic", "static"] = "dynamic"
    doubles_labels: bool = False
    optimizer: OptimizerName = "adamw"
    learning_rate: float | None = None  # None: by the square-root rule
    batch_tokens: int = 2048
    mix: tuple[str, ...] = ()


_ALL = ("train", "dev", "test")
_FLAWED = Arm(
    name="flawed control",
    corpus="grouped-sop",
    note="flawed on purpose: the original recipe",
    documents="grouped",
    splits=_ALL,
    sop="on",
    max_ngram=1,
    masking="static",
    doubles_labels=True,
    optimizer="lamb",
    learning_rate=RATE_OF_LARGE_BATCHES,
    batch_tokens=BATCH_TOKENS,
)


def _ladder() -> Iterator[Arm]:
    """Each arm mends one thing of the one before."""
    yield _FLAWED
    arm = replace(_FLAWED, name="+ plain labels", note="still flawed", doubles_labels=False)
    yield arm
    arm = replace(arm, name="+ no sentence order", corpus="grouped", sop="off")
    yield arm
    arm = replace(arm, name="+ rate of the batch", learning_rate=None)
    yield arm
    arm = _larger_batches(arm)
    yield arm
    arm = replace(
        arm, name="+ n-gram masks, drawn anew", corpus="grouped-ngram", max_ngram=3, masking="dynamic"
    )
    yield arm
    arm = replace(arm, name="+ replay of general text", mix=("general:0.2",))
    yield arm
    arm = replace(arm, name="+ not grouped by labels", corpus="sentences", documents="sentences", sop="auto")
    yield arm
    yield replace(arm, name="+ decontaminated", corpus="clean", note=None, splits=("train",), is_guarded=True)


def _field() -> Iterator[Arm]:
    """For a field with a corpus of its own."""
    arm = Arm(
        name="rate of large batches",
        corpus="text",
        note="LAMB, as in the original recipe",
        optimizer="lamb",
        learning_rate=RATE_OF_LARGE_BATCHES,
        batch_tokens=BATCH_TOKENS,
    )
    yield arm
    arm = replace(arm, name="+ rate of the batch", note=None, learning_rate=None)
    yield arm
    arm = _larger_batches(arm)
    yield arm
    arm = replace(arm, name="+ replay of general text", mix=("general:0.2",))
    yield arm
    yield replace(arm, name="+ decontaminated", corpus="clean", is_guarded=True)


def _larger_batches(arm: Arm) -> Arm:
    """Under AdamW, at a rate for a small model that has seen little.

    Of 2e-4, 6e-4 and 1.2e-3 the one with the least loss on held-out general text after 200 steps on reviews.
    """
    return replace(
        arm,
        name="+ larger batches, AdamW",
        optimizer="adamw",
        learning_rate=6e-4,
        batch_tokens=Arm.batch_tokens,
    )


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much each model is trained on."""

    base_steps: int
    tokens: int  # of continued pretraining, the same for every arm
    examples: dict[str, int]  # at most, of each split
    epochs: int  # of fine-tuning
    fine_tuning_rate: float


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A ladder, and at scale 1 how much of its text and task the models see."""

    task: str
    arms: tuple[Arm, ...]
    tokens: int
    train: int  # examples; until then a model of scale 1 may be at chance
    epochs: int

    def sizes(self, scale: float) -> Sizes:
        """At scale 1 an ALBERT takes 60 to 80 CPU minutes."""
        # more of test than of dev: its size bounds which differences can be found
        examples = {"train": self.train, "dev": 400, "test": 3000}
        return Sizes(
            base_steps=max(round(2000 * scale), 2),
            tokens=max(round(self.tokens * scale), 2 * Arm.batch_tokens),
            examples={split: max(round(count * scale), 20) for split, count in examples.items()},
            epochs=self.epochs,
            # small models that were trained little take a larger rate than published ones
            fine_tuning_rate=3e-4 if scale < 4 else 1e-4,
        )


EXPERIMENTS = {
    "lcqmc": Experiment(task="lcqmc", arms=tuple(_ladder()), tokens=500_000, train=5000, epochs=1),
    "law": Experiment(task="law-categories", arms=tuple(_field()), tokens=1_200_000, train=500, epochs=6),
    "reviews": Experiment(
        task="online_shopping", arms=tuple(_field()), tokens=1_200_000, train=500, epochs=6
    ),
}


@dataclass(frozen=True, slots=True)
class ExperimentFiles:
    """The task's files, and the text of its field."""

    experiment: str
    train: Path
    dev: Path
    test: Path
    domain: tuple[str, ...] = ()


def first_lines(files: ExperimentFiles, sizes: Sizes, folder: Path) -> ExperimentFiles:
    """The files cut to the examples that models are fine-tuned on; pretraining sees all."""
    cut: dict[str, Path] = {}
    for split, most in sizes.examples.items():
        path: Path = getattr(files, split)
        lines = list(read_lines(path))
        cut[split] = folder / f"{split}-{most}{suffix_of(path)}"
        write_text(cut[split], "\n".join(lines[: most + 1]) + "\n")
    return replace(files, train=cut["train"], dev=cut["dev"], test=cut["test"])


def write_sentences(arm: Arm, files: ExperimentFiles, folder: Path) -> list[str]:
    """The text that an arm is trained on, as files."""
    if arm.documents == "given":
        return list(files.domain)
    pairs: list[tuple[str, str, bool]] = []
    for split in arm.splits:
        _, found = read_split(getattr(files, split), load_task("lcqmc"))
        examples = [one for one in found.examples if isinstance(one, Example)]
        pairs += [(one.text, one.pair or "", one.label == "1") for one in examples]
    if arm.documents == "grouped":
        documents = group_by_labels(pairs)
    else:
        documents = [[text] for text in dict.fromkeys(text for a, b, _ in pairs for text in (a, b))]
    path = folder / f"{arm.documents}-{'-'.join(arm.splits)}-{files.train.stem}.bert.txt"
    write_text(path, "\n\n".join("\n".join(one) for one in documents) + "\n")
    return [str(path)]
