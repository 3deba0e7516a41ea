"""The options of a refresh, and the YAML file that can hold them: the recipe of a corpus.

```yaml
corpus: law
source:                       # relative to this file
  - raw/*.jsonl.gz
  - {path: export.csv, text_field: body}
quality: {min_characters: 50, blocklist: ads.txt}
cleaning: {simplify: true, scrub: [phone, id_card]}
duplicates: {near: 0.85}
guard: {files: [../task/dev.tsv, ../task/test.tsv]}
dictionary: [terms.txt]
```
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BeforeValidator, Field

from data.cleaning import CleaningRules, DuplicateRules, GuardRules, QualityRules
from data.cores import cores
from data.errors import InputError
from data.options import Listed, OnOff, options, parse
from data.sources import SourceRules, SourceSpec
from data.storage import is_remote
from data.workspace import check_name, local_folder

ADVICE = {
    "no_text_field": "name the column or field of each row with the text, --reading.text-field NAME, or "
    "several, as title,answer; of fields within fields only a list of texts or of objects with text is read",
    "not_supported": "turn files such as PDF or Word into text or HTML first",
    "unreadable_file": "a file is damaged, or was still being written: refresh again once it is whole",
}  # by the reason why a document was left out


def advice_for(reasons: Iterable[str]) -> list[str]:
    """What a person can do about reasons why documents were left out."""
    return [f"{reason}: {ADVICE[reason]}" for reason in reasons if reason in ADVICE]


@options
class GateRules:
    """Bounds that a new version must keep to; the shards are not a function of them."""

    # a folder may not have been mounted
    max_lost_documents: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Largest share by which the number of documents may fall."""
    # with more, the vocabulary is of another language
    max_unknown_share: Annotated[float, Field(ge=0, le=1)] = 0.2
    """Largest share of [UNK] among the tokens."""


@options
class MaskingRules:
    """What is masked."""

    rate: Annotated[float, Field(ge=0.01, le=0.8)] = 0.15
    """Share of tokens masked (遮盖比例)."""
    max_ngram: Annotated[int, Field(ge=1, le=10)] = 3
    """Maximum number of words that albert masks together."""
    max_predictions: Annotated[int | None, Field(ge=1, le=512)] = None
    """Maximum number of masked tokens in an instance; by default unlimited."""


@options
class InstanceRules:
    """How documents are cut into instances."""

    sop: Annotated[Literal["auto", "on", "off"], OnOff] = "auto"
    """Sentence-order prediction (句序预测); auto: where documents have an order."""
    copies: Annotated[int, Field(ge=1, le=100)] = 1
    """Times each document is cut into instances anew."""


@options
class RefreshSettings:
    """What to refresh, from what, and how."""

    corpus: str
    """Name of the corpus (语料名)."""
    source: Annotated[tuple[str | SourceSpec, ...], Listed] = ()
    """Raw text: files, folders, globs or URLs (原始文本)."""
    workspace: Annotated[Path, BeforeValidator(local_folder)] = Field(default_factory=local_folder)
    """Folder for everything made (工作区)."""
    tokenizer: str | None = None
    """vocab.txt, spiece.model, folder, or name in the workspace (词表); by default the corpus's own, or the
    only one trained in the workspace."""
    objective: Literal["albert", "roberta", "macbert", "spanbert"] = "albert"
    """What is masked and how."""
    # 512 positions: every public Chinese model's limit
    max_seq_length: Annotated[int, Field(ge=16, le=512)] = 128
    """Maximum tokens per instance."""
    dictionary: Annotated[tuple[str, ...], Listed] = ()
    """Words of the field in jieba's format (用户词典)."""
    discover_words: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """New words of the corpus to list afterwards (新词发现)."""
    seed: Annotated[int, Field(ge=0, le=2**31)] = 0
    """Random seed (随机种子)."""
    workers: Annotated[int, Field(ge=1, le=1024)] = Field(default_factory=cores)
    """Processes; by default one a core."""
    reading: SourceRules = SourceRules()
    """How sources are read."""
    cleaning: CleaningRules = CleaningRules()
    """What cleaning does (清洗)."""
    quality: QualityRules = QualityRules()
    """Filters (过滤)."""
    duplicates: DuplicateRules = DuplicateRules()
    """Near copies (近似去重)."""
    guard: GuardRules = GuardRules()
    """Evaluation sets kept out."""
    gates: GateRules = GateRules()
    """Bounds of a new version (质量门)."""
    masking: MaskingRules = MaskingRules()
    """What is masked (遮盖)."""
    instances: InstanceRules = InstanceRules()
    """How documents are cut."""

    def __post_init__(self) -> None:
        check_name(self.corpus, "corpus")


class _Loader(yaml.SafeLoader):
    """Reads YAML without tags of Python; refuses repeated keys, of which it would take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        keys = [key for key, _ in node.value]
        for number, key in enumerate(keys):
            if key.value in (other.value for other in keys[:number]):
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key.value!r} is given twice", key.start_mark
                )
        return super().construct_mapping(node, deep)


def load_recipe(path: Path | str) -> dict[str, object]:
    """Read a recipe's options, its folder before relative paths. Raises InputError that names bad values."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"no recipe {path.absolute()}")
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except (yaml.YAMLError, UnicodeDecodeError, ValueError) as error:
        raise InputError(f"{path} is not a recipe: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise InputError(f"{path} is not a recipe: it must hold names and values, such as 'corpus: law'")
    if "workspace" in content:
        raise InputError(
            f"{path}: a recipe names no workspace: give --workspace, which defaults to ./workspace"
        )
    values = {str(name): value for name, value in content.items()}
    # the corpus may be named beside the recipe
    settings = parse(RefreshSettings, {"corpus": "corpus", **values}, str(path))
    settings = _placed(settings, path.parent)
    return {field.name: getattr(settings, field.name) for field in fields(settings) if field.name in values}


def _placed(settings: RefreshSettings, folder: Path) -> RefreshSettings:
    """Put the recipe's folder before paths that are relative to it."""

    def place(path: str, within: Path = folder) -> str:
        return path if is_remote(path) else str(within / os.path.expanduser(path))

    def pattern(path: str) -> str:
        """The same of a source, in which the recipe's own folder is no pattern."""
        return place(path, Path(glob.escape(str(folder)))) if glob.has_magic(path) else place(path)

    tokenizer = settings.tokenizer
    if tokenizer and (folder / tokenizer).exists():
        tokenizer = place(tokenizer)
    blocklist = settings.quality.blocklist
    return replace(
        settings,
        source=tuple(
            pattern(one) if isinstance(one, str) else replace(one, path=pattern(one.path))
            for one in settings.source
        ),
        tokenizer=tokenizer,
        dictionary=tuple(map(place, settings.dictionary)),
        guard=replace(settings.guard, files=tuple(map(place, settings.guard.files))),
        quality=replace(settings.quality, blocklist=blocklist and place(blocklist)),
    )
