"""Whether the kernels are right on this machine: the tests' claims, in the dtypes and sizes of training.

The claims are those of `tests.kernels.checks`, which the tests make in Triton's interpreter: here they meet
the compiler, the GPU's arithmetic and bf16, which the interpreter cannot multiply.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch

import kernels
from benchmarks.measure import reason

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
# masked positions, embedding size, vocabulary
LOSSES = ((1000, 128, 21128), (1, 128, 21128), (130, 128, 30000), (65, 26, 1009), (70, 312, 21128))


@dataclass(frozen=True)
class Claim:
    """A function of `tests.kernels.checks`, its arguments, and the kernel that is wrong if it fails."""

    kernel: str
    function: str
    arguments: tuple[object, ...]

    def __str__(self) -> str:
        return f"{self.function}{self.arguments}"


@dataclass
class Correctness:
    """What was found: claims that held, those that did not with their kernel and error, those left out."""

    held: int = 0
    wrong: list[tuple[str, str]] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)


def claims() -> Iterator[Claim]:
    """The grid of a GPU, what training uses first: each claim compiles kernels, and time may run out."""
    for dtype in (BF16, FP32, FP16):
        # every head dim in the dtype of training; compiling each in all three would take minutes
        for head_dim in (64, 26, 128, 32, 28, 256) if dtype == BF16 else (26, 64):
            for lengths in ([513, 1, 129, 64], [17, 0, 3, 128], [1], [384, 512, 100]):
                yield Claim("attention", "attention", (lengths, head_dim, dtype))
            yield Claim("attention", "attention", ([70, 5, 128, 300], head_dim, dtype, 2, 0.1))
        for n, E, V in LOSSES:
            yield Claim("mlm_loss", "mlm_loss", (n, E, V, dtype))
        for layout in ("google", "bright", "bert"):
            yield Claim("embed", "embed", (4096, 128, 312, layout, dtype, 21128, 0.12))
        for H in (312, 768, 1024, 4096) if dtype == BF16 else (312,):
            for dropout_p in (0.0, 0.1):
                yield Claim("add_layer_norm", "add_layer_norm", (1000, H, dtype, dropout_p))
        for activation in ("gelu_new", "gelu", "relu"):
            yield Claim("bias_gelu", "bias_gelu", (1000, 1248, activation, dtype))
    for long in (False, True):
        yield Claim("attention", "attention_without_neighbours", (long,))
    for sign in (1, -1):
        yield Claim("attention", "attention_of_extreme_scores", (sign, [100, 3]))
    yield Claim("embed", "embed_without_neighbours", ())


def small_claims() -> Iterator[Claim]:
    """One claim a kernel, of a size for Triton's interpreter."""
    yield Claim("attention", "attention", ([17, 0, 3], 26))
    yield Claim("mlm_loss", "mlm_loss", (3, 26, 300))
    yield Claim("embed", "embed", (20, 16, 24, "google"))
    yield Claim("add_layer_norm", "add_layer_norm", (3, 24))
    yield Claim("bias_gelu", "bias_gelu", (3, 24, "gelu_new"))


def check(grid: Iterable[Claim], deadline: float) -> Correctness:
    """Make the claims of a grid until the deadline. Raises nothing: a claim that fails any way is wrong."""
    from tests.kernels import checks

    found = Correctness()
    for claim in grid:
        if time.monotonic() > deadline:
            found.unchecked.append(str(claim))
            continue
        try:
            getattr(checks, claim.function)(kernels, *claim.arguments)
            found.held += 1
        except Exception as error:
            found.wrong.append((claim.kernel, f"{claim}: {reason(error)}"))
    return found
