"""Paths inside a workspace, one folder given by `--workspace` or JIXU_WORKSPACE; a URL has a local copy."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from data.errors import InputError
from data.files import make_folder

LEAST_BYTES = 32 * 2**20  # free on the disk of a workspace: the files of a short-lived server take some
MADE_FROM_FILE = "made_from.json"  # beside a model that no pretraining wrote: the checkpoints it comes from
_name = re.compile(r"[\w][\w.-]{0,63}")


def default_place() -> str:
    """Return JIXU_WORKSPACE, a folder or a URL, or ./workspace."""
    return os.environ.get("JIXU_WORKSPACE") or "workspace"


def local_folder(place: Path | str | None = None) -> Path:
    """Return a folder itself, or a URL's local copy (of s3://bucket/workspace); None: `default_place`'s."""
    place = str(place or default_place())
    if "://" not in place:
        return Path(os.path.expanduser(place))
    url = place.rstrip("/")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or _home() / ".cache")
    return cache / "jixu" / f"{url.rsplit('/', 1)[-1]}-{_digest(url)}"


def state_folder(workspace: Path) -> Path:
    """Return the folder of this machine for what may not lie on a network disk, such as SQLite files."""
    place = workspace.resolve()
    state = Path(os.environ.get("XDG_STATE_HOME") or _home() / ".local" / "state")
    return state / "jixu" / f"{place.name}-{_digest(str(place))}"


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:
        raise InputError("this user has no home folder: set HOME to one that can be written to") from None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def check_room(workspace: Path) -> None:
    """Raise InputError if nothing, or hardly anything, can be written to the workspace's disk."""
    try:
        make_folder(workspace)
    except OSError as error:  # it or a parent is a file, or a link leads nowhere
        raise InputError(
            f"workspace {workspace} cannot be made ({error.strerror}): choose another --workspace"
        ) from None
    if not os.access(workspace, os.W_OK):
        raise InputError(f"workspace {workspace} cannot be written to: choose another --workspace")
    free = shutil.disk_usage(workspace).free
    if free < LEAST_BYTES:
        raise InputError(
            f"{free / 2**20:.0f} MiB are free on the disk of {workspace}: make room (jixu corpus gc removes "
            "old versions), or choose another --workspace"
        )


def check_name(name: str, what: str) -> str:
    """Return `name` if a folder may have it; raise InputError otherwise. Letters may be of any script."""
    if not _name.fullmatch(name):
        raise InputError(
            f"{what} {name!r}: use 1 to 64 letters, digits, '_', '.' or '-', not starting with '.' or '-'"
        )
    return name


@dataclass(frozen=True, slots=True)
class Workspace:
    """Paths of a workspace; no folder is created before something is written."""

    root: Path

    @property
    def catalog(self) -> Path:
        return self.root / "catalog.duckdb"

    @property
    def catalog_copy(self) -> Path:
        """The catalog as its last writer left it, from which a lost one is restored."""
        return self.root / "backup" / "catalog.duckdb"

    @property
    def tokenizers(self) -> Path:
        return self.root / "tokenizers"

    def shards(self, corpus: str) -> Path:
        return self.root / "shards" / corpus

    def documents(self, corpus: str) -> Path:
        return self.root / "documents" / corpus

    def staging(self, corpus: str) -> Path:
        """Work in progress of a refresh, removed when the next one begins."""
        return self.root / "staging" / corpus

    def lexicons(self, corpus: str) -> Path:
        return self.root / "lexicons" / corpus

    def lexicon(self, corpus: str, version: int) -> Path:
        """Dictionary of new words found in a version."""
        return self.lexicons(corpus) / f"version-{version}.txt"

    def lock(self, name: str) -> Path:
        return self.root / "locks" / f"{name}.lock"

    @property
    def experiments(self) -> Path:
        """Files that an end-to-end run or an experiment makes for itself."""
        return self.root / "experiments"

    def model(self, run: str) -> Path:
        return self.root / "models" / run

    def report(self, run: str) -> Path:
        return self.root / "reports" / run

    def relative(self, path: Path) -> str:
        """Return a path as the catalog stores it: absolute if it is outside the workspace."""
        # a folder of it may be a link to another disk, and a vocabulary in a cache one to its digest
        for whole in (os.path.abspath, os.path.realpath):
            if (place := Path(whole(path))).is_relative_to(root := whole(self.root)):
                return place.relative_to(root).as_posix()
        return os.path.abspath(path)
