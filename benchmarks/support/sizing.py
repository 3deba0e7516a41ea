"""Compute the sizes and times in docs/scale.md and docs/quickstart.md from what the benchmarks measured.

python -m benchmarks.support.sizing
"""

from __future__ import annotations

import json
import math

from albert.model import AlbertConfig
from albert.model.sizes import forward_operations
from benchmarks.support.results import RESULTS

TEXT_GB = (1, 10, 100)
WORKERS = (2, 16, 64)
BYTES_A_CHARACTER = 3  # of Chinese in UTF-8
LENGTH, BATCH_TOKENS = 128, 32_768  # of a training
PAIRS, PAIR_TOKENS, EPOCHS = 10_000, 32, 3  # of a fine-tuning
PEAK_TERAFLOPS = {"A100": 312, "H100 (SXM)": 989}  # dense bf16, as their maker states
SHARE_OF_PEAK = 0.3  # an assumption: no GPU was measured


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


def training_table() -> str:
    """Write the time of a refresh of 2 GB of text, and a row per machine for a pass and a fine-tuning with
    BERT-base.
    """
    large = read("scale")["sizes"]["large"]
    characters = 2e9 / BYTES_A_CHARACTER
    tokens = large["tokens"] * characters / large["characters"]
    config = AlbertConfig.preset("bert-base")
    operations = 3 * forward_operations(config, LENGTH)  # the backward pass has twice the forward's
    measured = read("train_step")["results"]["base"]["tokens_per_second"]["jixu"]["median"]
    rates = {"two CPU cores": measured}
    rates |= {name: SHARE_OF_PEAK * peak * 1e12 / operations for name, peak in PEAK_TERAFLOPS.items()}
    refresh = characters / large["characters_per_second"] / 60
    lines = [
        f"- refresh of 2 GB ({short(tokens / 1e9)}e9 tokens), two CPU cores: {short(refresh)} minutes",
        f"- one pass: {short(tokens / BATCH_TOKENS / 1000)} thousand steps of {BATCH_TOKENS:,} tokens",
        f"- fine-tuning: one seed, {EPOCHS} epochs of {PAIRS:,} pairs of {PAIR_TOKENS} tokens",
        "",
        "| machine | tokens a second | one pass, hours | a tenth of it | fine-tuning, minutes |",
        "|---|---|---|---|---|",
    ]
    for name, rate in rates.items():
        hours, minutes = tokens / rate / 3600, EPOCHS * PAIRS * PAIR_TOKENS / rate / 60
        row = f"| {name} | {float(short(rate)):,.0f} | {short(hours)} | {short(hours / 10)} |"
        # a GPU's peak says nothing of batches this small
        lines.append(f"{row} {'–' if name in PEAK_TERAFLOPS else short(minutes)} |")
    return "\n".join(lines)


def short(value: float) -> str:
    """Round to two digits, without a power of ten.

    >>> short(0.0583), short(184.2)
    ('0.058', '180')
    """
    digits = 1 - math.floor(math.log10(value))
    return f"{round(value, digits):.{max(digits, 0)}f}"


if __name__ == "__main__":
    print(f"{table()}\n\n{training_table()}")
