"""What torch.compile would give a pretraining step of ALBERT-tiny on a CPU, and what it takes to compile.

    python -m benchmarks.compile_step [--rounds N] [--sequences N]

Eager and compiled take turns in one process, on one thread, with sequences of one length; each other batch
shape would be compiled again. Reports steps per second of processor time, since the machine may be busy, and
the seconds to the end of the first step. Refuses to report if the losses differ.
"""

from __future__ import annotations

import time

import torch

from albert.model import AlbertConfig, PretrainingModel
from benchmarks.support.alternating import Work, alternate
from benchmarks.support.results import command, write_result
from benchmarks.support.steps import random_batch, training_step

LENGTH = 128
SAME_LOSS = 1e-3  # bf16 in another order changes a loss of 10 by this much


def main(*, rounds: int = 8, sequences: int = 32) -> None:
    """Run the benchmark.

    Args:
        sequences: Of 128 tokens, in a batch.
    """
    torch.set_num_threads(1)
    torch.compiler.config.force_disable_caches = True  # else an earlier process hides the compile time
    config = AlbertConfig.preset("tiny", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    batch = random_batch([LENGTH] * sequences, config.vocab_size)
    works: dict[str, Work] = {}
    losses: dict[str, float] = {}
    first_seconds: dict[str, float] = {}
    for way in ("as it is", "compiled"):
        torch.manual_seed(0)
        model = PretrainingModel(config)
        forward = torch.compile(model, dynamic=False) if way == "compiled" else model
        step, began = training_step(model, forward), time.perf_counter()
        losses[way] = step(batch).item()
        first_seconds[way] = time.perf_counter() - began
        works[way] = lambda step=step: float(step(batch).item() > 0)
    if abs(losses["compiled"] - losses["as it is"]) > SAME_LOSS:
        raise SystemExit(f"losses differ: {losses}: no result")
    rates = alternate(works, rounds)
    times = rates["compiled"].times_by_processor(rates["as it is"])
    took, usual = first_seconds["compiled"], first_seconds["as it is"]
    verdict = (
        f"compile_step: compiled, a step of tiny is {times:.2f}x as fast (1 thread, processor time), after "
        f"{took:.0f} s to the end of the first in place of {usual:.1f} s: worth it for "
        f"{'long runs' if times > 1 else 'no run, however long'}"
    )
    records = {way: rate.to_record() for way, rate in rates.items()}
    details = {"torch": torch.__version__, "sequences": sequences, "losses": losses}
    write_result("compile_step", verdict, {**details, "first_step_seconds": first_seconds, "rates": records})


if __name__ == "__main__":
    command(main)
