"""Whether the kernels are right on this machine: the tests' claims, in the dtypes and sizes of training.

The claims are those of `tests.kernels`, which the tests make in Triton's interpreter: here they meet the
compiler, the GPU's arithmetic and bf16, which the interpreter cannot multiply. On a GPU they are shared out
to processes: kernels compile side by side, and one that writes where it may not ends its own process only.
"""

from __future__ import annotations

import importlib
import multiprocessing
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

import torch

import kernels
from benchmarks.gpu.scale import lengths_of
from benchmarks.gpu.timing import reason

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
# masked positions, embedding size, vocabulary
LOSSES = ((1000, 128, 21128), (1, 128, 21128), (130, 128, 30000), (65, 26, 1009), (70, 312, 21128))
TOKENS, MASKED = 65536, 9830  # of a training batch
ACTIVATIONS = ("gelu_new", "gelu", "relu")
# tokens and width, for a tensor of more than 2**31 numbers; the last sequence is short
FAR = {
    "attention": (700_000 + 33, 1024),
    "mlm_loss": (2**24 + 77, 128),
    "add_layer_norm": (2**21 + 77, 1024),
    "bias_gelu": (2**19 + 77, 4096),
    "embed": (2**21 + 77, 1024),
}
OPERANDS = "tests.kernels.operand_checks"
GRACE_SECONDS = 20.0  # for a claim that started before the deadline


@dataclass(frozen=True)
class Claim:
    """A function of `tests.kernels`, its arguments, and the kernel that is wrong if it fails."""

    kernel: str
    function: str
    arguments: tuple[object, ...]
    module: str = "tests.kernels.checks"

    def __str__(self) -> str:
        return f"{self.function}{self.arguments}"


@dataclass
class Correctness:
    """How many claims held, those that did not with their kernel and error, and those left out."""

    held: int = 0
    wrong: list[tuple[str, str]] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)

    def add(self, claim: Claim, outcome: str, detail: str) -> None:
        if outcome == "held":
            self.held += 1
        elif outcome == "wrong":
            self.wrong.append((claim.kernel, f"{claim}: {detail}"))
        else:
            self.unchecked.append(f"{claim}: {detail}")


def claims() -> Iterator[Claim]:
    """Yield all claims for a GPU, first what training uses: each compiles kernels, and time may run out."""
    yield from _grid(BF16)
    yield from _numbers(BF16)
    yield from _real_sizes()
    yield from _operands()
    for dtype in (FP16, FP32):
        yield from _numbers(dtype)
        yield from _grid(dtype)


def _grid(dtype: torch.dtype) -> Iterator[Claim]:
    """Yield odd and even shapes of every kernel."""
    # every head dim in the dtype of training only: compiling each in all three would take minutes
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
    for activation in ACTIVATIONS:
        yield Claim("bias_gelu", "bias_gelu", (1000, 1248, activation, dtype))


def _numbers(dtype: torch.dtype) -> Iterator[Claim]:
    """Yield awkward numbers: NaN in neighbours, extreme and equal scores, padding."""
    for long in (False, True):
        yield Claim("attention", "attention_without_neighbours", (long, dtype))
    for sign in (1, -1):
        for lengths in ([40, 3], [100, 3], [300, 3]):
            yield Claim("attention", "attention_of_extreme_scores", (sign, lengths, dtype))
    for value in (0.0, 300.0, -300.0):
        yield Claim("mlm_loss", "mlm_loss_of_equal_logits", (21128, value, dtype))
    yield Claim("mlm_loss", "mlm_loss_of_dirty_padding", (dtype,))
    yield Claim("mlm_loss", "mlm_loss", (300, 128, 21128, dtype, 0.05))
    yield Claim("embed", "embed_without_neighbours", (dtype,))


def _real_sizes() -> Iterator[Claim]:
    """Yield batches of training."""
    for mix in ("full", "mixed"):
        for tokens, dropout_p in ((TOKENS, 0.0), (TOKENS // 4, 0.1)):
            yield Claim("attention", "attention", (lengths_of(mix, 512, tokens), 64, BF16, 12, dropout_p))
    yield Claim("mlm_loss", "mlm_loss", (MASKED, 128, 21128, BF16))
    for layout in ("google", "bright"):
        yield Claim("embed", "embed", (TOKENS, 128, 768, layout, BF16, 21128, 0.12))
    yield Claim("add_layer_norm", "add_layer_norm", (TOKENS, 768, BF16, 0.1))
    yield Claim("bias_gelu", "bias_gelu", (TOKENS, 3072, "gelu_new", BF16))


def _operands() -> Iterator[Claim]:
    """Yield strided and repeated operands, and more of them than 32 bits can count."""
    for operator, size in FAR.items():
        yield Claim(operator, "strided", (operator, BF16), OPERANDS)
        yield Claim(operator, "repeated", (operator, 4000, BF16), OPERANDS)
        yield Claim(operator, "far", (operator, *size), OPERANDS)
    yield Claim("embed", "scatter_of_one_id", (100_000,), OPERANDS)


def small_claims() -> Iterator[Claim]:
    """Yield one claim per kernel, small enough for Triton's interpreter."""
    yield Claim("attention", "attention", ([17, 0, 3], 26))
    yield Claim("mlm_loss", "mlm_loss", (3, 26, 300))
    yield Claim("embed", "embed", (20, 16, 24, "google"))
    yield Claim("add_layer_norm", "add_layer_norm", (3, 24))
    yield Claim("bias_gelu", "bias_gelu", (3, 24, "gelu_new"))
    yield Claim("embed", "repeated", ("embed", 20), OPERANDS)


def make(claim: Claim) -> tuple[str, str]:
    """Return "held", "wrong" or "unchecked" (out of memory), and the error. Raises nothing."""
    try:
        from tests.kernels.operand_checks import poisoned

        with poisoned():
            getattr(importlib.import_module(claim.module), claim.function)(kernels, *claim.arguments)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        return "held", ""
    except torch.OutOfMemoryError as error:
        return "unchecked", reason(error)
    except Exception as error:
        return "wrong", reason(error)


def check(grid: Iterable[Claim], deadline: float, processes: int = 0) -> Correctness:
    """Check claims until the deadline, here or in other processes. Raises nothing: any failure is wrong."""
    correctness = Correctness()
    left = iter(list(grid))
    if not processes:
        for claim in left:
            late = time.monotonic() > deadline
            correctness.add(claim, *(("unchecked", "no time left") if late else make(claim)))
        return correctness
    lock = threading.Lock()
    helpers = [
        threading.Thread(target=_check_elsewhere, args=(left, deadline, correctness, lock))
        for _ in range(processes)
    ]
    for helper in helpers:
        helper.start()
    for helper in helpers:
        helper.join()
    return correctness


def _check_elsewhere(
    left: Iterator[Claim], deadline: float, correctness: Correctness, lock: threading.Lock
) -> None:
    """Take claims, one at a time, and have them made in a process, a new one after each that went wrong: of
    an error on the GPU the process does not recover.
    """
    child = None
    while True:
        with lock:
            claim = next(left, None)
        if claim is None:
            break
        if time.monotonic() > deadline:
            result = "unchecked", "no time left"
        else:
            try:
                child = child or _Child()
                result = child.make(claim, deadline + GRACE_SECONDS)
            except OSError as error:
                result = "unchecked", reason(error)
            if child and result[0] != "held":
                child = child.end()
        with lock:
            correctness.add(claim, *result)
    if child:
        child.end()


class _Child:
    """Start a process that checks claims."""

    def __init__(self):
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()  # so that its end is noticed here

    def make(self, claim: Claim, deadline: float) -> tuple[str, str]:
        try:
            self.pipe.send(claim)
            if not self.pipe.poll(max(0.0, deadline - time.monotonic())):
                return "unchecked", "not done in time"
            return self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(1)
            return "wrong", f"its process ended with status {self.process.exitcode}"

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _serve(pipe: Connection) -> None:
    kernels.use("triton")
    while True:
        pipe.send(make(pipe.recv()))
