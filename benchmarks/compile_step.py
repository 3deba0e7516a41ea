"""What torch.compile would give a pretraining step of ALBERT-tiny on a CPU, and what it costs to compile.

    python -m benchmarks.compile_step [--rounds N] [--sequences N]

Three ways in turn, in one process and one thread: as it is; `elementwise`, where GELU with its slope, the
loss's softmax, attention's softmax and the residual LayerNorm are compiled for any shape, and the products
stay as they are; `whole`, where the model is compiled for one shape, in plain torch. A batch of another shape
would be compiled anew, or for any shape. Processor time counts, as the machine may be busy, and the best
round; the first step, with what is compiled for it, is timed by the clock. Losses must agree, or there is no
result.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from unittest.mock import patch

import torch
from torch import Tensor

import kernels
from albert.config import AlbertConfig
from albert.heads import PretrainingModel
from albert.optim import adamw
from benchmarks.alternating import alternate
from benchmarks.cpu_steps import full_batch
from benchmarks.results_file import write_result
from kernels import attention_cpu, gelu_cpu, mlm_loss_cpu

LENGTH = 128
SAME_LOSS = 1e-3  # what bf16 in another order explains of a loss of 10
WORTH = 1.05  # a way must be so many times as fast to be offered


def gelu_and_slope(x: Tensor) -> tuple[Tensor, Tensor]:
    """As `kernels.gelu_cpu._activate`, in one go."""
    z = x.float()
    share = torch.sigmoid((gelu_cpu.LINEAR + gelu_cpu.CUBIC * z * z) * z)
    y = z * share
    rest = (gelu_cpu.LINEAR + 3 * gelu_cpu.CUBIC * z * z) * y
    return y.to(x.dtype), (rest + share * (1 - rest)).to(x.dtype)


def softmax(scores: Tensor) -> Tensor:
    return torch.softmax(scores.float(), -1).to(scores.dtype)


def lose(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As `kernels.mlm_loss_cpu._lose`: loss, prediction and the logits' gradient."""
    z = logits.float()
    lse, hit = z.logsumexp(1, keepdim=True), torch.arange(z.shape[1]) == labels
    gradient = (z - lse).exp() - hit.float()
    return lse - z.gather(1, labels), z.argmax(1, keepdim=True), gradient.to(logits.dtype)


def elementwise() -> list:
    """What puts the compiled functions in the place of those by hand."""
    gelu, attend, loss = (torch.compile(f, dynamic=True) for f in (gelu_and_slope, softmax, lose))
    norm = torch.compile(sys.modules["kernels.layer_norm"].add_layer_norm_reference, dynamic=True)

    def lose_in_place(logits: Tensor, labels: Tensor, *_) -> tuple[Tensor, Tensor]:
        losses, predicted, gradient = loss(logits, labels)
        logits.copy_(gradient)
        return losses, predicted

    def add_layer_norm(x, residual, weight, bias, eps, *, dropout_p) -> Tensor:
        return norm(x, residual, weight, bias, eps, dropout_p)

    return [
        patch.object(gelu_cpu, "_activate", lambda x, with_slope: gelu(x)),
        patch.object(attention_cpu, "_softmax", lambda scores, penalty: attend(scores)),
        patch.object(mlm_loss_cpu, "_lose", lose_in_place),
        patch.object(kernels, "add_layer_norm", add_layer_norm),
    ]


def step_of(config: AlbertConfig, sequences: int, way: str) -> Callable[[], float]:
    """A step of training as `albert.pretraining` takes it; returns its loss."""
    torch.manual_seed(0)
    model = PretrainingModel(config).train()
    optimizer, batch = adamw(model, 1e-4), full_batch(sequences, LENGTH, config.vocab_size)
    patches = elementwise() if way == "elementwise" else []
    forward = torch.compile(model, dynamic=False) if way == "whole" else model

    def step() -> float:
        with ExitStack() as stack:
            for one in patches:
                stack.enter_context(one)
            with torch.autocast("cpu", torch.bfloat16):
                loss = forward(batch).loss
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            return loss.item()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compile_step", description=__doc__)
    parser.add_argument("--rounds", type=int, default=8, help="[%(default)s]")
    parser.add_argument("--sequences", type=int, default=32, help="of 128 tokens [%(default)s]")
    parser.add_argument("--ways", nargs="+", default=["elementwise", "whole"], help="[%(default)s]")
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.compiler.config.force_disable_caches = True  # what an earlier process compiled would hide the cost
    config = AlbertConfig.preset("tiny")
    works, losses, first_seconds = {}, {}, {}
    for way in ("as it is", *given.ways):
        step, began = step_of(config, given.sequences, way), time.perf_counter()
        losses[way], first_seconds[way] = step(), time.perf_counter() - began
        if abs(losses[way] - losses["as it is"]) > SAME_LOSS:
            raise SystemExit(f"{way}: loss {losses[way]}, not {losses['as it is']}: no result")
        works[way] = lambda step=step: float(bool(step()))
    rates = alternate(works, given.rounds)
    rows = {}
    for way, rate in rates.items():
        best = max(rate.of_processor) / max(rates["as it is"].of_processor)
        middle = rate.times_by_processor(rates["as it is"])
        rows[way] = {"best": best, "median": middle, "first_step_seconds": first_seconds[way]}
    said = "; ".join(
        f"{way} {row['best']:.3f}x (median {row['median']:.3f}x), {row['first_step_seconds']:.0f} s to "
        "the end of the first step"
        for way, row in rows.items()
        if way != "as it is"
    )
    offered = [way for way, row in rows.items() if row["best"] >= WORTH]
    verdict = f"worth offering: {', '.join(offered) or 'neither'}"
    write_result(
        "compile_step",
        f"compile_step (cpu, 1 thread, processor time): {said}; {verdict} (from {WORTH}x)",
        {"torch": torch.__version__, "sequences": given.sequences, "ways": rows, "losses": losses},
    )


if __name__ == "__main__":
    main()
