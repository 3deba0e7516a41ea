"""Whether the kernels are right on this machine: the tests' claims, in the dtypes and sizes of training.

The claims are those of `tests.kernels`, which the tests make in Triton's interpreter: here they meet the
compiler, the GPU's arithmetic and bf16, which the interpreter cannot multiply. A whole model's loss and
gradients are compared too, in the mix of types of training: parameters in fp32, products in 16 bits.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from unittest.mock import patch

import torch

import kernels
from albert.model import AlbertConfig, PretrainingModel
from benchmarks.gpu.scale import Scale, lengths_of
from benchmarks.gpu.workers import Task
from benchmarks.support.steps import random_batch

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
CHECKS, OPERANDS = "tests.kernels.checks", "tests.kernels.operand_checks"


@dataclass(frozen=True)
class Claim:
    """A function of `tests.kernels`, its arguments, and the kernel that is wrong if it fails."""

    kernel: str
    function: str
    arguments: tuple[object, ...]
    module: str = CHECKS

    def __str__(self) -> str:
        return f"{self.function}{self.arguments}"


def core_claims(scale: Scale) -> list[Claim]:
    """List what training uses, a minute's work on a GPU; where there is none, one claim of each kind."""
    if scale.is_small:
        return small_claims()
    return [*_models(BF16), *_real_sizes(), *_grid(BF16), *_numbers(BF16), *_models(FP16)]


def other_claims(scale: Scale) -> list[Claim]:
    """List the claims that are not core ones; the last need much memory."""
    if scale.is_small:
        return [Claim("embed", "repeated", ("embed", 20), OPERANDS)]
    grids = [claim for dtype in (FP16, FP32) for claim in (*_numbers(dtype), *_grid(dtype))]
    often = [Claim(o, "repeated", (o, TOKENS, BF16), OPERANDS) for o in FAR for _ in range(20)]
    far = [Claim(operator, "far", (operator, *size), OPERANDS) for operator, size in FAR.items()]
    return [*_operands(), *grids, *often, *far]


def _grid(dtype: torch.dtype) -> Iterator[Claim]:
    """Yield odd and even shapes of every kernel."""
    # every head dim in the dtype of training only: compiling each in all three would take minutes
    for head_dim in (64, 26, 128, 32, 28) if dtype == BF16 else (26, 64):
        for lengths in ([513, 1, 129, 64], [17, 0, 3, 128], [1], [384, 512, 100]):
            yield Claim("attention", "attention", (lengths, head_dim, dtype))
        if dtype != FP32:  # that torch computes, whose attention draws dropout by itself
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
    yield Claim("embed", "embed_without_neighbours", (dtype,))


def _real_sizes() -> Iterator[Claim]:
    """Yield batches of training."""
    for mix in ("full", "mixed"):
        for tokens, dropout_p in ((TOKENS, 0.0), (TOKENS // 4, 0.1)):
            yield Claim("attention", "attention", (lengths_of(mix, 512, tokens), 64, BF16, 12, dropout_p))
    yield Claim("mlm_loss", "mlm_loss", (MASKED, 128, 21128, BF16))
    for layout in ("google", "bright"):
        yield Claim("embed", "embed", (TOKENS, 128, 768, layout, BF16, 21128, 0.12))
    yield Claim("add_layer_norm", "add_layer_norm", (TOKENS, 768, BF16, 0.1, True, True))
    yield Claim("bias_gelu", "bias_gelu", (TOKENS, 3072, "gelu_new", BF16))


def _operands() -> Iterator[Claim]:
    """Yield strided and repeated operands."""
    for operator in FAR:
        yield Claim(operator, "strided", (operator, BF16), OPERANDS)
        yield Claim(operator, "repeated", (operator, 4000, BF16), OPERANDS)
    yield Claim("embed", "scatter_of_one_id", (100_000,), OPERANDS)


def _models(dtype: torch.dtype) -> Iterator[Claim]:
    """Yield whole models: every preset's shape with two layers of its own, and every layout."""
    google = [(name, "google") for name in ("base", "tiny", "large", "small", "xlarge", "xxlarge")]
    bert = [(name, "bert") for name in ("bert-base", "bert-tiny", "bert-large", "bert-xlarge")]
    for preset, layout in (google[0], bert[0], ("tiny", "bright"), *google[1:], *bert[1:]):
        yield Claim("step", "whole_model", (preset, layout, dtype, 4096), __name__)


def small_claims() -> list[Claim]:
    """List claims small enough for Triton's interpreter, which cannot multiply bf16."""
    dtype = FP16 if torch.cuda.is_available() else FP32  # a GPU's kernels multiply 16 bits alone
    return [
        Claim("attention", "attention", ([17, 0, 3], 26, dtype)),
        Claim("mlm_loss", "mlm_loss", (3, 26, 300, dtype)),
        Claim("embed", "embed", (20, 16, 24, "google")),
        Claim("add_layer_norm", "add_layer_norm", (3, 24)),
        Claim("bias_gelu", "bias_gelu", (3, 24, "gelu_new")),
        Claim("step", "whole_model", ("tiny", "google", FP16, 40), __name__),
    ]


def whole_model(package: object, preset: str, layout: str, dtype: torch.dtype, tokens: int) -> None:
    """Check a step's loss and gradients under autocast, of a module's weight and bias together, whose errors
    have one cause: no further from fp64 than twice torch's.
    """
    scale = Scale.here(tokens=tokens)
    config = AlbertConfig.preset(
        preset, layout=layout, num_hidden_layers=2, vocab_size=scale.vocabulary, initializer_range=0.05,
        hidden_dropout_prob=0.1,  # on a GPU torch's attention has a dropout of its own
        attention_probs_dropout_prob=0.1 if scale.is_small else 0.0,
        **({"hidden_size": 52, "num_attention_heads": 2, "intermediate_size": 104} if scale.is_small else {}),
    )  # fmt: skip
    torch.manual_seed(0)
    model = PretrainingModel(config).to(scale.device)  # while `poisoned`, `torch.device` has no effect
    lengths = lengths_of("mixed", min(128, tokens // 2), tokens)
    batch = random_batch(lengths, scale.vocabulary, scale.device)
    ours, theirs, exact = (
        _passes(model, batch, choice, kind)
        for choice, kind in ((scale.checked, dtype), ("torch", dtype), ("torch", torch.float64))
    )
    for name, want in exact.items():
        error, allowed = (float((x[name].double() - want).norm()) for x in (ours, theirs))
        limit = max(2 * allowed, torch.finfo(dtype).eps * float(want.norm()))
        assert error <= limit, f"{name}: error {error:.2e}, allowed {limit:.2e}"


def _passes(model: PretrainingModel, batch, choice: str, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The loss and the gradients, by name."""
    kind = batch.input_ids.device.type
    exact = dtype == torch.float64
    (model.double if exact else model.float)().zero_grad()
    torch.manual_seed(0)  # of the dropout
    with patch.object(kernels.dispatch, "_choice", choice):
        with torch.autocast(kind, None if exact else dtype, enabled=not exact):
            loss = model(batch).loss
        loss.backward()
    modules: dict[str, list[torch.Tensor]] = {}
    for name, p in model.named_parameters():
        modules.setdefault(name.rpartition(".")[0], []).append(p.grad.flatten())
    return {"loss": loss.detach(), **{name: torch.cat(gradients) for name, gradients in modules.items()}}


def make(claim: Claim) -> None:
    """Check a claim; raises what it raises."""
    from tests.kernels.operand_checks import poisoned

    with poisoned():
        getattr(importlib.import_module(claim.module), claim.function)(kernels, *claim.arguments)


def tasks(claims: list[Claim]) -> list[Task]:
    """What `run_tasks` checks claims by."""
    return [(make, (claim,)) for claim in claims]


def races(scale: Scale) -> dict[str, object]:
    """Run small claims of every kernel under compute-sanitizer's racecheck, where it is installed."""
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        return {"racecheck": "compute-sanitizer is not installed"}
    code = "from benchmarks.gpu import correctness as c; [c.make(claim) for claim in c.small_claims()]"
    # by `timeout`, as the sanitizer's own process would use the GPU on, also when this one is ended
    command = ["timeout", "120", sanitizer, "--tool", "racecheck", sys.executable, "-c", code]
    process = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    output = process.stdout
    said = " | ".join(output[-1000:].split("\n"))
    if process.returncode or "RACECHECK SUMMARY" not in output:
        raise RuntimeError(f"racecheck ended with {process.returncode}: {said}")
    found = Counter(re.findall(r"access at (\w+)\+", output))
    if ours := sorted(_kernels() & set(found)):
        raise RuntimeError(f"races in {', '.join(ours)}: {said}")
    # cuBLAS's order their accesses by barriers of the copy engine, which racecheck does not follow
    return {"kernels": len(_kernels()), "races": 0, "reports about other kernels": dict(found)}


def _kernels() -> set[str]:
    """The names of jixu's kernels, as the GPU knows them."""
    from triton.runtime.jit import JITFunction

    modules = [importlib.import_module(m.name) for m in pkgutil.iter_modules(kernels.__path__, "kernels.")]
    return {name for module in modules for name, x in vars(module).items() if isinstance(x, JITFunction)}
