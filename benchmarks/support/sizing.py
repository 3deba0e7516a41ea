"""Compute the sizing table of docs/scale.md from what `scale` and `orchestration` measured.

python -m benchmarks.support.sizing
"""

from __future__ import annotations

import json
import math

from benchmarks.support.results import RESULTS

TEXT_GB = (1, 10, 100)
WORKERS = (2, 16, 64)
BYTES_A_CHARACTER = 3  # of Chinese in UTF-8


def read(name: str) -> dict:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def table() -> str:
    """Write a row per amount of text: hours by number of workers, disk, instances and tokens."""
    scale, runs = read("scale"), read("orchestration")
    largest = max(scale["sizes"].values(), key=lambda size: size["characters"])
    rate = largest["characters_per_second"] / scale["workers"]  # of one worker, at the largest size measured
    disk = (
        sum(runs["runs"]["plain"][0][name] for name in ("shards_bytes", "documents_bytes"))
        / runs["characters"]
    )
    hours = " | ".join(f"hours, {workers} workers" for workers in WORKERS)
    lines = [
        f"| text | characters | {hours} | disk | instances | tokens |",
        "|---" * (5 + len(WORKERS)) + "|",
    ]
    for size in TEXT_GB:
        characters = size * 10**9 / BYTES_A_CHARACTER
        times = " | ".join(short(characters / (rate * workers) / 3600) for workers in WORKERS)
        share = characters / largest["characters"]
        lines.append(
            f"| {size} GB | {short(characters / 1e9)}e9 | {times} | {short(disk * characters / 1e9)} GB | "
            f"{short(share * largest['instances'] / 1e6)}e6 | {short(share * largest['tokens'] / 1e9)}e9 |"
        )
    return "\n".join(lines)


def short(value: float) -> str:
    """Round to two digits, without a power of ten.

    >>> short(0.0583), short(184.2)
    ('0.058', '180')
    """
    digits = 1 - math.floor(math.log10(value))
    return f"{round(value, digits):.{max(digits, 0)}f}"


if __name__ == "__main__":
    print(table())
