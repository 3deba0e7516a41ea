"""Write checkpoints: in transformers' format if it can express the model, else under jixu's own names."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from albert.checkpoints.config_files import own_format, to_file
from albert.checkpoints.names import COPIES, Naming
from albert.checkpoints.source import CONFIG_FILE, WEIGHTS_FILE
from albert.model import AlbertConfig, Encoder, PretrainingModel
from data.errors import ConfigError, InputError
from data.files import read_json, replacing, sync, write_bytes, write_json
from data.tokenization import SPECIAL_ROLES, TOKENIZER_CONFIG, TOKENIZER_FILES, Tokenizer
from data.workspace import MADE_FROM_FILE

POOLED_FILE = "pooled_model.py"  # the class of a model that reads a mean; beside this file, and its weights


def check_transformers(config: AlbertConfig) -> None:
    """Raise ConfigError, with the reason, for a model that no architecture of transformers can express."""
    if config.file_format == "jixu":
        raise ConfigError(
            f"transformers cannot express this model (layout {config.layout!r}, norm {config.norm!r}, share "
            f"{config.share!r}): ALBERT there has layout 'google' and shares whole layers or none, BERT has "
            "layout 'bert' and shares none, and both normalise after each block; jixu's own format can"
        )


def _renamed(module: nn.Module, naming: Naming, prefix: str = "") -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for name, parameter in module.named_parameters(prefix):
        parts = naming.of(name)
        values = parameter.detach().cpu().chunk(len(parts))
        tensors.update({part: value.contiguous() for part, value in zip(parts, values, strict=True)})
    return tensors


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write a safetensors file with its folder's permissions; the library lets only the owner read it."""
    save_file(dict(tensors), path, metadata={"format": "pt"})
    path.chmod(path.parent.stat().st_mode & 0o666)


def save_pretrained(
    model: PretrainingModel,
    tokenizer: Tokenizer | Path | None,
    path: Path | str,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Write config.json, model.safetensors and the tokenizer's files into a folder, made if it is not there.

    transformers reads them as ALBERT (google layout, whole layers shared or none) or BERT (bert layout,
    nothing shared), with LayerNorm after each block; only jixu reads other models. If `tokenizer` is a
    folder, its tokenizer's files are copied.
    """
    tensors = _renamed(model, Naming(model.config, model.config.file_format))
    if not model.config.tie_word_embeddings and model.config.file_format != "jixu":
        # transformers does not tie their bias either
        _, (copy, bias) = COPIES[model.config.file_format].items()
        tensors[copy] = tensors[bias].clone()
    tensors = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    _write(Path(path), tensors, to_file(model.config), tokenizer)


def check_new(target: Path) -> None:
    """Raise InputError if a folder that is to be made is there."""
    if target.exists():
        raise InputError(f"{target} is already there: choose a new folder")


def save_new(
    model: PretrainingModel,
    target: Path,
    tokenizer: Tokenizer,
    dtype: torch.dtype = torch.float32,
    *,
    made_from: Sequence[Path | str],
) -> None:
    """Write a model to a new folder, completely or not at all, with the checkpoints it was made from."""
    writing = target.with_name(f"{target.name}.{os.getpid()}.writing")
    try:
        save_pretrained(model, tokenizer, writing, dtype)
        record_sources(writing, made_from)
        os.replace(writing, target)
        sync(target.parent)
    finally:
        shutil.rmtree(writing, ignore_errors=True)


def record_sources(folder: Path, checkpoints: Sequence[Path | str]) -> None:
    """Record which checkpoints a model was made from, so that what they have read is known of it too."""
    found = [str(Path(one).resolve()) if Path(one).exists() else str(one) for one in checkpoints]
    write_json(folder / MADE_FROM_FILE, {"checkpoints": found})


@dataclass(frozen=True, slots=True)
class Head:
    """A head of a fine-tuned model: a linear layer on the encoder's states."""

    architecture: str  # transformers' class without the encoder's name, such as SequenceClassification
    pooling: str | None  # of the states that it reads, such as cls; None: it reads the state of every token
    labels: tuple[str, ...] = ()
    name: str = "classifier"  # of its tensors
    problem: str | None = None  # transformers' problem_type of a SequenceClassification, where it says one
    max_seq_length: int = 512  # that the encoder reads


def read_head(folder: Path) -> Head:
    """The head that transformers' config.json names; its architecture is empty if it names none."""
    path = folder / CONFIG_FILE
    content = read_json(path) if path.is_file() else {}
    names, labels = content.get("architectures"), content.get("id2label")
    architecture = str(names[0] if isinstance(names, list) and names else "").partition("For")[2]
    # what equals transformers' defaults is left out
    known: tuple[str, ...] = ("LABEL_0", "LABEL_1")
    if isinstance(labels, dict) and all(map(str.isdecimal, labels)):  # a tool may have sorted "10" before "2"
        known = tuple(str(labels[number]) for number in sorted(labels, key=int))
    length = content.get("max_position_embeddings", 512)
    longest = length if isinstance(length, int) else 512
    problem = str(content.get("problem_type"))
    return Head(architecture, "cls", known, max_seq_length=longest, problem=problem)


def save_with_head(
    encoder: Encoder, classifier: nn.Linear, head: Head, folder: Path, tokenizer: Tokenizer
) -> None:
    """Write a fine-tuned model for transformers' Auto classes; in jixu's format if they cannot express it.

    No class of theirs reads the mean of the states: such a model comes with a class of its own.
    """
    config = encoder.config
    tensors = _renamed(encoder, Naming(config, config.file_format), "encoder")
    if head.pooling is None:
        tensors = {name: tensor for name, tensor in tensors.items() if ".pooler." not in name}
    tensors |= {f"{head.name}.{name}": one.detach().cpu() for name, one in classifier.named_parameters()}
    content = to_file(config)
    if config.file_format != "jixu":
        family = "Albert" if config.file_format == "albert" else "Bert"
        content |= {"architectures": [f"{family}For{head.architecture}"]}
        if head.pooling not in (None, "cls"):
            places = {"AutoConfig": "PooledConfig", f"AutoModelFor{head.architecture}": "PooledModel"}
            auto_map = {name: f"{POOLED_FILE.removesuffix('.py')}.{place}" for name, place in places.items()}
            content = own_format(config) | {"encoder": content, "pooling": head.pooling, "auto_map": auto_map}
        if head.labels:
            content["id2label"] = {str(number): label for number, label in enumerate(head.labels)}
            content["label2id"] = {label: number for number, label in enumerate(head.labels)}
        if head.problem is not None:
            content["problem_type"] = head.problem
        if head.problem == "regression" or head.architecture == "MultipleChoice":
            content["num_labels"] = 1
    _write(folder, tensors, content, tokenizer, head.max_seq_length)
    if "auto_map" in content:
        write_bytes(folder / POOLED_FILE, Path(__file__).with_name(POOLED_FILE).read_bytes())


def _write(
    folder: Path,
    tensors: Mapping[str, Tensor],
    config: Mapping[str, object],
    tokenizer: Tokenizer | Path | None,
    max_length: int | None = None,
) -> None:
    with replacing(folder / WEIGHTS_FILE) as temporary:
        save_tensors(tensors, temporary)
    write_json(folder / CONFIG_FILE, config)
    if isinstance(tokenizer, Path):
        for path in (tokenizer / name for name in TOKENIZER_FILES):
            if path.is_file():
                write_bytes(folder / path.name, path.read_bytes())
    elif tokenizer is not None:
        tokenizer.save(folder)
    tokenizer_config = folder / TOKENIZER_CONFIG
    if tokenizer is not None and tokenizer_config.is_file():
        longest = max_length or config["max_position_embeddings"]
        content = {**read_json(tokenizer_config), "model_max_length": longest}
        if (folder / "vocab.txt").is_file():  # transformers would read an ALBERT's as SentencePiece
            content = {**SPECIAL_ROLES, **content, "tokenizer_class": "BertTokenizer"}
        write_json(tokenizer_config, content)
