"""Record kernel launches instead of running them, and compile them for a GPU that is absent.

`record` runs the operators on CPU tensors with the launcher replaced: what is compiled afterwards is what the
operators launch, with the same constants, alignments and options, not a separate list.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from unittest.mock import patch

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

import kernels
from kernels import tuning

POINTERS = {
    torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.int64: "*i64",
    torch.int32: "*i32", torch.bool: "*i1", torch.int16: "*i16", torch.int8: "*i8", torch.uint8: "*u8",
}  # fmt: skip
# bytes a block may have: CUDA programming guide, table of compute capabilities, less 1 KB the driver takes;
# sm_80's is that of sm_86, sm_89 and sm_120, for which the sm_80 entries of the table are meant too
SHARED_MEMORY = {80: 101376, 86: 101376, 90: 232448, 100: 232448, 120: 101376}
_CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


@dataclass(frozen=True)
class KernelLaunch:
    """One kernel with the arguments of one launch, as the compiler sees them."""

    kernel: JITFunction
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, object], ...]
    aligned: tuple[str, ...]
    num_warps: int
    num_stages: int

    @property
    def name(self) -> str:
        return self.kernel.__name__


@dataclass(frozen=True)
class Compiled:
    """What ptxas reports for a kernel, and what its code uses."""

    registers: int
    spill_bytes: int
    shared_bytes: int
    serialized: bool  # ptxas serialised wgmma (C7511 and similar)
    dots: bool  # the source multiplies matrices of 16-bit numbers
    tensor_cores: int  # mma.sync, wgmma.mma_async or tcgen05.mma instructions
    async_copies: int  # cp.async instructions
    loop_loads: bool  # the source loads the operands of a product in a loop
    instructions: int  # of the machine's code
    loop: int  # instructions of its longest loop


def _launch(kernel: JITFunction, args: tuple, kwargs: dict) -> KernelLaunch:
    options = {name: kwargs.pop(name) for name in ("num_warps", "num_stages") if name in kwargs}
    values = dict(zip(kernel.arg_names, args, strict=False)) | kwargs
    fixed = {p.name for p in kernel.params if p.is_constexpr}
    free = {p.name for p in kernel.params if p.do_not_specialize}
    signature, constants, aligned = [], [], []
    for name in kernel.arg_names:
        value = values[name]
        # the launcher also treats 1 and None as constants
        is_one = type(value) is int and value == 1 and name not in free
        if name in fixed or value is None or is_one:
            signature.append((name, "constexpr"))
            constants.append((name, value))
        elif isinstance(value, torch.Tensor):
            signature.append((name, POINTERS[value.dtype]))
            aligned += [name] * (value.data_ptr() % 16 == 0)
        elif isinstance(value, int):
            signature.append((name, "i32" if abs(value) < 2**31 else "i64"))
            aligned += [name] * (value % 16 == 0 and name not in free)
        else:
            signature.append((name, "fp32"))
    return KernelLaunch(
        kernel, tuple(signature), tuple(constants), tuple(aligned),
        options.get("num_warps", 4), options.get("num_stages", 3),
    )  # fmt: skip


@contextmanager
def record(architecture: int) -> Iterator[list[KernelLaunch]]:
    """Record every launch inside, on CPU tensors, with the table's entries for `architecture`."""
    launches: list[KernelLaunch] = []

    def note(self, *args, grid, warmup, **kwargs):
        launches.append(_launch(self, args, kwargs))

    with (
        patch.object(JITFunction, "run", note),
        patch.object(tuning, "architecture", lambda device: f"sm_{architecture}"),
        patch.object(kernels.dispatch, "_choice", "triton"),
        # so that the operators accept CPU tensors, and take built-in tiles: measured ones need no proof
        patch.dict(os.environ, TRITON_INTERPRET="1", JIXU_TILES=os.devnull),
    ):
        yield launches


def compile_for(launch: KernelLaunch, architecture: int, *, disassembled: bool = True) -> Compiled:
    """Compile one launch for an architecture, ptxas included; count its instructions if `disassembled`."""
    names = launch.kernel.arg_names
    source = ASTSource(
        fn=launch.kernel,
        signature=dict(launch.signature),
        constexprs={(names.index(name),): value for name, value in launch.constants},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in launch.aligned},
    )
    options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages}
    log = StringIO()
    # ptxas is heard only when it runs, which it does not for a kernel of Triton's cache
    with patch.dict(os.environ, TRITON_DUMP_PTXAS_LOG="1", TRITON_ALWAYS_COMPILE="1"), redirect_stdout(log):
        compiled = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)
    ptx, sass = compiled.asm["ptx"], _disassemble(compiled.asm["cubin"]) if disassembled else ""
    spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", log.getvalue())
    ttir = compiled.asm["ttir"]
    dots = re.findall(r"tt\.dot .*-> tensor", ttir)
    return Compiled(
        registers=max(map(int, re.findall(r"Used (\d+) registers", log.getvalue()))),
        spill_bytes=sum(map(int, spills)),
        shared_bytes=compiled.metadata.shared,
        serialized=bool(re.search(r"wgmma.*serializ|serializ.*wgmma", log.getvalue())),
        dots=any("16>" in re.sub(r"->.*", "", d) or "f16" in d or "bf16" in d for d in dots),
        tensor_cores=len(re.findall(r"wgmma\.mma_async|mma\.sync|tcgen05\.mma", ptx)),
        async_copies=len(re.findall(r"cp\.async\.c[ag]", ptx)),
        loop_loads="scf.for" in ttir and bool(dots),
        instructions=len(re.findall(r"^\s+/\*[0-9a-f]{4,}\*/", sass, re.M)),
        loop=_longest_loop(sass),
    )


def _longest_loop(sass: str) -> int:
    """Count the instructions between the backward branch that leaps furthest and its target."""
    leaps = re.findall(r"/\*([0-9a-f]{4,})\*/.*\bBRA[^;]* 0x([0-9a-f]+)", sass)
    return max((int(at, 16) - int(to, 16) for at, to in leaps), default=0) // 16


def _disassemble(cubin: bytes) -> str:
    """Return the machine's code as text."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        code = [str(_CUOBJDUMP), "-sass", str(path)]
        return subprocess.run(code, capture_output=True, text=True, check=True).stdout
