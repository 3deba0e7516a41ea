"""Compile every kernel for NVIDIA GPUs that are not here, and refuse what would run badly.

    python -m benchmarks.compile_only [--fast] [--only WORD]

A launch passes if ptxas spills no register and does not serialise wgmma, if it fits the registers
and the shared memory of the architecture, if its 16-bit matrix products use tensor cores, and if loops that
load the operands of products do so by asynchronous copies. Prints a table, writes
benchmarks/results/compile_only-triton-VERSION.json; exit status 1 if a launch fails. sm_90 gets all launches,
the others few of each kernel, and with `--fast` all do, which writes VERSION-fast.json. SASS counts the
machine's instructions, `loop` those of the longest loop. These are statements about code, not about speed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product

if os.environ.get("TRITON_INTERPRET") == "1":
    sys.exit("compile_only needs Triton's compiler: unset TRITON_INTERPRET")

import torch

from kernels.dispatch import missing_triton

if missing_triton():
    sys.exit(f"nothing compiled: {missing_triton()}")
import triton

import kernels
from benchmarks.gpu.launches import SHARED_MEMORY, Compiled, KernelLaunch, compile_for, record
from benchmarks.support.results import RESULTS, command
from data.errors import ConfigError
from kernels.embedding import Norm, Projection, Tables

# loads of rows by index go straight to registers, and the products of these kernels are a small part of their
# work
NO_ASYNC_COPIES = ("scatter_slices_kernel",)
HALF = torch.bfloat16


@dataclass(frozen=True)
class Row:
    """One compiled launch and what is wrong with it."""

    kernel: str
    architecture: str
    configuration: str
    num_warps: int
    num_stages: int
    result: Compiled
    problems: tuple[str, ...]


def problems(launch: KernelLaunch, architecture: int, result: Compiled) -> tuple[str, ...]:
    """List why a launch does not pass."""
    reasons = []
    if result.spill_bytes:
        reasons.append(f"{result.spill_bytes} bytes of registers spilled")
    if result.serialized:
        reasons.append("wgmma serialised")
    if result.shared_bytes > SHARED_MEMORY[architecture]:
        reasons.append(f"{result.shared_bytes} bytes of shared memory of {SHARED_MEMORY[architecture]}")
    if result.registers * launch.num_warps * 32 > 65536:
        reasons.append(f"{result.registers} registers in {launch.num_warps} warps")
    if result.dots and not result.tensor_cores:
        reasons.append("no tensor cores")
    if result.dots and result.loop_loads and not result.async_copies and launch.name not in NO_ASYNC_COPIES:
        reasons.append("no asynchronous copies")
    return tuple(reasons)


def attention_launches(head_dim: int, length: int, dropout_p: float, dtype: torch.dtype = HALF) -> None:
    heads = 12 if head_dim <= 64 else 16
    qkv = torch.zeros(2 * length, 3, heads, head_dim, dtype=dtype, requires_grad=True)
    cu_seqlens = torch.tensor([0, length, 2 * length], dtype=torch.int32)
    out = kernels.attention(qkv, cu_seqlens, length, dropout_p=dropout_p)
    out.backward(out)


def loss_launches(width: int, dtype: torch.dtype = HALF) -> None:
    states = torch.zeros(9830, width, dtype=dtype, requires_grad=True)
    weight, bias = torch.zeros(21128, width, requires_grad=True), torch.zeros(21128, requires_grad=True)
    kernels.mlm_loss(states, weight, bias, torch.zeros(9830, dtype=torch.int64))[0].sum().backward()


def embedding_launches(E: int, H: int, layout: str, dtype: torch.dtype = HALF) -> None:
    T, W = 4096, H if layout == "bright" else E
    word, kind, place = (torch.zeros(n, w, requires_grad=True) for n, w in ((21128, E), (2, W), (512, W)))
    norm = Norm(torch.zeros(W, requires_grad=True), torch.zeros(W), 1e-12)
    last = None if layout == "bert" else Projection(torch.zeros(H, E), torch.zeros(H))
    ids = torch.zeros(T, dtype=torch.int64)
    with torch.autocast("cpu", HALF, enabled=dtype == HALF):
        order = "bright" if layout == "bright" else "google"
        y = kernels.embed(ids, ids, ids, Tables(word, kind, place), norm, last, order)
    y.backward(y)


def row_launches(H: int, dropout_p: float, numbered: bool = False) -> None:
    x, residual = (torch.zeros(4096, H, dtype=HALF, requires_grad=True) for _ in range(2))
    weight, bias = torch.zeros(H), torch.zeros(H)
    rows = torch.arange(4096) if numbered else None
    y = kernels.add_layer_norm(x, residual, weight, bias, dropout_p=dropout_p, x_bias=bias, rows=rows)
    y.backward(y)


def activation_launches(F: int, activation: str) -> None:
    x = torch.zeros(4096, F, dtype=HALF, requires_grad=True)
    y = kernels.bias_gelu(x, torch.zeros(F), activation)
    y.backward(y)


def cases(fast: bool) -> Iterator[tuple[str, tuple[object, ...]]]:
    """Yield what to run under `record`, with a description."""
    dropouts = (0.0,) if fast else (0.0, 0.1)
    shapes = ((32, 64), (128, 512)) if fast else ((32, 64, 128), (64, 128, 512))
    for head_dim, length, dropout_p in product(*shapes, dropouts):
        yield (
            f"D={head_dim} L={length} dropout={dropout_p}",
            (attention_launches, head_dim, length, dropout_p),
        )
    for width in (128,) if fast else (64, 128):
        yield f"E={width}", (loss_launches, width)
    layouts = [(128, 768, "google"), (128, 312, "google"), (128, 312, "bright"), (768, 768, "bert")]
    for E, H, layout in layouts[1:3] if fast else layouts:
        yield f"E={E} H={H} {layout}", (embedding_launches, E, H, layout)
    for H, dropout_p in product((312,) if fast else (312, 768, 1024, 2048, 4096), dropouts):
        yield f"H={H} dropout={dropout_p}", (row_launches, H, dropout_p)
        if dropout_p:
            yield f"H={H} dropout={dropout_p} rows", (row_launches, H, dropout_p, True)
    for activation in ("gelu_new",) if fast else ("gelu", "gelu_new", "relu"):
        yield f"F=1248 {activation}", (activation_launches, 1248, activation)
    if not fast:
        for length in (128, 512):
            yield f"D=64 L={length} fp16", (attention_launches, 64, length, 0.0, torch.float16)
        yield "E=128 fp16", (loss_launches, 128, torch.float16)
    for E, H, layout in layouts[2:3] if fast else layouts[0:3:2]:
        yield f"E={E} H={H} {layout} fp32", (embedding_launches, E, H, layout, torch.float32)


def compile_all(
    architectures: tuple[int, ...], *, fast: bool = False, only: str = "", disassembled: bool = True
) -> Iterator[Row]:
    """Compile every distinct launch of the cases."""
    for architecture in architectures:
        seen = set()
        for configuration, (run, *arguments) in cases(fast):
            with record(architecture) as launches:
                run(*arguments)
            for launch in launches:
                if launch in seen or only not in launch.name:
                    continue
                seen.add(launch)
                result = compile_for(launch, architecture, disassembled=disassembled)
                blocks = {n: v for n, v in launch.constants if n in ("TILE", "ROWS", "BLOCK", "WHOLE")}
                words = [configuration, *(f"{name.lower()}={value}" for name, value in blocks.items())]
                yield Row(
                    launch.name, f"sm_{architecture}", " ".join(words), launch.num_warps, launch.num_stages,
                    result, problems(launch, architecture, result),
                )  # fmt: skip


def line(row: Row) -> str:
    r = row.result
    return (
        f"{row.architecture}  {row.kernel.removesuffix('_kernel'):24}  {row.configuration:44}  "
        f"{row.num_warps:5} {row.num_stages:6}  {r.registers:4}  {r.spill_bytes:6}  {r.shared_bytes:6}  "
        f"{r.tensor_cores:4} {r.async_copies:8} {r.instructions:5} {r.loop:5}  "
        f"{'; '.join(row.problems) or 'ok'}"
    )


def main(*, fast: bool = False, only: str = "") -> int:
    """Run the benchmark.

    Args:
        fast: A few launches of each kernel.
        only: Kernels whose name has this word.
    """
    print(f"triton {triton.__version__}, torch {torch.__version__}")
    titles = "warps stages  regs  spills  shared   mma cp.async  sass  loop"
    print(f"{'':7}{'kernel':24}  {'configuration':44}  {titles}")
    rows = []
    for architectures, few in (((90,), fast), ((80, 86, 100, 120), True)):
        for row in compile_all(architectures, fast=few, only=only):
            print(line(row), flush=True)
            rows.append(row)
    if not rows:
        raise ConfigError(f"no kernel has {only!r} in its name")
    bad = [row for row in rows if row.problems]
    print(f"{len(rows)} launches compiled, {len(bad)} refused")
    if not only:
        name = f"compile_only-triton-{triton.__version__}{'-fast' if fast else ''}.json"
        launches = ",\n".join(json.dumps(asdict(row)) for row in rows)  # a line each: changes can be read
        content = f'{{"triton": "{triton.__version__}", "launches": [\n{launches}\n]}}\n'
        RESULTS.mkdir(parents=True, exist_ok=True)
        (RESULTS / name).write_text(content, encoding="utf-8")
    return 1 if bad else 0


if __name__ == "__main__":
    command(main)
