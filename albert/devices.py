"""The devices of this machine: which ones a training uses, and whether Triton runs there."""

from __future__ import annotations

import torch

import kernels
from kernels.layer_norm import add_layer_norm_reference


def device_names(processes: int = 1) -> tuple[str, ...]:
    """`cpu`, or for each process `cuda-` and its GPU's own UUID: numbers depend on CUDA_VISIBLE_DEVICES."""
    count = min(processes, torch.cuda.device_count())
    if not count:
        return ("cpu",)
    return tuple(f"cuda-{torch.cuda.get_device_properties(i).uuid}" for i in range(count))


def describe_devices() -> list[str]:
    """Each GPU with its memory and compute capability; none where there is none."""
    found = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return [f"{gpu.name}, {gpu.total_memory / 2**30:.0f} GiB, sm_{gpu.major}{gpu.minor}" for gpu in found]


def cpu_capability() -> str:
    """The instruction set that torch's operators use on this CPU."""
    return torch.backends.cpu.get_cpu_capability()


def triton_error(device: str) -> float:
    """Largest difference between a Triton kernel and its torch reference, fp32, on values of about 1."""
    torch.manual_seed(0)
    x, residual = torch.randn(2, 64, 768, device=device)
    weight, bias = torch.ones(768, device=device), torch.zeros(768, device=device)
    kernels.use("triton")
    try:
        ours = kernels.add_layer_norm(x, residual, weight, bias, 1e-12)
    finally:
        kernels.use("auto")
    reference = add_layer_norm_reference(x.double(), residual.double(), weight.double(), bias.double(), 1e-12)
    return float((ours - reference).abs().max())
