"""Choose whether an operator runs its Triton kernel or its torch reference.

`auto` (the default) takes Triton on NVIDIA GPUs from sm_80 on and torch elsewhere. `JIXU_KERNELS` sets the
choice for a process, `use` changes it. Triton runs on a CPU only in its interpreter (`TRITON_INTERPRET=1`).
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from functools import cache
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Choice = Literal["triton", "torch", "auto"]
DTYPES = (torch.float32, torch.float16, torch.bfloat16)  # the kernels take these
Constants = dict[str, int | float | str]  # compile-time arguments of a launch


class KernelError(RuntimeError):
    """A kernel cannot run here, or not on these tensors."""


class _Absent:
    """Stands in for `triton` and `triton.language` where there is no wheel, so that modules import."""

    def jit(self, function=None, **options):
        return self

    def __call__(self, function):
        return self

    def __getitem__(self, grid):
        raise KernelError(f"{missing_triton()}; or call kernels.use('torch')")


OLDEST_TRITON = (3, 6)
_version = ""
if importlib.util.find_spec("triton") is not None:
    # Triton 3.10 changes the default; the kernels were compiled and tested with fused multiply-adds
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    import triton
    import triton.language as tl

    _version = triton.__version__


def missing_triton() -> str | None:
    """Say why the kernels cannot be compiled with the installed Triton; None if they can."""
    if not _version:
        return "triton is not installed: install it (it has wheels for Linux only)"
    if tuple(int(part) for part in _version.split(".")[:2]) < OLDEST_TRITON:
        return f"triton {_version} is too old: the kernels need 3.6 or newer"
    return None


has_triton = missing_triton() is None
if not has_triton:
    triton = tl = _Absent()

_choice: Choice = "auto"


def use(choice: Choice) -> None:
    """Choose how the operators of this process run.

    Raises KernelError for an unknown choice, and for "triton" where triton is missing or too old.
    """
    global _choice
    if choice not in get_args(Choice):
        raise KernelError(f"unknown kernels {choice!r}: choose one of {', '.join(get_args(Choice))}")
    if choice == "triton" and not has_triton:
        raise KernelError(f"kernels 'triton' were chosen, but {missing_triton()}")
    _choice = choice


@cache
def runs_kernels(device: torch.device) -> bool:
    """Whether the kernels were compiled and checked for this GPU: NVIDIA's from sm_80 on."""
    return has_triton and torch.version.hip is None and torch.cuda.get_device_capability(device) >= (8, 0)


def use_triton(x: Tensor) -> bool:
    """Whether an operator on `x` runs its Triton kernel. Raises KernelError if it must and cannot."""
    if _choice != "triton":
        return _choice == "auto" and x.is_cuda and x.dtype in DTYPES and runs_kernels(x.device)
    if x.dtype not in DTYPES:
        raise KernelError(
            f"kernels 'triton' were chosen, but the tensors are {x.dtype}: "
            "the kernels take float32, float16 and bfloat16"
        )
    if not x.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
        raise KernelError(
            f"kernels 'triton' were chosen, but the tensors are on {x.device}: move them to a GPU, "
            "call kernels.use('auto'), or set TRITON_INTERPRET=1 before the first import"
        )
    return True


def use_tensor_cores(x: Tensor) -> bool:
    """`use_triton` for operators that multiply matrices; on a GPU those in fp32 are left to torch."""
    return use_triton(x) and not (x.is_cuda and compute_dtype(x) == torch.float32)


def handwritten(x: Tensor) -> bool:
    """Whether an operator on `x` runs its handwritten passes for a CPU; torch.compile gets plain torch."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def _is_traced(x: Tensor) -> bool:
    """Whether torch.compile or a fake tensor looks on: only an operator is opaque to them."""
    return torch.compiler.is_compiling() or type(x) not in (Tensor, torch.nn.Parameter)


def operator(
    name: str, fake: Callable[..., Any] | None = None, save: Callable[..., None] | None = None,
    gradients: Callable[..., Any] | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:  # fmt: skip
    """Make a function that changes no input an operator of torch's, and call it as one where it is traced.

    Elsewhere it calls the function or an autograd.Function, which costs the host less. `fake` returns tensors
    like its outputs: by default itself, where it runs torch's operators alone. `save` and `gradients` are
    those of `torch.library.register_autograd`, if there is a backward pass.
    """

    def define(function: Callable[..., Any]) -> Callable[..., Any]:
        traced = torch.library.custom_op(name, function, mutates_args=())
        traced.register_fake(fake or function)
        direct = function
        if save is not None and gradients is not None:
            traced.register_autograd(gradients, setup_context=save)
            direct = _differentiable(function, save, gradients)

        def call(x: Tensor, *others: object) -> Any:
            return traced(x, *others) if _is_traced(x) else direct(x, *others)

        return call

    return define


def _differentiable(
    function: Callable[..., Any], save: Callable[..., None], gradients: Callable[..., Any]
) -> Callable[..., Any]:
    class Direct(torch.autograd.Function):
        backward = staticmethod(once_differentiable(gradients))  # type: ignore[assignment]  # its signature

        @staticmethod
        def forward(ctx, *inputs):  # with a `setup_context` torch would bind a signature at every call
            output = function(*inputs)
            ctx.set_materialize_grads(False)  # of outputs that have none: nothing reads the zeros
            save(ctx, inputs, output)
            return output

    return Direct.apply


# makes the GPU of a tensor the current one, where Triton launches; does nothing for a CPU
on_device = torch.cuda.device_of


def compute_dtype(x: Tensor) -> torch.dtype:
    """Choose the dtype of an operator on `x`: autocast's, which does not reach custom operators, or x's."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def autocast(x: Tensor) -> Tensor:
    """Convert `x` to its `compute_dtype`."""
    return x.to(compute_dtype(x))


use(cast(Choice, os.environ.get("JIXU_KERNELS", "auto")))  # checked in there
