"""Reading and writing checkpoints in transformers' ALBERT and BERT formats, and jixu's own for models that
neither can express. The only place that knows tensor names.

Loading is strict: every tensor of the encoder must be there in its shape; a missing head is new and is named.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from albert.config import PRESETS, AlbertConfig, ConfigError
from albert.heads import PretrainingModel
from data.files import replacing, write_text
from data.records import InputError
from data.tokenization import Tokenizer, find_tokenizer, load_tokenizer

CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"
TOKENIZER_FILES = ("vocab.txt", "spiece.model", "tokenizer.json", "tokenizer_config.json")

# ours -> theirs; {l} stands for a layer's number; the fused projection is three tensors in a file
_ALBERT_LAYER = "albert.encoder.albert_layer_groups.{g}.albert_layers.{i}."
_ALBERT_NAMES = {
    "encoder.embedding.word": "albert.embeddings.word_embeddings.weight",
    "encoder.embedding.token_type": "albert.embeddings.token_type_embeddings.weight",
    "encoder.embedding.position": "albert.embeddings.position_embeddings.weight",
    "encoder.embedding.norm": "albert.embeddings.LayerNorm",
    "encoder.embedding.projection": "albert.encoder.embedding_hidden_mapping_in",
    "encoder.attentions.{l}.query_key_value": _ALBERT_LAYER + "attention.{part}",
    "encoder.attentions.{l}.output": _ALBERT_LAYER + "attention.dense",
    "encoder.attentions.{l}.norm": _ALBERT_LAYER + "attention.LayerNorm",
    "encoder.feed_forwards.{l}.inner": _ALBERT_LAYER + "ffn",
    "encoder.feed_forwards.{l}.output": _ALBERT_LAYER + "ffn_output",
    "encoder.feed_forwards.{l}.norm": _ALBERT_LAYER + "full_layer_layer_norm",
    "encoder.pooler": "albert.pooler",
    "mlm.transform": "predictions.dense",
    "mlm.norm": "predictions.LayerNorm",
    "mlm.bias": "predictions.bias",
    "sop": "sop_classifier.classifier",
}
_BERT_NAMES = {
    "encoder.embedding.word": "bert.embeddings.word_embeddings.weight",
    "encoder.embedding.token_type": "bert.embeddings.token_type_embeddings.weight",
    "encoder.embedding.position": "bert.embeddings.position_embeddings.weight",
    "encoder.embedding.norm": "bert.embeddings.LayerNorm",
    "encoder.attentions.{l}.query_key_value": "bert.encoder.layer.{l}.attention.self.{part}",
    "encoder.attentions.{l}.output": "bert.encoder.layer.{l}.attention.output.dense",
    "encoder.attentions.{l}.norm": "bert.encoder.layer.{l}.attention.output.LayerNorm",
    "encoder.feed_forwards.{l}.inner": "bert.encoder.layer.{l}.intermediate.dense",
    "encoder.feed_forwards.{l}.output": "bert.encoder.layer.{l}.output.dense",
    "encoder.feed_forwards.{l}.norm": "bert.encoder.layer.{l}.output.LayerNorm",
    "encoder.pooler": "bert.pooler.dense",
    "mlm.transform": "cls.predictions.transform.dense",
    "mlm.norm": "cls.predictions.transform.LayerNorm",
    "mlm.bias": "cls.predictions.bias",
    "sop": "cls.seq_relationship",
}
_NAMES = {"albert": _ALBERT_NAMES, "bert": _BERT_NAMES}
# the decoder's own copies of the word table and of the bias
_COPIES = {
    "albert": {
        "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
        "predictions.decoder.bias": "predictions.bias",
    },
    "bert": {
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    "jixu": {},
}
_BUFFERS = {"albert.embeddings.position_ids", "bert.embeddings.position_ids"}  # of older versions
_HEADS = {"mlm": "MLM head", "sop": "SOP head"}


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What became of every tensor. Names are the file's, but for `new`, which holds ours."""

    matched: tuple[str, ...]
    new: tuple[str, ...]  # parameters the file has not: initialised at random
    unused: tuple[str, ...]

    def notices(self) -> list[str]:
        """What a person must know before training goes on from this checkpoint."""
        lines = [
            f"{title} newly initialised: it is not in the checkpoint"
            for part, title in _HEADS.items()
            if any(name.startswith(f"{part}.") for name in self.new)
        ]
        if any(name.startswith("encoder.pooler.") for name in self.new):
            lines.append("pooler newly initialised: it is not in the checkpoint")
        if self.unused:
            lines.append(
                f"{len(self.unused)} tensor(s) of the checkpoint not used: {', '.join(self.unused[:4])}"
            )
        return lines


def _file_names(ours: str, config: AlbertConfig) -> list[str]:
    """Names of the tensors in a file that make up one parameter of ours."""
    if config.file_format == "jixu":
        return [ours]
    names = _NAMES[config.file_format]
    number = next((part for part in ours.split(".") if part.isdigit()), "")
    pattern = ours.replace(f".{number}.", ".{l}.") if number else ours
    stem, _, leaf = pattern.rpartition(".")
    theirs = names[pattern] if pattern in names else f"{names[stem]}.{leaf}"
    parts = ("query", "key", "value") if "{part}" in theirs else ("",)
    group, inner = divmod(int(number or 0), config.inner_group_num)
    return [theirs.format(l=number, g=group, i=inner, part=part) for part in parts]


def load_model(folder: Path) -> tuple[PretrainingModel, LoadReport]:
    """The model of a checkpoint folder and what was matched.

    Raises InputError when a file is missing or damaged, or when the encoder is not wholly in it; ConfigError
    for a config that cannot be built.
    """
    if not (folder / CONFIG_FILE).is_file():
        raise InputError(
            f"no {CONFIG_FILE} in {folder}: pass a checkpoint folder in transformers' format, or a preset"
        )
    config = AlbertConfig.from_file(folder / CONFIG_FILE)
    found = _read_weights(folder / WEIGHTS_FILE)
    model = PretrainingModel(config)
    matched: list[str] = []
    new: list[str] = []
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parts = _file_names(name, config)
            if not all(part in found for part in parts):
                new.append(name)
                continue
            value = torch.cat([found[part] for part in parts]) if len(parts) > 1 else found[parts[0]]
            if value.shape != parameter.shape:
                raise InputError(
                    f"{parts[0]} in {folder / WEIGHTS_FILE} has shape {tuple(value.shape)}, but "
                    f"{CONFIG_FILE} "
                    f"asks for {tuple(parameter.shape)}: the two do not belong together"
                )
            parameter.copy_(value)
            matched += parts
    missing = [name for name in new if name.startswith("encoder.") and not name.startswith("encoder.pooler.")]
    if missing:
        raise InputError(
            f"{folder / WEIGHTS_FILE} does not hold the encoder: {len(missing)} tensor(s) are missing, first "
            f"{_file_names(missing[0], config)[0]}; training would start from random weights"
        )
    unused = sorted(set(found) - set(matched) - set(_COPIES[config.file_format]) - _BUFFERS)
    return model, LoadReport(tuple(matched), tuple(new), tuple(unused))


def _read_weights(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise InputError(f"no {path.name} in {path.parent}: save the checkpoint as safetensors first")
    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(f"{path} is not a whole safetensors file: {error}") from None
    broken = [name for name, t in tensors.items() if t.is_floating_point() and not bool(t.isfinite().all())]
    if broken:
        raise InputError(
            f"{path} holds NaN or infinity in {len(broken)} tensor(s), first {broken[0]}: it is damaged"
        )
    return tensors


def to_file(model: PretrainingModel) -> dict[str, Tensor]:
    """The model's tensors under the names of its file format, tied copies included."""
    file_format = model.config.file_format
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        parts = _file_names(name, model.config)
        values = parameter.detach().cpu().chunk(len(parts))
        tensors.update({part: value.contiguous() for part, value in zip(parts, values, strict=True)})
    for copy, original in _COPIES[file_format].items():
        tensors[copy] = tensors[original].clone()
    return tensors


def save_model(model: PretrainingModel, folder: Path, tokenizer: Tokenizer | Path | None = None) -> None:
    """Write config.json, model.safetensors and the tokenizer's files.

    transformers reads them as ALBERT (google layout, all shared) or BERT (bert layout, nothing shared); other
    models are written under jixu's own names, which only jixu reads.

    `tokenizer` may be a folder that holds a tokenizer's files: those are copied.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / WEIGHTS_FILE) as temporary:
        save_file(to_file(model), temporary, metadata={"format": "pt"})
    write_text(folder / CONFIG_FILE, json.dumps(model.config.to_file(), indent=2) + "\n")
    if isinstance(tokenizer, Path):
        for path in _tokenizer_files(tokenizer):
            with replacing(folder / path.name) as temporary:
                shutil.copyfile(path, temporary)
    elif tokenizer is not None:
        tokenizer.save(folder)


def _tokenizer_files(folder: Path) -> Iterator[Path]:
    return (folder / name for name in TOKENIZER_FILES if (folder / name).is_file())


def load_pretrained(path: Path | str) -> tuple[PretrainingModel, Tokenizer]:
    """Model and tokenizer of a checkpoint folder. Raises as `load_model`, and InputError when the two
    disagree.
    """
    folder = Path(path)
    model, _ = load_model(folder)
    tokenizer = load_tokenizer(find_tokenizer(str(folder)))
    if tokenizer.vocab_size > model.config.vocab_size:
        raise InputError(
            f"the vocabulary in {folder} has {tokenizer.vocab_size:,} entries, the model "
            f"{model.config.vocab_size:,}: "
            "they do not belong together"
        )
    return model, tokenizer


def new_model(init: str, vocab_size: int, *, seed: int) -> tuple[PretrainingModel, LoadReport | None]:
    """A model to start from: random weights for a preset's name, or the checkpoint in a folder.

    Raises ConfigError or InputError for what is neither.
    """
    if Path(init).is_dir():
        return load_model(Path(init))
    torch.manual_seed(seed)
    try:
        return PretrainingModel(AlbertConfig.preset(init, vocab_size=vocab_size)), None
    except ConfigError:
        raise InputError(
            f"--init {init!r} is no checkpoint folder and no preset: presets are {', '.join(PRESETS)}"
        ) from None
