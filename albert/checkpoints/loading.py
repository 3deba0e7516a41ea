"""Load models strictly: every tensor is matched or reported, and an incomplete encoder is refused."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from albert.checkpoints.config_files import read_config, read_tensorflow_config
from albert.checkpoints.names import (
    BUFFERS,
    COPIES,
    TASK_TYPES,
    TOKEN_TYPES,
    Naming,
    WeightsFormat,
    current_names,
)
from albert.checkpoints.source import Source, find_source, missing_config, names_checkpoint
from albert.checkpoints.weights import read_tensors
from albert.model import PRESETS, AlbertConfig, Layout, PretrainingModel
from data.errors import InputError
from data.files import read_json
from data.tokenization import Tokenizer, load_tokenizer

PADDING_OF_TABLES = 128  # a word table may be padded by fewer rows than this
# parts that a checkpoint may lack, and what follows from it
_PARTS = {
    "mlm.": ("MLM head", "; the first loss will be near ln V"),
    "sop.": ("SOP head", ""),
    "encoder.pooler.": ("pooler", ""),
}


@dataclass(frozen=True, slots=True)
class LoadReport:
    """How every tensor was matched. Names are the file's, except in `new`, which has ours."""

    matched: tuple[str, ...]
    new: tuple[str, ...]  # parameters missing from the file: weights are random, biases 0
    unused: tuple[str, ...]
    wrong_shape: tuple[str, ...] = ()  # with both shapes

    @property
    def missing(self) -> tuple[str, ...]:
        """The encoder's parameters that the file lacks; the pooler counts as part of the SOP head."""
        return tuple(n for n in self.new if n.startswith("encoder.") and not n.startswith("encoder.pooler."))

    def lacks(self, part: str) -> bool:
        """Whether a part of the model, such as "mlm.", has random weights."""
        return any(name.startswith(part) and name.endswith(".weight") for name in self.new)

    def notices(self) -> list[str]:
        """What a user must know before training from this checkpoint."""
        lines = []
        for part, (title, consequence) in _PARTS.items():
            lacking = [name for name in self.new if name.startswith(part)]
            if self.lacks(part):
                lines.append(f"the checkpoint has no {title}: it starts from random weights{consequence}")
            elif lacking:
                lines.append(f"the checkpoint's {title} has no bias ({', '.join(lacking)}): it starts from 0")
        if self.unused:
            lines.append(
                f"{len(self.unused)} tensor(s) of the checkpoint not used: {', '.join(self.unused[:4])}"
            )
        return lines

    def table(self) -> str:
        """List every tensor by how it was matched."""
        parts = {
            "matched": self.matched,
            "newly initialised": self.new,
            "unused": self.unused,
            "wrong shape": self.wrong_shape,
        }
        lines = []
        for title, names in parts.items():
            lines += [f"{title}: {len(names)}", *(f"  {name}" for name in names)]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class LoadedCheckpoint:
    """A checkpoint's tensors, matched with the config's model by name and shape, before a model is built."""

    source: Source
    config: AlbertConfig
    weights_format: WeightsFormat
    tensors: Mapping[str, Tensor]
    parts: Mapping[str, tuple[str, ...]]  # our parameter -> the file's tensors that make it up
    report: LoadReport

    def check(self) -> None:
        """Raise InputError unless the encoder is complete and has the config's shapes."""
        report, weights = self.report, self.source.weights
        if report.wrong_shape:
            raise InputError(
                f"{report.wrong_shape[0]} in {weights}: it and {self.source.config.name} do not belong "
                "together"
                + (f" ({len(report.wrong_shape)} tensors differ)" if len(report.wrong_shape) > 1 else "")
            )
        if report.missing:
            first = Naming(self.config, self.weights_format).of(report.missing[0])[0]
            held = f"; it holds {report.unused[0]}" if report.unused else ""
            raise InputError(
                f"{weights} does not hold the encoder: {len(report.missing)} tensor(s) are missing, first "
                f"{first}{held}; training would start from random weights"
            )

    def tokenizer(self, vocabulary: Path | None = None) -> Tokenizer:
        """Load its tokenizer, or another vocabulary for it. Raises InputError if there is none, or one
        of another size than the word table.
        """
        tokenizer, V = load_tokenizer(vocabulary or self.source.vocabulary), self.config.vocab_size
        if not 0 <= V - tokenizer.vocab_size < PADDING_OF_TABLES:
            raise InputError(
                f"the vocabulary for {self.source.folder} has {tokenizer.vocab_size:,} entries, the model "
                f"{V:,}: they do not belong together"
            )
        return tokenizer

    def build(self) -> PretrainingModel:
        """Build the model. Raises InputError as `check` does, before anything is allocated."""
        self.check()
        model = PretrainingModel(self.config)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name in self.parts:
                    parameter.copy_(self.value(name))
        return model

    def value(self, name: str) -> Tensor:
        """The value of a parameter of ours that the file holds."""
        values = [self.tensors[part] for part in self.parts[name]]
        return torch.cat(values) if len(values) > 1 else values[0]


def read_checkpoint(given: Path | str) -> LoadedCheckpoint:
    """Read a checkpoint's config and tensors, and match them. `find_source` says what may be passed.

    Raises InputError when a file is missing or damaged, ConfigError for a config that cannot be built.
    """
    source = find_source(given)
    if not source.config.is_file():
        read_tensors(source)  # raises for a damaged file, which is the more useful error
        raise missing_config(source.folder)
    content = read_json(source.config)
    if source.is_tensorflow:
        tensors = read_tensors(source)
        layout = _tensorflow_layout(source, tensors)
        config = read_tensorflow_config(source.config, layout)
        weights_format = cast(WeightsFormat, f"tensorflow-{layout}")
    else:
        config = read_config(source.config)  # before the weights: it is small
        tensors = read_tensors(source)
        # a classifier on the mean holds the encoder that its config.json describes under transformers' names
        is_own = content.get("model_type") == "jixu" and "encoder" not in content
        weights_format = "jixu" if is_own else config.file_format
        if weights_format != "jixu":
            names = current_names(tensors, weights_format)
            tensors = {names[name]: tensor for name, tensor in tensors.items()}
            if content.get("model_type") == "ernie" and content.get("use_task_id"):
                tensors = _without_task_types(source, tensors)
            tensors = _without_copies(weights_format, tensors)
            is_tied = Naming(config, weights_format).of("mlm.decoder")[0] not in tensors
            config = replace(config, tie_word_embeddings=is_tied)
    naming = Naming(config, weights_format, content.get("num_hidden_groups", 1))
    parts, report = _match(naming, tensors)
    return LoadedCheckpoint(source, config, weights_format, tensors, parts, report)


def _tensorflow_layout(source: Source, tensors: Mapping[str, Tensor]) -> Layout:
    if "bert/embeddings/word_embeddings_2" in tensors:
        return "bright"
    if any(name.startswith("bert/encoder/transformer/group_0/") for name in tensors):
        return "google"
    if any(name.startswith("bert/encoder/layer_0/") for name in tensors):
        return "bert"
    raise InputError(
        f"{source.weights} has not the layout of google-research/bert, google-research/albert or albert_zh: "
        f"its {len(tensors)} variables begin with {', '.join(sorted(tensors)[:2]) or 'nothing'}"
    )


def _without_task_types(source: Source, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Turn ERNIE into BERT: every token is of task 0, whose embedding is added to each token type's."""
    task, types = tensors.pop(TASK_TYPES, None), tensors.get(TOKEN_TYPES)
    if task is None or types is None or task[:1].shape != types[:1].shape:
        raise InputError(
            f"{source.weights} has no task types of the width of its token types, as use_task_id in "
            f"{source.config.name} says: they do not belong together"
        )
    return {**tensors, TOKEN_TYPES: types.float() + task[0].float()}


def _without_copies(weights_format: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Drop the decoder's copies of tied tensors, and leave the weights of an untied decoder.

    transformers decodes with the decoder's own tensors where it finds them, and so does this.
    """
    (decoder, word), (bias_copy, bias) = COPIES[weights_format].items()
    if bias_copy in tensors:
        tensors[bias] = tensors.pop(bias_copy)
    if decoder in tensors and torch.equal(tensors.setdefault(word, tensors[decoder]), tensors[decoder]):
        del tensors[decoder]
    return tensors


def _match(naming: Naming, tensors: Mapping[str, Tensor]) -> tuple[dict[str, tuple[str, ...]], LoadReport]:
    with torch.device("meta"):
        parameters = dict(PretrainingModel(naming.config).named_parameters())
    parts: dict[str, tuple[str, ...]] = {}
    new, matched, wrong = [], [], []
    for name, parameter in parameters.items():
        theirs = naming.of(name)
        if not all(part in tensors for part in theirs):
            new.append(name)
            continue
        rows, *rest = parameter.shape
        expected = torch.Size([rows // len(theirs), *rest])
        differing = [part for part in theirs if tensors[part].shape != expected]
        wrong += [f"{p} has shape {tuple(tensors[p].shape)}, not {tuple(expected)}" for p in differing]
        matched += [part for part in theirs if part not in differing]
        if not differing:
            parts[name] = tuple(theirs)
    known = {part for name in parameters for part in naming.of(name)} | BUFFERS
    unused = sorted(set(tensors) - known)
    return parts, LoadReport(tuple(matched), tuple(new), tuple(unused), tuple(wrong))


def load_model(given: Path | str) -> tuple[PretrainingModel, LoadReport]:
    """Load the model of a checkpoint, with a report of the matched parameters.

    Raises InputError if a file is missing or damaged or the encoder incomplete; ConfigError for a config that
    cannot be built.
    """
    checkpoint = read_checkpoint(given)
    return checkpoint.build(), checkpoint.report


def load_pretrained(path: Path | str) -> tuple[PretrainingModel, Tokenizer]:
    """Load a checkpoint's model, ready to be trained, and its tokenizer; call `model.eval()` to read with it.

    Raises as `load_model`, and InputError if they disagree.
    """
    checkpoint = read_checkpoint(path)
    checkpoint.check()
    tokenizer = checkpoint.tokenizer()  # before anything is allocated
    return checkpoint.build(), tokenizer


def new_model(init: str, vocab_size: int, *, seed: int) -> tuple[PretrainingModel, LoadReport | None]:
    """Make a model to start from: a checkpoint's, or that of a preset's name; `seed` draws what is random.

    Raises InputError if `init` is neither, ConfigError if `vocab_size` is no size.
    """
    torch.manual_seed(seed)
    if names_checkpoint(init):
        return load_model(init)
    if init in PRESETS:
        return PretrainingModel(AlbertConfig.preset(init, vocab_size=vocab_size)), None
    names = ("tiny-zh", *PRESETS)
    near = difflib.get_close_matches(init, names, 1)
    hint = f"did you mean {near[0]}?" if near else f"names are {', '.join(names)}"
    raise InputError(f"--init {init!r} is no checkpoint folder, no preset and no hf:OWNER/NAME: {hint}")
