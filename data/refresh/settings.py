"""A refresh's settings, and the YAML file that can hold them: the recipe of a corpus.

```yaml
corpus: law
sources:                      # relative to this file
  - raw/*.jsonl.gz
  - {path: export.csv, text_field: body}
quality: {min_characters: 50, blocklist: ads.txt}
cleaning: {simplify: true, scrub: [phone, id_card]}
duplicates: {near: 0.85}
guard: {files: [../task/dev.tsv, ../task/test.tsv]}
dictionaries: [terms.txt]
```
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Literal, Union, get_args, get_origin, get_type_hints

import yaml

from data.cleaning import KINDS, CleaningRules, DuplicateRules, GuardRules, QualityRules
from data.errors import InputError
from data.instances import OBJECTIVES
from data.sources import TEXT_FORMATS, TextFormat
from data.storage import is_remote
from data.workspace import check_name, default_workspace


@dataclass(frozen=True, kw_only=True)
class GateRules:
    """Bounds that depend on the corpus. The shards are not a function of them."""

    max_lost_documents: float = 0.5  # of the current version's: a folder may not have been mounted
    max_unknown_share: float = 0.2  # [UNK] among tokens: the vocabulary is of another language


@dataclass(frozen=True, kw_only=True)
class SourceSpec:
    """One source and how it is read."""

    path: str  # a file, a folder, a glob or a URL
    text_field: str | None = None  # None: the recipe's
    text_format: TextFormat | None = None


@dataclass(frozen=True, kw_only=True)
class RefreshSettings:
    """What to refresh, from what, and how."""

    __pydantic_config__ = {"extra": "forbid"}

    corpus: str
    sources: tuple[str | SourceSpec, ...]
    workspace: Path = field(default_factory=default_workspace)
    # a vocabulary's path or name; None: the corpus's own, or the workspace's only one
    tokenizer: str | None = None
    objective: str = "albert"
    max_seq_length: int = 128
    sop: Literal["auto", "on", "off"] = "auto"
    text_format: TextFormat = "auto"
    text_field: str | None = None
    cleaning: CleaningRules = field(default_factory=CleaningRules)
    quality: QualityRules = field(default_factory=QualityRules)
    duplicates: DuplicateRules = field(default_factory=DuplicateRules)
    guard: GuardRules = field(default_factory=GuardRules)
    gates: GateRules = field(default_factory=GateRules)
    dictionaries: tuple[str, ...] = ()  # of the user's words, in jieba's format
    mask_rate: float = 0.15
    max_ngram: int = 3
    max_predictions: int | None = None
    copies: int = 1
    seed: int = 0
    discover_words: int = 0  # new words to look for after a new version; 0: none
    workers: int = field(default_factory=lambda: os.cpu_count() or 1)


# of this list a settings object's values must be, beside what its types say
_RANGES: dict[str, tuple[float, float]] = {
    "max_seq_length": (16, 512),  # 512 positions: every public Chinese model's limit
    "mask_rate": (0.01, 0.8),
    "max_ngram": (1, 10),
    "max_predictions": (1, 512),
    "copies": (1, 100),
    "seed": (0, 2**31),
    "workers": (1, 1024),
    "discover_words": (0, 1_000_000),
    "cleaning.max_repeats": (0, 1000),
    "quality.min_characters": (1, 1_000_000),
    "quality.min_han_share": (0, 1),
    "quality.max_repeated_sentences": (0, 1),
    "quality.max_repeated_ngrams": (0, 1),
    "quality.max_unended_lines": (0, 1),
    "quality.boilerplate_documents": (0, 10**9),
    "quality.max_boilerplate": (0, 1),
    "quality.max_blocked": (0, 10**6),
    "duplicates.near": (0.6, 1),  # below, the bands miss too many pairs
    "duplicates.ngram": (2, 50),
    "guard.ngram": (6, 100),
    "gates.max_lost_documents": (0, 1),
    "gates.max_unknown_share": (0, 1),
}
_CHOICES: dict[str, tuple[str, ...]] = {
    "objective": tuple(OBJECTIVES),
    "sop": ("auto", "on", "off"),
    "text_format": TEXT_FORMATS,
    "guard.action": ("drop", "report"),
}


def check_settings(settings: RefreshSettings) -> None:
    """Raise InputError that names every value out of its range."""
    if faults := _faults(settings):
        raise InputError("; ".join(faults))


def _faults(settings: RefreshSettings) -> list[str]:
    faults: list[str] = []
    try:
        check_name(settings.corpus, "corpus")
    except InputError as error:
        faults.append(str(error))
    if not settings.sources:
        faults.append("no source given: pass --source with a file, a folder, a glob or a URL")
    for name, (low, high) in _RANGES.items():
        value = _value(settings, name)
        if value is not None and not low <= value <= high:
            faults.append(f"{name}={value}: it must be from {low} to {high}")
    for name, known in _CHOICES.items():
        if (value := _value(settings, name)) not in known:
            faults.append(f"{name}={value!r}: choose one of {', '.join(known)}")
    if unknown := set(settings.cleaning.scrub) - set(KINDS):
        faults.append(f"cleaning.scrub={', '.join(sorted(unknown))}: choose among {', '.join(KINDS)}")
    return faults


def _value(settings: object, name: str) -> object:
    for part in name.split("."):
        settings = getattr(settings, part)
    return settings


class _Loader(yaml.SafeLoader):
    """YAML without tags of Python's, and without a key given twice: `faults` names them all."""

    def __init__(self, text: str):
        super().__init__(text)
        self.faults: list[str] = []


_REFUSED = ...  # stands for a value that is among the faults already


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict:
    content = {}
    for key, value in node.value:
        name = loader.construct_object(key, deep=True)
        try:
            if name in content:
                loader.faults.append(f"{name!r} is given twice, again in line {key.start_mark.line + 1}")
        except TypeError:
            raise yaml.constructor.ConstructorError(
                None, None, "a name must be text", key.start_mark
            ) from None
        content[name] = loader.construct_object(value, deep=True)
    return content


def _refuse(loader: _Loader, node: yaml.Node) -> object:
    loader.faults.append(f"line {node.start_mark.line + 1}: no tags are read, as {node.tag} is")
    return _REFUSED


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
_Loader.add_constructor(None, _refuse)


def _parse(text: str) -> tuple[object, list[str]]:
    loader = _Loader(text)
    try:
        return loader.get_single_data(), loader.faults
    finally:
        loader.dispose()


def load_recipe(path: Path) -> dict[str, object]:
    """Settings in a recipe file, its paths made absolute. Raises InputError that names every bad value."""
    if not path.is_file():
        raise InputError(f"no recipe {path}")
    try:
        content, faults = _parse(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, ValueError) as error:
        raise InputError(f"{path} is not a recipe: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise InputError(f"{path} is not a recipe: it must hold names and values, such as 'corpus: law'")
    allowed = {k: v for k, v in get_type_hints(RefreshSettings).items() if k not in ("workspace",)}
    settings = _convert_fields(content, allowed, "", faults)
    if faults:  # and what else would be refused later; what is missing may be given beside the recipe
        faults += _faults(RefreshSettings(**{"corpus": "c", "sources": ("all",), **settings}))
        raise InputError(f"{path}: {'; '.join(faults)}")
    return _absolute(settings, path.parent)


def _convert_fields(
    content: Mapping, hints: Mapping[str, object], prefix: str, faults: list[str]
) -> dict[str, object]:
    settings = {}
    if unknown := [f"{prefix}{name}" for name in content if name not in hints]:
        faults.append(f"unknown {', '.join(unknown)}, known are {', '.join(hints)}")
    for name, value in content.items():
        if name not in hints or value is _REFUSED:
            continue
        try:
            settings[name] = _convert(value, hints[name], f"{prefix}{name}", faults)
        except TypeError as error:
            faults.append(f"{prefix}{name}={value!r} must be {error}")
    return settings


def _convert(value: object, hint: object, name: str, faults: list[str]) -> object:
    """The value as a setting of this type holds it; raises TypeError with what it should have been."""
    if get_origin(hint) in (Union, UnionType):
        options = get_args(hint)
        if value is None and type(None) in options:
            return None
        for option in options:
            if option is not type(None):
                try:
                    return _convert(value, option, name, faults)
                except TypeError as error:
                    expected = error
        raise expected
    if get_origin(hint) is Literal:
        value = {True: "on", False: "off"}.get(value, value) if isinstance(value, bool) else value
        if value not in get_args(hint):
            raise TypeError(f"one of {', '.join(get_args(hint))}")
        return value
    if get_origin(hint) is tuple:
        items = value if isinstance(value, list) else [value]
        return tuple(_convert(item, get_args(hint)[0], name, faults) for item in items)
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, dict):
            raise TypeError("names and values")
        return hint(**_convert_fields(value, get_type_hints(hint), f"{name}.", faults))
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise TypeError({str: "text", int: "a whole number", float: "a number", bool: "true or false"}[hint])
    return value


def _absolute(settings: dict[str, object], folder: Path) -> dict[str, object]:
    """Paths of a recipe are relative to it."""

    def place(path: str) -> str:
        return path if is_remote(path) else str(folder / Path(path).expanduser())

    changes: dict[str, Callable] = {
        "sources": lambda sources: tuple(
            place(s) if isinstance(s, str) else dataclasses.replace(s, path=place(s.path)) for s in sources
        ),
        "dictionaries": lambda paths: tuple(map(place, paths)),
        "guard": lambda rules: dataclasses.replace(rules, files=tuple(map(place, rules.files))),
        "quality": lambda rules: dataclasses.replace(
            rules, blocklist=rules.blocklist and place(rules.blocklist)
        ),
    }
    return {name: changes[name](value) if name in changes else value for name, value in settings.items()}
