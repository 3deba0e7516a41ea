"""Write checkpoints: in transformers' format if it can express the model, else under jixu's own names."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from albert.checkpoints.config_files import to_file
from albert.checkpoints.names import COPIES, Naming
from albert.checkpoints.source import CONFIG_FILE, WEIGHTS_FILE
from albert.model import AlbertConfig, PretrainingModel
from data.errors import ConfigError
from data.files import replacing, write_text
from data.tokenization import Tokenizer

TOKENIZER_FILES = ("vocab.txt", "spiece.model", "tokenizer.json", "tokenizer_config.json")


def check_transformers(config: AlbertConfig) -> None:
    """Raise ConfigError, with the reason, for a model that no architecture of transformers can express."""
    if config.file_format != "jixu":
        return
    if config.layout == "bright":
        reason = (
            "its LayerNorm is at the hidden size, after the projection, and its MLM head goes back through "
            "the projection (layout 'bright'); transformers' ALBERT has both at the embedding size"
        )
    elif config.norm == "pre":
        reason = "it normalises before each block (norm 'pre'); transformers' ALBERT and BERT do so after"
    else:
        shape = f"layout {config.layout!r} with share {config.share!r}"
        reason = f"{shape}: ALBERT there shares whole layers, BERT none"
    raise ConfigError(f"transformers cannot express this model: {reason}; jixu's own format can")


def named_tensors(model: PretrainingModel) -> dict[str, Tensor]:
    """The model's tensors under the names of its file format, tied copies included."""
    file_format = model.config.file_format
    naming = Naming(model.config, file_format)
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        parts = naming.of(name)
        values = parameter.detach().cpu().chunk(len(parts))
        tensors.update({part: value.contiguous() for part, value in zip(parts, values, strict=True)})
    for copy, original in COPIES.get(file_format, {}).items():
        if copy not in tensors:  # an untied decoder has weights of its own
            tensors[copy] = tensors[original].clone()
    return tensors


def save_model(model: PretrainingModel, folder: Path, tokenizer: Tokenizer | Path | None = None) -> None:
    """Write config.json, model.safetensors and the tokenizer's files.

    transformers reads them as ALBERT (google layout, whole layers shared or none) or BERT (bert layout,
    nothing shared), with LayerNorm after each block; only jixu reads other models. If `tokenizer` is a
    folder, its tokenizer's files are copied.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / WEIGHTS_FILE) as temporary:
        save_file(named_tensors(model), temporary, metadata={"format": "pt"})
    write_text(folder / CONFIG_FILE, json.dumps(to_file(model.config), indent=2) + "\n")
    if isinstance(tokenizer, Path):
        for path in (tokenizer / name for name in TOKENIZER_FILES):
            if path.is_file():
                with replacing(folder / path.name) as temporary:
                    shutil.copyfile(path, temporary)
    elif tokenizer is not None:
        tokenizer.save(folder)
