"""Compute the sizes and times in docs/scale.md and docs/quickstart.md from what the benchmarks measured.

python -m benchmarks.support.sizing
"""

from __future__ import annotations

import json
import math

from benchmarks.support.results import RESULTS, markdown

TEXT_GB = (1, 10, 100)
WORKERS = (2, 16, 64)
BYTES_A_CHARACTER = 3  # of Chinese in UTF-8
BATCH_TOKENS = 32_768  # of a training
PAIRS, PAIR_TOKENS, EPOCHS = 10_000, 32, 3  # of a fine-tuning
A100_OF_H200 = 312 / 989  # dense bf16 operations, as their maker states


def read(name: str) -> dict:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def h200_tokens_per_second() -> float:
    """Read what the trainer did on an H200: ALBERT-base, whose layers have BERT-base's shape."""
    lines = map(json.loads, (RESULTS / "h200" / "3.jsonl").read_text(encoding="utf-8").splitlines())
    runs = (x for x in lines if x["kind"] == "trainer" and x["model"] == "base" and "failed" not in x)
    return next(x["tokens_per_second"] for x in runs if x["batch_tokens"] == BATCH_TOKENS)


def table() -> str:
    """Write a row per amount of text: hours by number of workers, disk, instances and tokens."""
    scale, runs = read("scale"), read("orchestration")
    largest = max(scale["sizes"].values(), key=lambda size: size["characters"])
    rate = largest["characters_per_second"] / scale["workers"]  # of one worker, at the largest size measured
    disk = (
        sum(runs["runs"]["plain"][0][name] for name in ("shards_bytes", "documents_bytes"))
        / runs["characters"]
    )
    rows = []
    for size in TEXT_GB:
        characters = size * 10**9 / BYTES_A_CHARACTER
        hours = [short(characters / (rate * workers) / 3600) for workers in WORKERS]
        instances, tokens = (characters / largest["characters"] * largest[x] for x in ("instances", "tokens"))
        made = (
            f"{short(disk * characters / 1e9)} GB",
            f"{short(instances / 1e6)}e6",
            f"{short(tokens / 1e9)}e9",
        )
        rows.append((f"{size} GB", f"{short(characters / 1e9)}e9", *hours, *made))
    hours = [f"hours, {workers} workers" for workers in WORKERS]
    return markdown(["text", "characters", *hours, "disk", "instances", "tokens"], rows)


def training_table() -> str:
    """Write the time of a refresh of 2 GB of text, and a row per machine for a pass and a fine-tuning with
    BERT-base.
    """
    large = read("scale")["sizes"]["large"]
    characters = 2e9 / BYTES_A_CHARACTER
    tokens = large["tokens"] * characters / large["characters"]
    measured = read("train_step")["results"]["base"]["tokens_per_second"]["jixu"]["median"]
    h200 = h200_tokens_per_second()
    rates = {"two CPU cores": measured, "A100, computed": A100_OF_H200 * h200, "H200": h200}
    refresh = characters / large["characters_per_second"] / 60
    lines = [
        f"- refresh of 2 GB ({short(tokens / 1e9)}e9 tokens), two CPU cores: {short(refresh)} minutes",
        f"- one pass: {short(tokens / BATCH_TOKENS / 1000)} thousand steps of {BATCH_TOKENS:,} tokens",
        f"- fine-tuning: one seed, {EPOCHS} epochs of {PAIRS:,} pairs of {PAIR_TOKENS} tokens",
        "",
    ]
    rows = []
    for name, rate in rates.items():
        hours, minutes = tokens / rate / 3600, EPOCHS * PAIRS * PAIR_TOKENS / rate / 60
        # on a GPU batches this small were not measured
        tuning = short(minutes) if rate == measured else "–"
        rows.append((name, f"{float(short(rate)):,.0f}", short(hours), short(hours / 10), tuning))
    titles = ["machine", "tokens a second", "one pass, hours", "a tenth of it", "fine-tuning, minutes"]
    return "\n".join([*lines, markdown(titles, rows)])


def short(value: float) -> str:
    """Round to two digits, without a power of ten.

    >>> short(0.0583), short(184.2)
    ('0.058', '180')
    """
    digits = 1 - math.floor(math.log10(value))
    return f"{round(value, digits):.{max(digits, 0)}f}"


if __name__ == "__main__":
    print(f"{table()}\n\n{training_table()}")
