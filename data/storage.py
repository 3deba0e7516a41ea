"""Files wherever they are: local paths, and any URL that fsspec knows (`s3://`, `hf://`, `https://`, ..)."""

from __future__ import annotations

import glob
import hashlib
import io
from pathlib import Path
from typing import BinaryIO

from data.files import sha256
from data.records import InputError

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

    Raises InputError where there is nothing, or a URL that cannot be reached.
    """
    if is_remote(source):
        return _expand_remote(source)
    path = Path(source).expanduser()
    if path.is_file():
        return [str(path)]
    if path.is_dir():
        found = [p for p in path.rglob("*") if p.is_file() and not _is_hidden(p.relative_to(path))]
        if not found:
            raise InputError(f"source {source} holds no file that can be read")
    else:
        found = [Path(p) for p in glob.glob(str(path), recursive=True) if Path(p).is_file()]
        if not found:
            raise InputError(f"source {source} does not exist")
    return sorted(map(str, found))


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


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

    A server that gives neither tag nor time makes the content be read and hashed.
    """
    if not is_remote(uri):
        path = Path(uri)
        return path.stat().st_size, sha256(path)
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
