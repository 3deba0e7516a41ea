"""One process of several, as torchrun starts them; alone without it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist

from albert.config import ConfigError


@dataclass(frozen=True, slots=True)
class Process:
    """This process among those that train together."""

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

    def is_lost(self, error: RuntimeError) -> bool:
        """Whether an error says that another process is gone."""
        return self.world_size > 1 and (isinstance(error, dist.DistError) or "gloo" in str(error))

    def wait_for_all(self) -> None:
        """Return when every process is here."""
        if self.world_size > 1:
            dist.barrier()


@contextmanager
def join() -> Iterator[Process]:
    """Join the processes torchrun started (nccl on GPUs, gloo without), and leave them at the end.

    Raises ConfigError where there is no GPU for each of them.
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
    # numbers of the trainer stay on the CPU: they are summed by gloo, gradients where they are
    backend = "cpu:gloo,cuda:nccl" if has_gpu else "gloo"
    store, rank, _ = next(dist.rendezvous("env://"))
    # after a restart torchrun's store still has the addresses of the processes that are gone
    store = dist.PrefixStore(restarts, store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size)
    try:
        yield Process(dist.get_rank(), world_size, device, restarts != "0")
    finally:
        dist.destroy_process_group()
