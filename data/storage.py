"""Files wherever they are: local paths, and any URL that fsspec knows (`s3://`, `hf://`, `https://`, ..)."""

from __future__ import annotations

import errno
import glob
import hashlib
import io
import ipaddress
import os
import re
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from data.errors import InputError, is_of_a_full_disk, masked
from data.files import sha256

if TYPE_CHECKING:
    from aiohttp import ClientSession, TraceRequestRedirectParams
    from fsspec import AbstractFileSystem

_EXTRA = "install jixu with its extra: pip install 'jixu[remote]'"
_TRANSFERS = 8  # at a time
# of the URLs that name a host; s3:// and the like name a bucket
_host = re.compile(r"\b(?:https?|ftp|sftp|ssh|smb|webhdfs)://(?:[^/?#]*@)?(\[[^]]*\]|[^/?#:]+)", re.I)


def is_remote(uri: str) -> bool:
    """Whether a source is a URL rather than a path of this machine."""
    return "://" in uri


def _file_system(uri: str) -> tuple[AbstractFileSystem, str]:
    import fsspec

    # the one way to every link of a chain such as zip://a.txt::https://host/a.zip
    fsspec.config.conf.setdefault("http", {}).setdefault("get_client", _http_session)
    try:
        return fsspec.core.url_to_fs(uri)
    except (ImportError, ValueError) as error:
        raise InputError(f"{uri}: {' '.join(str(error).split())}; {_EXTRA}") from None
    except OSError as error:  # an archive behind another URL is opened here
        raise _unreachable(uri, error) from None


def check_hosts(source: str, allow_loopback: bool) -> None:
    """Raise InputError if a host of a URL is link-local, such as a cloud's metadata, or is this machine.

    Redirects are checked when they are followed.
    """
    # clients take tabs and line ends out
    for ip in chain.from_iterable(map(_addresses, _host.findall(re.sub(r"[\t\r\n]", "", source)))):
        if ip.is_link_local:
            raise InputError(f"source {source}: {ip} is link-local, which is not read")
        if (ip.is_loopback or ip.is_unspecified) and not allow_loopback:
            raise InputError(
                f"source {source}: {ip} is this machine, which only a refresh reads, with "
                "--reading.allow-loopback"
            )


def _addresses(host: str) -> Iterator[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    with suppress(OSError, UnicodeError):  # an unknown name: the error comes when it is opened
        for *_, address in socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM):
            yield _ip(address)


def _ip(address: Sequence[object]) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return the IP of a socket's address."""
    ip = ipaddress.ip_address(str(address[0]))
    return getattr(ip, "ipv4_mapped", None) or ip


async def _http_session(**options: Any) -> ClientSession:
    """Make a session for fsspec that connects to no link-local address, nor by a redirect to this machine."""
    import aiohttp

    connector = aiohttp.TCPConnector(socket_factory=_open_socket)
    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(_check_redirect)
    return aiohttp.ClientSession(**{"connector": connector, "trace_configs": [trace], **options})


async def _check_redirect(session: ClientSession, context: object, hop: TraceRequestRedirectParams) -> None:
    """Refuse to be led to this machine from another."""
    headers = hop.response.headers  # the names that aiohttp follows
    target = hop.url.join(type(hop.url)(headers.get("location") or headers.get("uri") or ""))
    if _is_this_machine(target.host) and not _is_this_machine(hop.url.host):
        raise OSError(errno.EACCES, f"{target.host} is this machine, to which no redirect is followed")


def _is_this_machine(host: str | None) -> bool:
    return any(ip.is_loopback or ip.is_unspecified for ip in _addresses(host or ""))


def _open_socket(address: tuple[Any, ...]) -> socket.socket:
    """Open a socket for one of getaddrinfo's answers."""
    family, kind, protocol, _, place = address
    if _ip(place).is_link_local:
        raise OSError(errno.EACCES, f"{place[0]} is link-local, which is not read")
    return socket.socket(family, kind, protocol)


@contextmanager
def reaching(uri: str, *passing: type[Exception]) -> Iterator[None]:
    """Turn an error of a URL's file system into InputError, but no class in `passing` and no full disk's."""
    try:
        yield
    except Exception as error:  # each library has its own classes
        if isinstance(error, (InputError, *passing)) or is_of_a_full_disk(error):
            raise
        raise _unreachable(uri, error) from None


def _unreachable(uri: str, error: Exception) -> InputError:
    # fsspec's "not found" has the reason as its cause
    message = " ".join(masked(str(error.__cause__ or error)).split())[:200] or type(error).__name__
    return InputError(f"{uri} cannot be reached: {message}")


class RemoteFolder:
    """A folder behind a URL, whose files are created and removed but never changed."""

    def __init__(self, url: str):
        from fsspec.implementations.dirfs import DirFileSystem

        self.url = url.rstrip("/")
        if self.url.startswith(("file://", "local://")):
            raise InputError(f"{url}: a folder needs no URL: pass its path")
        if not is_remote(self.url):
            raise InputError(f"{url} is no URL, such as s3://bucket/corpora: a folder can be copied")
        system, root = _file_system(self.url)
        self.files = DirFileSystem(path=root.rstrip("/"), fs=system)

    def sizes(self, folder: str) -> dict[str, int]:
        """List the files of an inner folder by path, in order, with their bytes."""
        self.files.invalidate_cache(folder)
        with suppress(FileNotFoundError), reaching(self.url, FileNotFoundError):
            entries = self.files.find(folder, detail=True)
            return {path: entries[path]["size"] for path in sorted(entries)}
        return {}

    def create(self, path: str, content: bytes) -> bool:
        """Write a file unless there is one; return whether it was written."""
        with suppress(FileExistsError), reaching(self.url, FileExistsError, FileNotFoundError):
            self.files.pipe_file(path, content, mode="create")
            return True
        return False

    def transfer(self, work: Callable[[str], object], paths: Iterable[str]) -> None:
        """Call `work` for each path, several at a time."""
        with reaching(self.url), ThreadPoolExecutor(_TRANSFERS) as pool:
            list(pool.map(work, paths))


def expand(source: str) -> list[str]:
    """List every file that a file, a folder (searched through) or a glob names, sorted by name.

    What is no file in a folder, such as a broken link, is listed too. Links to folders are not followed.
    Raises InputError if there is nothing at a path, or a URL cannot be reached.
    """
    if is_remote(source):
        return _expand_remote(source)
    if not source.strip():
        raise InputError("an empty source was given: the current folder is .")
    path = Path(os.path.expanduser(source))
    if os.path.lexists(path):
        paths = list(_entries(path))
    else:
        paths = [one for name in glob.glob(str(path), recursive=True) for one in _entries(Path(name))]
        if not paths:
            place = "" if path.is_absolute() else f" in {Path.cwd()}"
            hub = ": the Hub's datasets are hf://datasets/OWNER/NAME" if source.startswith("hf:") else ""
            raise InputError(f"source {source} does not exist{place}{hub}")
    if not any(map(os.path.isfile, paths)):
        raise InputError(f"source {source} holds no file that can be read")
    return sorted(set(paths))


def _entries(folder: Path) -> Iterator[str]:
    """Yield the files, links and unreadable folders in a folder, but no hidden ones; else the path itself."""
    unreadable: list[str] = []
    for place, folders, files in os.walk(folder, onerror=lambda error: unreadable.append(error.filename)):
        folders[:] = [name for name in folders if not name.startswith(".")]
        links = [name for name in folders if os.path.islink(os.path.join(place, name))]
        yield from (os.path.join(place, name) for name in files + links if not name.startswith("."))
    yield from unreadable


def _expand_remote(source: str) -> list[str]:
    system, path = _file_system(source)
    try:
        with reaching(source, FileNotFoundError):
            if glob.has_magic(_without_query(path)):
                paths = [p for p in system.glob(path) if system.isfile(p)]
            elif not system.isfile(path) and system.isdir(path):
                paths = [p for p in system.find(path) if "/." not in f"/{p.removeprefix(path)}"]
            else:
                system.info(path)
                paths = [path]
    except FileNotFoundError:
        raise InputError(f"source {source} does not exist") from None
    return sorted(system.unstrip_protocol(p) for p in paths)


def size_and_digest(uri: str) -> tuple[int, str]:
    """Return a file's bytes and a digest that changes with its content.

    The digest is the sha256; for a URL it is of the server's tag or time, and only without either is the
    content read. For a file that cannot be read the reason is hashed.
    """
    if is_remote(uri):
        with reaching(uri):
            return _remote_size_and_digest(uri)
    path, reason = Path(uri), "not a file"
    try:
        if path.is_file():
            return path.stat().st_size, sha256(path)
    except OSError as error:
        reason = str(error)
    return 0, hashlib.sha256(f"not read: {reason}".encode()).hexdigest()


def _remote_size_and_digest(uri: str) -> tuple[int, str]:
    system, path = _file_system(uri)
    info = system.info(path)
    names = ("ETag", "etag", "blob_id", "LastModified", "Last-Modified", "mtime", "last_modified")
    tag = next((info[name] for name in names if info.get(name)), None)
    if tag is not None:
        described = f"{masked(uri)}\0{tag}\0{info.get('size')}"
        return int(info.get("size") or 0), hashlib.sha256(described.encode()).hexdigest()
    with system.open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return file.tell(), digest


class _Transfer(io.RawIOBase):
    """A URL's content. Raises InputError where it breaks off, which is no damage of the content."""

    def __init__(self, uri: str, file: IO[bytes]):
        self._uri, self._file = uri, file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        # without a length fsspec reads a server's answer as it comes, whatever the file says
        return self._file.seekable() and getattr(self._file, "size", 0) is not None

    def readinto(self, buffer: Any) -> int:
        # as much as fits: what a server sends first may be too short to tell a compression or an encoding
        view, size = memoryview(buffer), 0
        with reaching(self._uri):
            while size < len(view) and (block := self._file.read(len(view) - size)):
                view[size : size + len(block)] = block
                size += len(block)
        return size

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        self._file.close()
        super().close()


def open_binary(uri: str) -> io.BufferedReader:
    """Open a file for reading, buffered and, if its system allows, seekable."""
    if not is_remote(uri):
        return io.BufferedReader(io.FileIO(uri), 1 << 18)
    with reaching(uri):
        system, path = _file_system(uri)
        return io.BufferedReader(_Transfer(uri, system.open(path, "rb")), 1 << 20)


def base_name(uri: str) -> str:
    """Return the last part of a path, or of a URL without its query."""
    return _without_query(uri).rsplit("/", 1)[-1].split("?")[0] if is_remote(uri) else Path(uri).name


def _without_query(url: str) -> str:
    """Remove a web address's query; elsewhere a question mark may be a pattern's or a folder's."""
    return url.split("?")[0] if url.startswith("http") else url
