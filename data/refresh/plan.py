"""The plan of a refresh, checked before any text is read: files, vocabulary, recipe and current version."""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path

from data.catalog import (
    Source,
    Version,
    has_catalog,
    newest_version,
    read_catalog,
    version_recipe,
    version_shards,
    version_sources,
)
from data.cleaning import ALGORITHM, check_languages, make_guard, read_blocklist
from data.errors import InputError, masked
from data.files import sha256
from data.instances import OBJECTIVES, SHARD_CHARACTERS, Shard
from data.refresh.build import segmenter
from data.refresh.read import READING_VERSION
from data.refresh.settings import RefreshSettings, SourceSpec
from data.sources import SourceRules, find_files
from data.storage import is_remote, size_and_digest
from data.tokenization import find_tokenizer, load_tokenizer, tokenizer_digest
from data.workspace import Workspace

BUILDING_VERSION = 12  # raise it when words, tokens, instances or masks change for the same text
SMALL = 1 << 16  # bytes of a file whose content takes less time than opening it, or finding it unchanged
_PACK_FILES = 128  # small files that share a listing, on average


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file to read."""

    uri: str  # with its credentials, so it is neither shown nor stored
    reading: SourceRules
    size: int = 0  # bytes; 0 if unknown, as of a URL
    pack: int = 0  # its number: neighbours with the same one share a listing
    previous: Source | None = None  # as the current version read it

    @property
    def place(self) -> str:
        """Return its URI as people and the catalog see it."""
        return masked(self.uri)

    @property
    def is_small(self) -> bool:
        return self.size <= SMALL and not is_remote(self.uri)


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything a refresh needs to know before it reads text, checked."""

    settings: RefreshSettings
    files: tuple[SourceFile, ...]
    tokenizer_path: Path
    recipe: dict[str, object]
    recipe_hash: str
    current: Version | None
    anew: str | None  # why everything is built again, if it is: the sources and shards below are empty then
    current_sources: tuple[Source, ...]
    current_shards: tuple[Shard, ...]

    @property
    def workspace(self) -> Workspace:
        return Workspace(self.settings.workspace)

    @property
    def staging(self) -> Path:
        """Folder of the refresh's work in progress."""
        return self.workspace.staging(self.settings.corpus)


@dataclass(frozen=True, slots=True)
class Changes:
    """What a refresh would do, going by its sources."""

    corpus: str
    version: int | None  # the current one
    anew: str | None  # why everything would be built again, if it would
    read: tuple[str, ...]  # sources that are new or changed
    unchanged: int
    gone: tuple[str, ...]
    in_order: bool  # the sources that stay, as before: it decides which of two duplicates is the first


def plan_refresh(settings: RefreshSettings) -> Plan:
    """Check the settings and find the sources. Writes nothing; raises InputError if something cannot work."""
    if not settings.source:
        raise InputError("no source given: pass --source with a file, a folder, a glob or a URL")
    if settings.instances.sop == "on" and not OBJECTIVES[settings.objective].sentence_order:
        raise InputError(f"sop=on: the objective {settings.objective} has no sentence order")
    files = _find_all(settings)
    workspace = Workspace(settings.workspace)
    current, sources, shards = _read_current(workspace, settings.corpus)
    tokenizer_path = _find_tokenizer(settings, workspace, current.tokenizer if current else None)
    tokenizer = load_tokenizer(tokenizer_path)
    _check_files(settings)
    recipe = _recipe(settings, tokenizer_path)
    recipe_hash = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:16]
    anew = None
    if current and current.recipe_hash != recipe_hash:
        anew, sources, shards = _changes(workspace, current, recipe), [], []
    by_uri = {source.uri: source for source in sources}
    return Plan(
        settings,
        tuple(replace(file, previous=by_uri.get(file.place)) for file in _pack(files)),
        tokenizer_path,
        {**recipe, **_reading_record(settings), "vocab_size": tokenizer.vocab_size},
        recipe_hash,
        current,
        anew,
        tuple(sources),
        tuple(shards),
    )


def renew(plan: Plan) -> Plan:
    """Return the plan, or a new one if another refresh committed to the corpus since it was made."""
    current, _, _ = _read_current(plan.workspace, plan.settings.corpus)
    return plan if current == plan.current else plan_refresh(plan.settings)


def _read_current(workspace: Workspace, corpus: str) -> tuple[Version | None, list[Source], list[Shard]]:
    """Read the current version of a corpus, its sources and its shards from the catalog."""
    if has_catalog(workspace):
        with read_catalog(workspace) as db:
            if current := newest_version(db, corpus):
                return current, version_sources(db, current), version_shards(db, current)
    return None, [], []


# entries of a recipe that a person does not set: another version of jixu changes them
_OF_JIXU = {
    "reading_version": "jixu's reading of text",
    "building_version": "jixu's making of instances",
    "near_duplicates_by": "jixu's search for near duplicates",
    "shard_characters": "jixu's size of shards",
}


def _changes(workspace: Workspace, current: Version, recipe: dict[str, object]) -> str:
    """Name the entries of a recipe that differ from the current version's."""
    with read_catalog(workspace) as db:
        before = _flat(version_recipe(db, current.corpus, current.version))
    entries = _flat(json.loads(json.dumps(recipe))).items()
    changed = [
        _OF_JIXU.get(name, name) for name, value in entries if name not in before or before[name] != value
    ]
    return f"{', '.join(changed)} changed" if changed else "files were damaged"


def _flat(recipe: dict[str, object]) -> dict[str, object]:
    groups = {name: value if isinstance(value, dict) else {"": value} for name, value in recipe.items()}
    return {f"{name}.{key}".rstrip("."): one for name, group in groups.items() for key, one in group.items()}


def _find_all(settings: RefreshSettings) -> list[SourceFile]:
    files: dict[str, SourceFile] = {}
    faults: list[str] = []
    for source in settings.source:
        spec = source if isinstance(source, SourceSpec) else SourceSpec(path=source)
        try:
            found = find_files(spec.path, allow_loopback=settings.reading.allow_loopback)
        except InputError as error:
            faults.append(str(error))
            continue
        reading = replace(
            settings.reading,
            text_format=spec.text_format or settings.reading.text_format,
            text_field=spec.text_field or settings.reading.text_field,
        )
        # the workspace, where a walk comes upon it, is no source
        own = os.path.join(os.path.realpath(settings.workspace), "")
        is_own = os.path.realpath(os.path.expanduser(spec.path)).startswith(own)
        for uri in found:
            key = masked(uri) if is_remote(uri) else os.path.realpath(uri)
            if key.startswith(own) and not is_own:
                continue
            # a file named twice is read once, by settings of its own if either has some
            known = files.setdefault(key, SourceFile(uri, reading, _size(uri)))
            if known.reading == settings.reading:
                files[key] = replace(known, reading=reading)
    if not files and not faults:
        faults = [f"source {spec.path} holds nothing but files of the workspace {settings.workspace}"]
    if faults:
        raise InputError("; ".join(faults))
    return list(files.values())


def _size(uri: str) -> int:
    with suppress(OSError):  # a URL, or it has just been removed
        return os.stat(uri).st_size
    return 0


def _pack(files: Iterable[SourceFile]) -> list[SourceFile]:
    """Number the packs of files. Their names decide where one begins, so that a new file changes one pack."""
    packed: list[SourceFile] = []
    for file in files:
        last = packed[-1] if packed else file
        goes_on = file.is_small and last.is_small and file.reading == last.reading
        begins = zlib.crc32(file.place.encode()) % _PACK_FILES == 0
        packed.append(replace(file, pack=last.pack + (begins or not goes_on)))
    return packed


def packs(files: Iterable[SourceFile]) -> list[tuple[SourceFile, ...]]:
    """Return files by their pack."""
    return [tuple(pack) for _, pack in groupby(files, key=lambda file: file.pack)]


def _find_tokenizer(settings: RefreshSettings, workspace: Workspace, of_corpus: str | None) -> Path:
    if name := settings.tokenizer or of_corpus:
        return find_tokenizer(name, workspace.tokenizers)
    trained = [path for path in workspace.tokenizers.glob("*") if path.is_dir()]
    if len(trained) == 1:
        return find_tokenizer(str(trained[0]))
    raise InputError(
        "no tokenizer given: pass --tokenizer with a vocab.txt or spiece.model (of the checkpoint you will "
        "start from), or train one with jixu train-tokenizer"
    )


def _check_files(settings: RefreshSettings) -> None:
    """Raise InputError if a file that the rules name is not what it should be."""
    if settings.guard.files:
        make_guard(settings.guard.files, settings.guard.ngram, settings.cleaning, settings.guard.share)
    if settings.quality.blocklist:
        read_blocklist(Path(settings.quality.blocklist))
    if settings.quality.languages:
        check_languages(settings.quality.languages)
    if settings.dictionary:
        segmenter(settings.dictionary)


def _recipe(settings: RefreshSettings, tokenizer_path: Path) -> dict[str, object]:
    """List what determines the shards besides the documents: files by their content, not by their path."""
    blocklist = settings.quality.blocklist
    contents = {
        "tokenizer": tokenizer_digest(tokenizer_path),
        "guard": sorted(sha256(Path(path)) for path in settings.guard.files),
        "dictionaries": [sha256(Path(path)) for path in settings.dictionary],
        "blocklist": sha256(Path(blocklist)) if blocklist else None,
    }
    return {
        "objective": settings.objective,
        "max_seq_length": settings.max_seq_length,
        "seed": settings.seed,
        "sop": settings.instances.sop,
        "copies": settings.instances.copies,
        "mask_rate": settings.masking.rate,
        "max_ngram": settings.masking.max_ngram,
        "max_predictions": settings.masking.max_predictions,
        "cleaning": asdict(settings.cleaning),
        "quality": asdict(replace(settings.quality, blocklist=None)),
        "duplicates": asdict(settings.duplicates),
        "guard": asdict(replace(settings.guard, files=())),
        "contents": contents,
        "reading_version": READING_VERSION,
        "building_version": BUILDING_VERSION,
        "near_duplicates_by": ALGORITHM,
        "shard_characters": SHARD_CHARACTERS,
    }


def _reading_record(settings: RefreshSettings) -> dict[str, object]:
    """Describe how each source is read, as the catalog records it.

    It is hashed with the source, not with the recipe, so that a new source does not touch the others.
    """
    sources = [
        masked(source) if isinstance(source, str) else {**asdict(source), "path": masked(source.path)}
        for source in settings.source
    ]
    return {"sources": sources, **asdict(settings.reading)}


def preview(plan: Plan) -> Changes:
    """Find out what a refresh would read, going by the sources alone. Writes nothing."""
    changed = tuple(file.place for file in plan.files if is_changed(file, plan))
    now, before = [file.place for file in plan.files], [source.uri for source in plan.current_sources]
    stays = set(before) & set(now)
    return Changes(
        corpus=plan.settings.corpus,
        version=plan.current.version if plan.current else None,
        anew=plan.anew,
        read=changed,
        unchanged=len(plan.files) - len(changed),
        gone=tuple(sorted(set(before) - stays)),
        in_order=[uri for uri in before if uri in stays] == [uri for uri in now if uri in stays],
    )


def sources_of(pack: Sequence[SourceFile], plan: Plan, contents: Iterable[tuple[int, str]]) -> list[Source]:
    """Describe the files of a pack, given the size and the digest of each.

    The name of their listing depends on those and on how they are read.
    """
    found = [(file.place, *content) for file, content in zip(pack, contents, strict=True)]
    identity = "\0".join(f"{place}\0{digest}" for place, _, digest in found)
    name = f"{_listing_prefix(pack[0], plan)}{hashlib.sha256(identity.encode()).hexdigest()[:16]}.parquet"
    listing = plan.workspace.relative(plan.workspace.documents(plan.settings.corpus) / name)
    return [Source(*one, listing) for one in found]


def _listing_prefix(file: SourceFile, plan: Plan) -> str:
    how = "\0".join((file.reading.text_format, file.reading.text_field or "", plan.recipe_hash))
    return f"listing-{hashlib.sha256(how.encode()).hexdigest()[:8]}-"


def is_changed(file: SourceFile, plan: Plan) -> bool:
    """Whether a file is new, or not what the current version read, or not read as then."""
    if (known := file.previous) is None or size_and_digest(file.uri) != (known.size, known.sha256):
        return True
    return not Path(known.listing_path).name.startswith(_listing_prefix(file, plan))


def describe_changes(changes: Changes) -> str:
    """Describe to a person what a refresh would do, line by line."""
    if changes.version is None:
        lines = [f"{changes.corpus} is new: {len(changes.read)} source(s) would be read"]
    elif changes.anew:
        lines = [f"all of {changes.corpus} would be built anew, as {changes.anew}"]
    elif not (changes.read or changes.gone) and changes.in_order:
        return f"nothing would change: {changes.corpus} version {changes.version} is still current"
    else:
        order = "" if changes.in_order else ", in another order"
        lines = [
            f"{changes.corpus} version {changes.version}: {changes.unchanged} source(s) unchanged{order}"
        ]
    lines += [f"  read  {uri}" for uri in changes.read] + [f"  gone  {uri}" for uri in changes.gone]
    return "\n".join(lines)
