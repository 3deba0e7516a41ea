"""Peak memory and time of a training step with activation checkpointing, against the same step without it.

    python -m benchmarks.activation_checkpointing [PRESET ...]

Each step runs in a process of its own, whose peak resident memory above the model is taken; the two must give
the same loss. Writes benchmarks/results/activation_checkpointing.json.
"""

from __future__ import annotations

import json
import platform
import resource
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

from albert.model import AlbertConfig, Batch, PretrainingModel, pack

SEQUENCES, LENGTH = 16, 128
RESULTS = Path(__file__).parent / "results" / "activation_checkpointing.json"


def make_batch() -> Batch:
    batch = pack([[5 + n for n in range(LENGTH)]] * SEQUENCES)
    masked = torch.arange(0, batch.tokens, 7)
    return replace(batch, masked_index=masked, masked_labels=torch.full_like(masked, 9))


def peak_bytes() -> int:
    """Return the peak resident memory of this process."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def step(preset: str, checkpointing: bool) -> dict[str, float]:
    """Measure the memory above the model, the seconds and the loss of one forward and backward pass."""
    torch.manual_seed(0)
    model = PretrainingModel(AlbertConfig.preset(preset, vocab_size=2000))
    model.encoder.activation_checkpointing = checkpointing
    batch, before, started = make_batch(), peak_bytes(), time.perf_counter()
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(batch).loss
    loss.backward()
    return {
        "bytes": peak_bytes() - before,
        "seconds": time.perf_counter() - started,
        "loss": loss.item(),
    }


def in_new_process(preset: str, checkpointing: bool) -> dict[str, float]:
    arguments = [sys.executable, "-m", "benchmarks.activation_checkpointing", "--step", preset]
    done = subprocess.run([*arguments, str(int(checkpointing))], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def main(presets: list[str]) -> int:
    results = []
    for preset in presets or ["base", "large"]:
        plain, saved = in_new_process(preset, False), in_new_process(preset, True)
        if plain["loss"] != saved["loss"]:
            print(f"{preset}: the losses differ, {plain['loss']} and {saved['loss']}: nothing is reported")
            return 1
        memory, seconds = (saved[name] / plain[name] for name in ("bytes", "seconds"))
        print(
            f"{preset}: {saved['bytes'] / 2**20:,.0f} MiB against {plain['bytes'] / 2**20:,.0f} "
            f"({memory:.2f}x), {seconds:.2f}x the time, {SEQUENCES} sequences of {LENGTH} tokens"
        )
        results.append({"preset": preset, "plain": plain, "checkpointing": saved, "memory_ratio": memory})
    RESULTS.parent.mkdir(exist_ok=True)
    about = {"machine": platform.platform(), "torch": torch.__version__, "threads": torch.get_num_threads()}
    RESULTS.write_text(json.dumps({**about, "results": results}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--step"]:
        print(json.dumps(step(sys.argv[2], sys.argv[3] == "1")))
    else:
        sys.exit(main(sys.argv[1:]))
