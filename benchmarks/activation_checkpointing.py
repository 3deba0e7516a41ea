"""Peak memory and time of a training step with activation checkpointing, against the same step without it.

    python -m benchmarks.activation_checkpointing [PRESET ...]

Each step runs in a process of its own, whose peak resident memory above the model is taken; the two must give
the same loss. Writes benchmarks/results/activation_checkpointing.json.
"""

from __future__ import annotations

import sys
import time

import torch

from albert.model import AlbertConfig, PretrainingModel
from albert.pretraining.audits import peak_memory
from benchmarks.support.processes import in_new_process
from benchmarks.support.results import write_result
from benchmarks.support.steps import random_batch

SEQUENCES, LENGTH = 16, 128


def step(preset: str, checkpointing: bool) -> dict[str, float]:
    """Measure the memory above the model, the seconds and the loss of one forward and backward pass."""
    torch.manual_seed(0)
    model = PretrainingModel(AlbertConfig.preset(preset, vocab_size=2000))
    model.encoder.activation_checkpointing = checkpointing
    batch, cpu = random_batch([LENGTH] * SEQUENCES, 2000), torch.device("cpu")
    before, started = peak_memory(cpu), time.perf_counter()
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(batch).loss
    loss.backward()
    return {
        "bytes": peak_memory(cpu) - before,
        "seconds": time.perf_counter() - started,
        "loss": loss.item(),
    }


def main(presets: list[str]) -> int:
    lines, results = [], []
    for preset in presets or ["base", "large"]:
        plain, saved = (in_new_process(step, preset, checkpointing) for checkpointing in (False, True))
        if plain["loss"] != saved["loss"]:
            print(f"{preset}: the losses differ, {plain['loss']} and {saved['loss']}: nothing is reported")
            return 1
        memory, seconds = (saved[name] / plain[name] for name in ("bytes", "seconds"))
        lines.append(
            f"{preset}: {saved['bytes'] / 2**20:,.0f} MiB against {plain['bytes'] / 2**20:,.0f} "
            f"({memory:.2f}x), {seconds:.2f}x the time, {SEQUENCES} sequences of {LENGTH} tokens"
        )
        results.append({"preset": preset, "plain": plain, "checkpointing": saved, "memory_ratio": memory})
    about = {"torch": torch.__version__, "threads": torch.get_num_threads()}
    write_result("activation_checkpointing", "\n".join(lines), {**about, "results": results})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
