"""A step of AdamW and LAMB over a model's tensors one by one, together, fused, and over flat buffers.

    python -m benchmarks.optimizer_step [--steps N]

Flat means that parameters, gradients and moments of a group (decayed or not) are one buffer each, of which
the model's tensors are views: what a kernel of our own would run over. On a CPU torch's fused AdamW over
these buffers stands for such a kernel, since nothing is left to fuse or to gather there. Every way must end
with the same parameters, or there is no result.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from albert.model import AlbertConfig, PretrainingModel
from albert.optim import Lamb, lamb, matrices, vectors
from benchmarks.support.results import write_result

RATE, DECAY, BETAS, EPS = 1e-3, 0.01, (0.9, 0.999), 1e-6
PRESETS = ("tiny", "base")
SAME = 2e-6  # largest difference of fp32 parameters that rounding explains


def flatten(parameters: list[nn.Parameter]) -> nn.Parameter:
    """Join parameters and gradients into one parameter; they become views of it."""
    flat = nn.Parameter(torch.cat([p.detach().flatten() for p in parameters]))
    flat.grad = torch.cat([p.grad.flatten() for p in parameters])
    sizes = [p.numel() for p in parameters]
    for p, value, gradient in zip(
        parameters, flat.detach().split(sizes), flat.grad.split(sizes), strict=True
    ):
        p.data, p.grad = value.view_as(p), gradient.view_as(p)
    return flat


def groups(decayed: list[Tensor], plain: list[Tensor]) -> list[dict[str, object]]:
    return [{"params": decayed, "weight_decay": DECAY}, {"params": plain, "weight_decay": 0.0}]


def adamw_step(model: nn.Module, *, flat: bool, **implementation: bool) -> Callable[[], None]:
    decayed, plain = matrices(model), vectors(model)
    if flat:
        decayed, plain = [flatten(decayed)], [flatten(plain)]
    settings = {"lr": RATE, "betas": BETAS, "eps": EPS, **implementation}
    return torch.optim.AdamW(groups(decayed, plain), **settings).step


class FlatLamb(Lamb):
    """LAMB with flat moments and updates, and norms and trust ratios per tensor."""

    def __init__(self, model: nn.Module):
        self.tensors = [matrices(model), vectors(model)]
        flat = groups(*([flatten(tensors)] for tensors in self.tensors))
        flat[1]["adapt"] = False
        super().__init__(flat, RATE, BETAS, EPS)

    @torch.no_grad()
    def step(self) -> None:
        for group, tensors in zip(self.param_groups, self.tensors, strict=True):
            (p,) = group["params"]
            state = self._state_of(p)
            mean, square = state["exp_avg"], state["exp_avg_sq"]
            state["step"] += 1
            number = state["step"].item()
            mean.lerp_(p.grad, 1 - BETAS[0])
            square.mul_(BETAS[1]).addcmul_(p.grad, p.grad, value=1 - BETAS[1])
            scale = (square / (1 - BETAS[1] ** number)).sqrt_().add_(EPS)
            update = (mean / (1 - BETAS[0] ** number)).div_(scale).add_(p, alpha=group["weight_decay"])
            if group["adapt"]:
                updates = update.split([t.numel() for t in tensors])
                sizes, changes = (torch.stack(torch._foreach_norm(of)) for of in (tensors, updates))
                ratios = torch.where((sizes > 0) & (changes > 0), sizes / changes, 1.0)
                torch._foreach_mul_(updates, list(ratios.unbind()))
            p.add_(update, alpha=-group["lr"])


def ways(model: nn.Module) -> dict[str, tuple[nn.Module, Callable[[], None]]]:
    """Copy the model for each way, with its step."""
    copies = [copy.deepcopy(model) for _ in range(7)]
    for one in copies:
        for p, q in zip(one.parameters(), model.parameters(), strict=True):
            p.grad = q.grad.clone()
    steps = {
        "adamw single": adamw_step(copies[0], flat=False, foreach=False),
        "adamw foreach": adamw_step(copies[1], flat=False, foreach=True),
        "adamw fused": adamw_step(copies[2], flat=False, fused=True),
        "adamw flat, single": adamw_step(copies[3], flat=True, foreach=False),
        "adamw flat, fused": adamw_step(copies[4], flat=True, fused=True),
        "lamb foreach": lamb(copies[5], RATE, DECAY).step,
        "lamb flat": FlatLamb(copies[6]).step,
    }
    return {name: (one, step) for one, (name, step) in zip(copies, steps.items(), strict=True)}


def check_same(made: dict[str, tuple[nn.Module, Callable[[], None]]]) -> None:
    """Exit if two ways of one optimiser differ."""
    for name, (model, _) in made.items():
        first = next(other for key, (other, _) in made.items() if key.split()[0] == name.split()[0])
        for p, q in zip(model.parameters(), first.parameters(), strict=True):
            if not torch.allclose(p, q, rtol=0, atol=SAME):
                raise SystemExit(f"{name} differs by {(p - q).abs().max().item():.2g}: no result")


def measure(config: AlbertConfig, steps: int) -> dict[str, object]:
    """Measure milliseconds of processor time per step, the ways in turn."""
    torch.manual_seed(0)
    model = PretrainingModel(config)
    for p in model.parameters():
        p.grad = torch.randn_like(p) * 0.01
    made = ways(model)
    milliseconds: dict[str, list[float]] = {name: [] for name in made}
    for _ in range(steps):
        for name, (_, step) in made.items():
            began = time.process_time()
            step()
            milliseconds[name].append((time.process_time() - began) * 1e3)
    check_same(made)
    return {
        "tensors": len(list(model.parameters())),
        "parameters": sum(p.numel() for p in model.parameters()),
        "milliseconds": {
            name: {"best": min(times), "median": statistics.median(times)}
            for name, times in milliseconds.items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.optimizer_step", description=__doc__)
    parser.add_argument("--steps", type=int, default=30, help="[%(default)s]")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = {name: measure(AlbertConfig.preset(name), options.steps) for name in PRESETS}
    lines = []
    for name, row in rows.items():
        best = {way: times["best"] for way, times in row["milliseconds"].items()}
        lines.append(
            f"{name} AdamW fused {best['adamw fused']:.2f} ms, over flat buffers "
            f"{best['adamw flat, fused']:.2f} ms, LAMB foreach {best['lamb foreach']:.2f} ms, flat "
            f"{best['lamb flat']:.2f} ms"
        )
    write_result(
        "optimizer_step",
        f"optimizer_step (cpu, 1 thread): {'; '.join(lines)}",
        {"torch": torch.__version__, "steps": options.steps, "models": rows},
    )


if __name__ == "__main__":
    main()
