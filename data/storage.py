"""Files wherever they are: local paths, and any URL that fsspec knows (`s3://`, `hf://`, `https://`, ..)."""

from __future__ import annotations

import glob
import hashlib
import io
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from data.errors import InputError
from data.files import sha256

_EXTRA = "install jixu with its extra: pip install 'jixu[remote]'"


def is_remote(uri: str) -> bool:
    """Whether a source is a URL rather than a path of this machine."""
    return "://" in uri


def file_system(uri: str):
    """fsspec's file system for a URL, and the URL's path in it."""
    import fsspec

    try:
        return fsspec.core.url_to_fs(uri)
    except (ImportError, ValueError) as error:
        raise InputError(f"{uri}: {' '.join(str(error).split())}; {_EXTRA}") from None


def unreached(uri: str, error: Exception) -> InputError:
    """What a user is told of an error of a URL's file system."""
    what = " ".join(str(error).split())[:200] or type(error).__name__
    return InputError(f"{uri} cannot be reached: {what}")


def expand(source: str) -> list[str]:
    """Every file a source names, in the order of their names: a file, a folder (searched through), or a glob.

    What stands among a folder's files and is none is named too: see `refusal`. Links to folders are not
    followed. Raises InputError where there is nothing, or a URL that cannot be reached.
    """
    if is_remote(source):
        return _expand_remote(source)
    path = Path(source).expanduser()
    if path.is_dir():
        found = list(_entries(path))
    elif os.path.lexists(path):
        if refused := refusal(str(path)):
            raise InputError(f"source {source} is no file that can be read ({refused})")
        return [str(path)]
    else:
        found = [name for name in glob.glob(str(path), recursive=True) if not os.path.isdir(name)]
        if not found:
            raise InputError(f"source {source} does not exist")
    if all(map(refusal, found)):
        raise InputError(f"source {source} holds no file that can be read")
    return sorted(str(Path(name)) for name in found)


def _entries(folder: Path) -> Iterator[str]:
    """What is in a folder and the folders in it, but hidden ones; of links to folders the links."""

    def unreadable(error: OSError) -> None:
        barred.append(error.filename)

    barred: list[str] = []
    for place, folders, files in os.walk(folder, onerror=unreadable):
        folders[:] = [name for name in folders if not name.startswith(".")]
        links = [name for name in folders if os.path.islink(os.path.join(place, name))]
        yield from (os.path.join(place, name) for name in files + links if not name.startswith("."))
    yield from barred


def refusal(path: str) -> str | None:
    """Why a path of this machine is not read, if it is no file: a broken link, a link to a folder, a folder
    that may not be listed, a device, a pipe or a socket, which may never end.
    """
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return "broken_link" if os.path.islink(path) else "unreadable_file"
    if stat.S_ISDIR(mode):
        return "link_to_folder" if os.path.islink(path) else "unreadable_folder"
    return None if stat.S_ISREG(mode) else "not_a_file"


def _expand_remote(source: str) -> list[str]:
    system, path = file_system(source)
    try:
        if glob.has_magic(path):
            found = [p for p in system.glob(path) if system.isfile(p)]
        elif system.isdir(path) and not system.isfile(path):
            found = system.find(path)
        else:
            system.info(path)
            found = [path]
    except FileNotFoundError:
        raise InputError(f"source {source} does not exist") from None
    except Exception as error:  # whatever the file system's own library raises
        raise unreached(source, error) from None
    if not found:
        raise InputError(f"source {source} holds no file that can be read")
    return sorted(system.unstrip_protocol(p) for p in found)


def size_and_digest(uri: str) -> tuple[int, str]:
    """Bytes and a digest that changes with the content: sha256, or for a URL what its server says of it.

    A server that gives neither tag nor time makes the content be read and hashed. Of what cannot be read, the
    reason is the content.
    """
    if not is_remote(uri):
        path = Path(uri)
        reason = refusal(uri)
        try:
            if reason is None:
                return path.stat().st_size, sha256(path)
        except OSError as error:
            reason = str(error)
        return 0, hashlib.sha256(f"not read: {reason}".encode()).hexdigest()
    system, path = file_system(uri)
    try:
        info = system.info(path)
        tag = info.get("ETag") or info.get("etag") or info.get("blob_id") or info.get("LastModified")
        tag = tag or info.get("mtime") or info.get("last_modified")
        if tag is not None:
            return int(info.get("size") or 0), hashlib.sha256(
                f"{uri}\0{tag}\0{info.get('size')}".encode()
            ).hexdigest()
        with system.open(path, "rb") as file:
            digest = hashlib.sha256()
            size = 0
            while block := file.read(1 << 20):
                digest.update(block)
                size += len(block)
            return size, digest.hexdigest()
    except Exception as error:
        raise unreached(uri, error) from None


def open_binary(uri: str) -> BinaryIO:
    """A file to read, buffered and, where its system allows, seekable."""
    if not is_remote(uri):
        return Path(uri).open("rb", buffering=1 << 18)
    system, path = file_system(uri)
    try:
        return io.BufferedReader(system.open(path, "rb"), 1 << 20)
    except Exception as error:
        raise OSError(str(unreached(uri, error))) from None


def base_name(uri: str) -> str:
    """The last part of a path or URL, without a query."""
    return uri.rsplit("/", 1)[-1].split("?")[0] if is_remote(uri) else Path(uri).name
