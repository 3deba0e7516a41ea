"""How many of the machine's cores this process may use."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def cores() -> int:
    """Count the cores that this process may use: Slurm binds it to some, a container may have a share."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(bound, share() or bound)


def share(limit: Path = Path("/sys/fs/cgroup/cpu.max")) -> int | None:
    """Return how many cores a container may keep busy (cgroup 2); None if that is not limited."""
    with suppress(OSError, ValueError):  # there is no such file, or it says "max"
        quota, period = map(int, limit.read_text().split())
        return max(1, quota // period)
    return None
