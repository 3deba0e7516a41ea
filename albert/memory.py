"""Memory of the process, as the operating system sees it."""

from __future__ import annotations

import ctypes
import sys
from functools import cache

# steps; it takes about 0.1 s, under a hundredth of the time of so many on two cores
GIVE_BACK_EVERY = 50


@cache
def _trim() -> object | None:
    """glibc's malloc_trim, where there is one."""
    if not sys.platform.startswith("linux"):
        return None
    return getattr(ctypes.CDLL(None), "malloc_trim", None)


def give_back(step: int) -> None:
    """Every so many steps, return what was freed to the operating system.

    Tensors of ever other sizes leave holes that malloc keeps: without this a run on a CPU holds twice the
    memory after half an hour.
    """
    trim = _trim()
    if trim is not None and step % GIVE_BACK_EVERY == 0:
        trim(0)
