"""Mistakes that a user can mend, and a disk's trouble: shown as one line without a traceback, exit code 2."""

from __future__ import annotations

import errno
import hashlib
import os
import re
from typing import TypeGuard

_user_info = re.compile(r"(?<=://)[^\s/?#'\"]+@")
# a question mark in s3://bucket/part-?.txt is a pattern's
_query = re.compile(r"(https?://[^\s?#'\"]*\?|://[^\s?#'\"]*\?(?=[^\s#'\"]*=))(?!\*\*\*)([^\s#'\"]+)")


def masked(text: str) -> str:
    """Replace what may be credentials in the URLs of a text: user and password, and the query by its hash.

    Bytes of a file name that are not UTF-8 are written as escapes.

    >>> masked("https://me:secret@host/tea.jsonl?key=1 is gone")
    'https://***@host/tea.jsonl?***5d5a2f99 is gone'
    """

    def hashed(match: re.Match[str]) -> str:
        return f"{match[1]}***{hashlib.sha256(match[2].encode()).hexdigest()[:8]}"

    storable = text.encode("utf-8", "backslashreplace").decode()
    return _query.sub(hashed, _user_info.sub("***@", storable))


def is_of_a_full_disk(error: BaseException) -> bool:
    """Whether a disk has no more room. DuckDB and Arrow hand on the system's words, not its number."""
    number = getattr(error, "errno", None)
    return number in (errno.ENOSPC, errno.EDQUOT) or os.strerror(errno.ENOSPC) in str(error)


def disk_trouble(error: BaseException) -> str | None:
    """A line on an error that is the disk's, whichever library met it; None for any other."""
    number = getattr(error, "errno", None)
    if is_of_a_full_disk(error):
        return "the disk is full: what was committed before is whole; make room and run the same again"
    if number in (errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE):
        file = getattr(error, "filename", None) or "a file"
        return f"{file} cannot be written to or read ({os.strerror(number)})"
    if str(error).startswith("IO Error: "):  # DuckDB's
        why = "a disk failed, or another command removed a file"
        return f"{str(error).splitlines()[0]} ({why}): run the same again"
    return None


# of a disk or a file server, and of a machine that has no more space, open files or memory
_PASSING = {errno.EIO, errno.ESTALE, errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM}


def is_passing(error: Exception) -> TypeGuard[OSError]:
    """Whether an error is no fault of a file's content, so that reading it again may go well."""
    return isinstance(error, OSError) and error.errno in _PASSING


class UserError(ValueError):
    """One line: what is wrong, with the value, where, and what to do; credentials in URLs are masked."""

    def __init__(self, message: str):
        super().__init__(masked(message))


class InputError(UserError):
    """An input that cannot be used, found before any work starts if it can be known then."""


class ConfigError(UserError):
    """A setting that cannot work, found before any work started."""
