"""Memory of the process, as the operating system sees it."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache

# steps; it takes about 0.1 s, under a hundredth of the time of so many on two cores
GIVE_BACK_EVERY = 50


# how many products' programs oneDNN and torch's binding of it remember, in place of 1,024 each
_CACHES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64", "LRU_CACHE_CAPACITY": "64"}


def bound_caches() -> None:
    """Let fewer programs of matrix products be remembered; to be called before the first of them.

    On a CPU there is one for every shape, with memory of its own. Packed batches are of ever other numbers of
    tokens, so that most are never used again: they came to more than a gigabyte. What the environment says
    already stands.
    """
    for name, capacity in _CACHES.items():
        os.environ.setdefault(name, capacity)


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
