"""Where training runs: devices, the process group that torchrun starts, and the memory of the process."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist

import kernels
from data.errors import ConfigError
from kernels.dispatch import missing_triton, runs_kernels, use_triton
from kernels.layer_norm import add_layer_norm_reference


def device_names(processes: int = 1) -> tuple[str, ...]:
    """`cpu`, or `cuda-` and the UUID of each process's GPU: numbers depend on CUDA_VISIBLE_DEVICES."""
    count = min(processes, torch.cuda.device_count())
    if not count:
        return ("cpu",)
    return tuple(f"cuda-{torch.cuda.get_device_properties(i).uuid}" for i in range(count))


def default_device() -> torch.device:
    """The GPU, where there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def describe_default_device() -> str:
    """The GPU's name, or how many threads the CPU's operators use."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    threads = torch.get_num_threads()
    return f"CPU, {threads} thread{'s' if threads > 1 else ''}"


def describe_devices() -> list[str]:
    """Describe each GPU by its memory and compute capability."""
    found = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return [f"{gpu.name}, {gpu.total_memory / 2**30:.0f} GiB, sm_{gpu.major}{gpu.minor}" for gpu in found]


def cpu_capability() -> str:
    """The instruction set that torch's operators use on this CPU."""
    return torch.backends.cpu.get_cpu_capability()


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """The context of a forward pass; `auto` is the `usual_precision`."""
    chosen = usual_precision(device) if precision == "auto" else precision
    dtype = torch.float16 if chosen == "fp16" else torch.bfloat16
    return torch.autocast(device.type, dtype, enabled=chosen != "fp32")


def usual_precision(device: torch.device) -> Literal["bf16", "fp32"]:
    """bf16 where it is faster, else fp32."""
    return "bf16" if multiplies_bf16(device) else "fp32"


def multiplies_bf16(device: torch.device) -> bool:
    """Whether bf16 matrix products are faster than fp32 ones on a device.

    Without instructions for bf16 they take several times as long. On a Xeon with AVX-512 BF16 but no AMX,
    steps of ALBERT-tiny took 1.45 times as long as in fp32; on an AMD EPYC bf16 was faster.
    """
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    known = torch.cpu.get_capabilities()
    if known.get("amx_bf16") or known.get("bf16"):
        return True
    return bool(known.get("avx512_bf16")) and not str(known.get("cpu_name", "")).startswith("Intel")


def notice_of_operators(device: torch.device) -> str | None:
    """Say that a GPU runs torch's operators because the kernels do not support it."""
    if device.type == "cpu" or runs_kernels(device):
        return None
    name = torch.cuda.get_device_name(device)
    why = missing_triton() or "the kernels need NVIDIA's sm_80 or newer"
    return f"{name} runs torch's operators: {why}"


def check_operators(device: torch.device) -> None:
    """Raise KernelError if Triton's kernels were chosen and cannot run on a device."""
    use_triton(torch.empty(0, device=device))


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


@dataclass(frozen=True, slots=True)
class Process:
    """One of the processes that train together."""

    rank: int = 0
    world_size: int = 1
    device: torch.device = torch.device("cpu")
    is_restarted: bool = False  # by torchrun, after one of them was lost

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum over all processes, in place."""
        if self.world_size > 1:
            dist.all_reduce(values)
        return values

    def any(self, *flags: bool) -> list[bool]:
        """Which of the flags any process has set. Every process must call it after the same steps."""
        if self.world_size == 1:
            return list(flags)
        return self.sum(torch.tensor(flags).long()).bool().tolist()

    def is_lost(self, error: RuntimeError) -> bool:
        """Whether an error says that another process is gone."""
        return self.world_size > 1 and (isinstance(error, dist.DistError) or "gloo" in str(error))

    def wait_for_all(self) -> None:
        """Wait until every process has called this."""
        if self.world_size > 1:
            dist.barrier()


@contextmanager
def join() -> Iterator[Process]:
    """Join the processes that torchrun started (nccl on GPUs, else gloo), and leave them at the end.

    Raises ConfigError if there are GPUs, but not one for each process.
    """
    world_size, local_rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("LOCAL_RANK", 0))
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    has_gpu = torch.cuda.is_available()
    device = torch.device("cuda", local_rank) if has_gpu else torch.device("cpu")
    if has_gpu:
        if local_rank >= (gpus := torch.cuda.device_count()):
            raise ConfigError(f"process {local_rank + 1} has no GPU of its own: this machine has {gpus}")
        torch.cuda.set_device(device)
    if world_size == 1:
        yield Process(device=device, is_restarted=restarts != "0")
        return
    # what the processes agree on stays on the CPU and goes by gloo, the rest by nccl on the GPU
    backend = "cpu:gloo,cuda:nccl" if has_gpu else "gloo"
    store, rank, _ = next(dist.rendezvous("env://"))
    # after a restart torchrun's store still has the addresses of the lost processes
    store = dist.PrefixStore(restarts, store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size)
    try:
        yield Process(dist.get_rank(), world_size, device, restarts != "0")
    finally:
        dist.destroy_process_group()


GIVE_BACK_EVERY = 50  # steps; trimming takes 0.1 s, under 1% of the time of 50 steps on two cores


def bound_caches() -> None:
    """Bound oneDNN's cache of matrix-product programs, and torch's; call it before the first product.

    oneDNN caches one program per shape, 1,024 by default, and evaluation's and attention's products have
    many: the cache grew past 1 GiB. Existing environment variables win.
    """
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(name, "128")


# glibc's, where there is one
_malloc_trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)


def give_back(step: int) -> None:
    """Return freed memory to the operating system, every GIVE_BACK_EVERY steps.

    Tensors of varying sizes leave holes that malloc keeps: without this a CPU run holds twice the memory
    after half an hour.
    """
    if _malloc_trim is not None and step % GIVE_BACK_EVERY == 0:
        _malloc_trim(0)
