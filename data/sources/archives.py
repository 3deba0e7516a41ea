"""Open what is inside a file: its decompressed content, or the members of an archive, one after the other.

Nothing is unpacked to disk except Parquet, to a temporary file.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import stat
import struct
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from shutil import copyfileobj
from typing import IO, Any

import pyarrow as pa

from data.errors import is_passing, masked
from data.storage import base_name, open_binary

COMPRESSIONS = (".gz", ".zst", ".bz2", ".xz")
_COMPRESSED_TARS = (".tgz", ".tbz2", ".txz")
_BUFFER = 1 << 18
_UNIT = 1 << 13  # decompressed at once; an error of zstd loses what the call had read
# of a zip member's header: its mark; flags, method, bytes, lengths of name and extra
_MARK = b"PK\x03\x04"
_LOCAL = struct.Struct("<2x2H8xL4x2H")
_UTF_8 = 0x800  # the flag of a member whose name is in UTF-8
_MOST_BYTES = 1 << 42  # of a tar's member, which the library skips block by block, be they there or not
_ZIP64 = 0xFFFFFFFF  # in place of a size that the extra field has, or nobody knows
# of a damaged file; the last two in a zip file: a password or an unknown method, a name that is not UTF-8
DAMAGED = (
    *(OSError, EOFError, zlib.error, lzma.LZMAError, tarfile.TarError),
    *(zipfile.BadZipFile, RuntimeError, UnicodeDecodeError),
)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a source that is read as a separate file."""

    uri: str  # of the source without credentials, then "!" and the name of an archive's member
    name: str  # its suffix says how it is read
    file: io.BufferedReader | None
    refused: str | None = None  # the reason why it is not read


def plain_name(name: str) -> str:
    """Remove the suffix of a compression from a file's name.

    >>> plain_name("laws.jsonl.gz"), plain_name("raw.tgz")
    ('laws.jsonl', 'raw.tar')
    """
    stem, suffix = os.path.splitext(name)
    if suffix.lower() in _COMPRESSED_TARS:
        return f"{stem}.tar"
    return stem if suffix.lower() in COMPRESSIONS else name


def _open_zstandard(file: IO[bytes]) -> pa.NativeFile:
    """Open a zstd stream; unlike other readers, Arrow's notices that one was cut off."""
    return pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd")


_DECOMPRESSORS: dict[bytes, Callable[[Any], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"\x28\xb5\x2f\xfd": _open_zstandard,
    b"\x50\x2a\x4d\x18": _open_zstandard,  # pzstd's, which begins with a frame to skip
    # with its level and the mark of a block or the end, as a text may begin with the letters
    **{b"BZh%d%b" % (n, mark): bz2.BZ2File for n in range(1, 10) for mark in (b"1AY&SY", b"\x17rE8P\x90")},
    b"\xfd7zXZ\x00": lzma.LZMAFile,
}


class _Damaged(io.RawIOBase):
    """A decompressed stream that ends where it is damaged, and keeps the error."""

    # a reader with `read1`; CRC-32; the compressed file
    def __init__(self, stream: Any, checksum: int | None = None, packed: io.BufferedReader | None = None):
        self.stream, self.checksum, self.packed, self.sum = stream, checksum, packed, 0
        self.damage: Exception | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        # as much as fits: the first buffer decides the encoding
        view, size = memoryview(buffer), 0
        try:
            while self.damage is None and size < len(view):
                content = self.stream.read1(min(len(view) - size, _UNIT))
                if not content:
                    if self.checksum not in (None, self.sum):
                        self.damage = zipfile.BadZipFile("Bad CRC-32")
                    elif self.packed and self.packed.peek(1):  # a damaged stream of bz2 or xz is left out
                        self.damage = OSError("goes on after its end")
                    break
                self.sum = zlib.crc32(content, self.sum)
                view[size : size + len(content)] = content
                size += len(content)
        except DAMAGED as error:
            if is_passing(error):
                raise
            self.damage = error
        return size


def damage(file: io.BufferedReader) -> Exception | None:
    """Return the error at which a stream ended, if it did not end well."""
    return file.raw.damage if isinstance(file.raw, _Damaged) else None


def decompressed(buffered: io.BufferedReader[Any]) -> io.BufferedReader:
    """Decompress a file by its first bytes, whatever its name."""
    begin = buffered.peek(10)
    for magic, decompress in _DECOMPRESSORS.items():
        if begin.startswith(magic):
            return io.BufferedReader(_Damaged(decompress(buffered), packed=buffered), _BUFFER)
    return buffered


def open_parts(uri: str) -> Iterator[Part]:
    """Yield the readable parts of a source: itself, or an archive's members in order.

    Raises one of DAMAGED for a damaged file, after the parts before the damage.
    """
    name, place = plain_name(base_name(uri)), masked(uri)
    with open_binary(uri) as raw, decompressed(raw) as file:
        if name.lower().endswith(".zip"):
            with seekable(file) as whole:  # its directory is at its end
                yield from _zip_members(place, whole)
        elif name.lower().endswith(".tar"):
            yield from _tar_members(place, file)
        else:
            yield Part(place, name, file)


def seekable(file: io.BufferedReader) -> IO[bytes]:
    """Return the file itself, or a temporary copy of one that is decompressed or comes without its size."""
    if file.seekable():
        return file
    copy = tempfile.TemporaryFile()  # noqa: SIM115
    copyfileobj(file, copy, 1 << 20)
    return copy


def _content(uri: str, name: str, stream: Any, checksum: int | None = None) -> Iterator[Part]:
    """Yield an archive's member, which may be compressed once more."""
    with decompressed(io.BufferedReader(_Damaged(stream, checksum), _BUFFER)) as file:
        yield Part(uri, name, file)


def _is_unsafe(name: str) -> bool:
    parts = name.replace("\\", "/").split("/")
    return name.startswith(("/", "\\")) or ".." in parts or (len(name) > 1 and name[1] == ":")


def _zip_members(uri: str, raw: IO[bytes]) -> Iterator[Part]:
    try:
        archive = zipfile.ZipFile(raw)
        raw.seek(0)
        # the library takes the last directory there is, were it that of a file inside
        if raw.read(len(_MARK)) == _MARK and all(member.header_offset for member in archive.infolist()):
            raise zipfile.BadZipFile("its directory is gone")
    except DAMAGED as error:
        if is_passing(error):
            raise
        yield from _rescued_members(uri, raw)
        yield Part(f"{uri}#{one_line(error)}", "", None, "unreadable_file")
        return
    with archive:
        for member in archive.infolist():
            if member.is_dir():
                continue
            name = member.filename
            if not member.flag_bits & _UTF_8:
                with suppress(UnicodeEncodeError):  # the library takes it for cp437, unless a field has it
                    name = _member_name(name.encode("cp437"))
            inner = f"{uri}!{name}"
            if _is_unsafe(name) or stat.S_ISLNK(member.external_attr >> 16):
                yield Part(inner, name, None, "unsafe_name" if _is_unsafe(name) else "not_a_file")
                continue
            checksum = member.CRC
            del member.CRC  # the library withholds what it had read when it finds another
            try:
                with archive.open(member) as stream:
                    yield from _content(inner, name, stream, checksum)
            except DAMAGED as error:
                if is_passing(error):
                    raise
                yield Part(f"{inner}#{one_line(error)}", name, None, "unreadable_file")


def _member_name(name: bytes) -> str:
    """Decode the name of a zip file's member: Windows writes it in its own encoding, and says so nowhere."""
    for encoding in ("utf-8", "gb18030"):
        with suppress(UnicodeDecodeError):
            return name.decode(encoding)
    return name.decode("cp437")


def _rescued_members(uri: str, raw: IO[bytes]) -> Iterator[Part]:
    """Find the members of a zip file without its directory by their headers (APPNOTE.TXT, 4.3.7)."""
    raw.seek(0)
    while _find(raw, _MARK) and len(header := raw.read(_LOCAL.size)) == _LOCAL.size:
        flags, method, compressed, name_size, extra_size = _LOCAL.unpack(header)
        name = _member_name(raw.read(name_size))
        if name.endswith("/"):
            continue
        begin = raw.seek(extra_size, io.SEEK_CUR)
        if flags & 1 or method not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or _is_unsafe(name):
            yield Part(f"{uri}!{name}", name, None, "unsafe_name" if _is_unsafe(name) else "unreadable_file")
            continue
        member = zipfile.ZipInfo(name)
        member.compress_type, member.file_size = method, sys.maxsize
        # a deflated member ends by itself; its size is unknown to a writer that could not go back
        member.compress_size = compressed if method == zipfile.ZIP_STORED else sys.maxsize
        stream = zipfile.ZipExtFile(raw, "r", member)  # type: ignore[arg-type]
        yield from _content(f"{uri}!{name}", name, stream)
        raw.seek(begin + (compressed if compressed < _ZIP64 else 0))


def _find(raw: IO[bytes], mark: bytes) -> bool:
    """Go to the end of the next mark."""
    kept = b""
    while block := raw.read(_BUFFER):
        block = kept + block
        if (at := block.find(mark)) >= 0:
            raw.seek(at + len(mark) - len(block), io.SEEK_CUR)
            return True
        kept = block[1 - len(mark) :]
    return False


def _tar_members(uri: str, file: io.BufferedReader) -> Iterator[Part]:
    try:
        archive = tarfile.open(fileobj=file, mode="r|")  # noqa: SIM115
    except tarfile.TarError as fault:
        raise damage(file) or fault from None  # decompression may have failed before
    with archive:
        for member in archive:
            archive.members.clear()  # type: ignore[attr-defined]  # the library keeps all, 450 bytes each
            if member.isdir():
                continue
            inner = masked(f"{uri}!{member.name}")
            if member.size > _MOST_BYTES:
                yield Part(f"{inner}#{member.size} bytes", member.name, None, "unreadable_file")
                return
            stream = archive.extractfile(member) if member.isreg() else None
            if stream is None or _is_unsafe(member.name):
                yield Part(inner, member.name, None, "unsafe_name" if stream else "not_a_file")
            else:
                yield from _content(inner, member.name, stream)
        # the library takes a truncated header for the end
        is_cut = archive.fileobj.tell() - archive.offset < tarfile.BLOCKSIZE
        # to the end of the file, where its checksum is
        rest = sum(len(block.strip(b"\0")) for block in iter(partial(archive.fileobj.read, _BUFFER), b""))
    if (error := damage(file)) or rest or is_cut:
        other = OSError("goes on after its end" if rest else "ends without an end mark")
        yield Part(f"{uri}#{one_line(error or other)}", "", None, "unreadable_file")


def one_line(error: Exception) -> str:
    """Describe an error in a short line."""
    message = str(error) or ("cut off" if isinstance(error, EOFError) else type(error).__name__)
    return masked(" ".join(message.split()))[:120]
