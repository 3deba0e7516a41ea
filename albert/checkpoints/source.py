"""Find a checkpoint's files: in a folder, at a TensorFlow prefix, as a single file, or on the Hub."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from albert.checkpoints.config_files import read_config
from data import tokenization
from data.errors import InputError
from data.files import read_json, sha256
from data.samples import shipped_checkpoint

HUB_PREFIX = "hf:"
_SMALL = ["*.json", "vocab*.txt", "*.model"]  # files of a repository that are always wanted


def download(name: str) -> Path:
    """Return the folder of "hf:REPO" or "hf:REPO@REVISION" in the Hub's cache, downloading it if needed.

    Weights are safetensors if the repository has them, else .bin. Raises InputError if that fails.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, HTTPError, LocalEntryNotFoundError
    from huggingface_hub.utils import disable_progress_bars

    repository, _, revision = name.removeprefix(HUB_PREFIX).partition("@")
    # huggingface_hub reads the variable once, when it is imported
    cache = os.environ.get("HF_HUB_CACHE")
    wanted: dict[str, Any] = {"repo_id": repository, "revision": revision or None, "cache_dir": cache}
    disable_progress_bars()
    try:
        for weights in ("*.safetensors", "pytorch_model*.bin"):
            folder = Path(snapshot_download(allow_patterns=[*_SMALL, weights], **wanted))
            if any(folder.glob(weights)):
                return folder
    except LocalEntryNotFoundError:
        raise InputError(
            f"{name} is not in the local cache and the Hub cannot be reached: download it where there is a "
            "network, or pass a folder"
        ) from None
    except (HTTPError, HFValidationError, OSError) as error:
        raise InputError(
            f"{name} cannot be downloaded: {' '.join(str(error).split())}; write hf:OWNER/NAME, and set "
            "HF_TOKEN for a private or gated repository"
        ) from None
    raise InputError(f"{name} holds neither safetensors nor pytorch_model.bin: pass another repository")


CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"
_SUFFIXES = (".safetensors", ".bin", ".index")
_SHARD = re.compile(r"-\d{5}-of-\d{5}\.(safetensors|bin)$")
_NOT_WEIGHTS = {"trainer_state.safetensors", "training_args.bin", "optimizer.bin", "scheduler.bin"}


@dataclass(frozen=True, slots=True)
class Source:
    """The files of one checkpoint."""

    folder: Path
    config: Path  # may not exist
    weights: Path  # a .safetensors or .bin, the index of a sharded one, or a TensorFlow .index

    @property
    def is_tensorflow(self) -> bool:
        return self.weights.suffix == ".index"

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file of the weights, their index included."""
        return tuple(dict.fromkeys((self.weights, *self.parts)))

    @property
    def parts(self) -> list[Path]:
        """The files that hold the tensors. Raises InputError for an index that does not name them."""
        if self.is_tensorflow:
            return tensorflow_shards(self.weights)
        if self.weights.suffix != ".json":
            return [self.weights]
        try:
            names = sorted(set(read_json(self.weights)["weight_map"].values()))
        except (InputError, KeyError, TypeError, AttributeError):
            raise InputError(f"{self.weights} is no index of shards: it has no weight_map") from None
        for name in names:
            if not isinstance(name, str) or name != Path(name).name:
                raise InputError(
                    f"{self.weights} names {name!r}, which is outside its folder and not to be trusted"
                )
            if not (self.folder / name).is_file():
                raise InputError(f"{self.weights} names {name}, which is not there")
        return [self.folder / name for name in names]

    @property
    def sha256(self) -> str:
        """The digest of the weights' file; if there are several, of their digests."""
        digests = [sha256(path) for path in self.files]
        return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()

    @property
    def vocabulary(self) -> Path:
        """The file of its tokenizer. Raises InputError if there is none."""
        return tokenization.find_tokenizer(str(self.folder))


def names_checkpoint(given: str) -> bool:
    """Whether a name is a checkpoint's and not a preset's; does not ask the Hub."""
    return given.startswith(HUB_PREFIX) or _find_here(given) is not None


def _find_here(given: str) -> Path | None:
    """A path that is there, a shipped checkpoint, or the index of a TensorFlow prefix."""
    places = (Path(given), shipped_checkpoint(given), Path(f"{given}.index"))
    return next((place for place in places if place and place.exists()), None)


def find_source(given: Path | str, *, any_model: bool = False) -> Source:
    """Find the checkpoint of a folder, a weights file, a TensorFlow prefix, an "hf:REPO" or a shipped name;
    with `any_model` also one whose architecture is not jixu's.

    Raises InputError if there is none or more than one; ConfigError for a bad config.json.
    """
    text = str(given)
    path = download(text) if text.startswith(HUB_PREFIX) else _find_here(text)
    if path is None:
        raise InputError(f"no checkpoint at {text}: pass a folder, a weights file, or hf:REPO")
    config = _find_config(path if path.is_dir() else path.parent, any_model)
    weights = _only_weights(path, config) if path.is_dir() else path
    if Path(weights.name.removesuffix(".index.json")).suffix not in _SUFFIXES:
        raise InputError(
            f"{weights} is no weights file: known are .safetensors, .bin, their .index.json, and "
            "TensorFlow's .index"
        )
    return Source(weights.parent, config, weights)


def _find_config(folder: Path, any_model: bool) -> Path:
    if (folder / CONFIG_FILE).is_file():
        if not any_model:
            read_config(folder / CONFIG_FILE)  # first: it is small, and its errors say more
        return folder / CONFIG_FILE
    found = [
        path for pattern in ("albert", "bert") for path in sorted(folder.glob(f"{pattern}*config*.json"))
    ]
    if len(found) > 1:
        raise InputError(
            f"{folder} holds {len(found)} configs ({', '.join(p.name for p in found)}): leave one, or name "
            f"it {CONFIG_FILE}"
        )
    return found[0] if found else folder / CONFIG_FILE


def missing_config(folder: Path) -> InputError:
    """The error for a folder without a config."""
    inside = ", ".join(sorted(path.parent.name for path in folder.glob(f"*/{CONFIG_FILE}")))
    other = "a folder in transformers' format, or a preset whose name no folder here has"
    what = f"one of its folders, {inside}" if inside else other
    return InputError(f"no {CONFIG_FILE} in {folder}: pass {what}")


def _only_weights(folder: Path, config: Path) -> Path:
    candidates = [
        path
        for pattern in ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json")
        for path in sorted(folder.glob(pattern))
        if path.name not in _NOT_WEIGHTS and not _SHARD.search(path.name)
    ]
    candidates += [path for path in sorted(folder.glob("*.index")) if tensorflow_shards(path)]
    # a clone of a repository has the same weights in several formats; transformers opens these
    candidates = [path for path in candidates if "safetensors" in path.name] or candidates
    if len(candidates) > 1:
        names = ", ".join(path.name for path in candidates)
        raise InputError(
            f"{folder} holds {len(candidates)} sets of weights ({names}): pass the one that is meant"
        )
    if not candidates and not config.is_file():
        raise missing_config(folder)
    if not candidates:
        raise InputError(
            f"no {WEIGHTS_FILE} in {folder}, no pytorch_model.bin, and no TensorFlow checkpoint either"
        )
    return candidates[0]


def tensorflow_shards(index: Path) -> list[Path]:
    """The data files beside a TensorFlow .index."""
    prefix = index.name.removesuffix(".index")
    return sorted(p for p in index.parent.iterdir() if p.name.startswith(f"{prefix}.data-"))
