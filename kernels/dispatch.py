"""Which implementation an operator runs: its Triton kernel or its torch reference.

`auto` (the default) takes Triton for CUDA tensors and torch elsewhere. `JIXU_KERNELS` sets the choice from
outside; `use` changes it in the process. Triton runs on a CPU only in its interpreter (`TRITON_INTERPRET=1`).
"""

from __future__ import annotations

import importlib.util
import os
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch
from torch import Tensor

Choice = Literal["triton", "torch", "auto"]
CHOICES = ("triton", "torch", "auto")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)  # that the kernels take


class KernelError(RuntimeError):
    """A kernel was asked for where it cannot run."""


class _Absent:
    """Stands in for `triton` and `triton.language` where there is no wheel: modules still import."""

    def jit(self, function=None, **options):
        return self

    def __call__(self, function):
        return self

    def __getitem__(self, grid):
        raise KernelError(
            "no triton here: install it (Linux with an NVIDIA GPU) or call kernels.use('torch')"
        )


has_triton = importlib.util.find_spec("triton") is not None
if has_triton:
    # the default changes with Triton 3.10: what was compiled and tested here is with fused multiply-adds
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    import triton
    import triton.language as tl
else:
    triton = tl = _Absent()

_choice: Choice = "auto"


def use(choice: Choice) -> None:
    """Choose how the operators of this process run; one that has no kernel runs its torch reference.

    Raises KernelError for an unknown choice, and for "triton" where triton is not installed.
    """
    global _choice
    if choice not in CHOICES:
        raise KernelError(f"unknown kernels {choice!r}: choose one of {', '.join(CHOICES)}")
    if choice == "triton" and not has_triton:
        raise KernelError(
            "kernels 'triton' asked for, but triton is not installed (it has Linux wheels only)"
        )
    _choice = choice


def use_triton(x: Tensor) -> bool:
    """Whether an operator on `x` runs its Triton kernel. Raises KernelError if it was told to and cannot."""
    if _choice != "triton":
        return _choice == "auto" and x.is_cuda and has_triton and x.dtype in DTYPES
    if x.dtype not in DTYPES:
        raise KernelError(
            f"kernels 'triton' asked for, but the tensors are {x.dtype}: "
            "the kernels take float32, float16 and bfloat16"
        )
    if not x.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
        raise KernelError(
            f"kernels 'triton' asked for, but the tensors are on {x.device}: move them to a GPU, "
            "call kernels.use('auto'), or set TRITON_INTERPRET=1 before the first import"
        )
    return True


def by_hand(x: Tensor) -> bool:
    """Whether an operator on `x` takes its hand-written passes for a CPU; torch.compile gets plain torch."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


_ANYWHERE = nullcontext()


def on_device(x: Tensor) -> AbstractContextManager:
    """Makes the GPU of `x` the current one, which is where Triton launches; does nothing for a CPU."""
    return torch.cuda.device_of(x) if x.is_cuda else _ANYWHERE


def compute_dtype(x: Tensor) -> torch.dtype:
    """What autocast, which does not reach into custom operators, would have an operator on `x` compute in."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def autocast(x: Tensor) -> Tensor:
    """`x` in the dtype autocast asks for, or as it is."""
    return x.to(compute_dtype(x))


use(os.environ.get("JIXU_KERNELS", "auto"))
