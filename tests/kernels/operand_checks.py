"""Claims about strided, far and repeated operands, as functions of the package like those in `checks`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import ModuleType
from unittest.mock import patch

import torch
from torch import Tensor

from kernels.embedding import Norm, Projection, Tables
from tests.kernels.checks import DEVICE

LENGTH = 128  # tokens of a sequence
Call = Callable[[ModuleType, list[Tensor], list[Tensor], list[Tensor]], Tensor]
CALLS: dict[str, Call] = {
    "attention": lambda p, rows, _rest, ids: p.attention(*rows, *ids, LENGTH),
    "mlm_loss": lambda p, rows, rest, ids: p.mlm_loss(*rows, *rest, *ids)[0],
    "add_layer_norm": lambda p, rows, rest, _ids: p.add_layer_norm(*rows, *rest[:2], 1e-5, x_bias=rest[2]),
    "bias_gelu": lambda p, rows, rest, _ids: p.bias_gelu(*rows, *rest, "gelu_new"),
    "embed": lambda p, _rows, rest, ids: p.embed(
        *ids, Tables(*rest[:3]), Norm(*rest[3:5], 1e-5), Projection(*rest[5:])
    ),
}


@contextmanager
def poisoned() -> Iterator[None]:
    """Fill new tensors with NaN, or a number no kernel writes, so that an unwritten output shows."""

    def poison(real):
        def allocate(*args, **kwargs):
            x = real(*args, **kwargs)
            if type(x) is torch.Tensor:
                x.detach().fill_(float("nan") if x.is_floating_point() else -7)
            return x

        return allocate

    with torch.device("meta"):
        torch.empty(0)  # torch lists its constructors at the first such call; ours must not be among them
    with (
        patch.object(torch, "empty", poison(torch.empty)),
        patch.object(torch, "empty_like", poison(torch.empty_like)),
    ):
        yield


@dataclass(frozen=True)
class Operands:
    """Arguments: `rows` and `ids` of each token (attention's ids are `cu_seqlens`), `rest` are weights."""

    operator: str
    rows: list[Tensor]
    rest: list[Tensor]
    ids: list[Tensor]

    def last(self, count: int) -> Operands:
        """Take the operands of the last `count` tokens, for attention the last sequence."""
        ends = [torch.tensor([0, count], dtype=x.dtype, device=x.device) for x in self.ids]
        ids = ends if self.operator == "attention" else [x[-count:] for x in self.ids]
        return replace(self, rows=[x[-count:] for x in self.rows], ids=ids)

    def spread(self) -> Operands:
        """Copy the operands into views with a gap after every number."""
        rows, rest, ids = ([_spread(x) for x in some] for some in (self.rows, self.rest, self.ids))
        return Operands(self.operator, rows, rest, ids)

    def results(self, package: ModuleType, dy: Tensor | None = None) -> list[Tensor]:
        """Return the output and the gradients of rows and rest."""
        rows, rest = ([x.detach().requires_grad_() for x in some] for some in (self.rows, self.rest))
        y = CALLS[self.operator](package, rows, rest, self.ids)
        dy = torch.ones_like(y) if dy is None else dy.expand_as(y)
        return [y.detach(), *torch.autograd.grad(y, [*rows, *rest], dy)]


def _spread(x: Tensor) -> Tensor:
    other = float("nan") if x.is_floating_point() else -(2**30)
    return torch.stack([x, torch.full_like(x, other)], -1)[..., 0]


def operands(operator: str, tokens: int, width: int, dtype: torch.dtype) -> Operands:
    """Draw operands with rows of `width` numbers (attention's 3 times as wide)."""
    torch.manual_seed(tokens)
    R, W, E, V = tokens, width, 24, 60

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, device=DEVICE, dtype=dtype)

    def below(end: int) -> Tensor:
        return torch.randint(end, (R,), device=DEVICE)

    D = 64 if W % 64 == 0 else 16
    starts = [*range(0, R, LENGTH), R]
    cu_seqlens = torch.tensor(starts, dtype=torch.int32, device=DEVICE)
    made = {
        "attention": lambda: ([random(R, 3, W // D, D)], [], [cu_seqlens]),
        "mlm_loss": lambda: ([random(R, W)], [random(V, W), random(V)], [below(V)]),
        "add_layer_norm": lambda: ([random(R, W), random(R, W)], [random(W) for _ in range(3)], []),
        "bias_gelu": lambda: ([random(R, W)], [random(W)], []),
        "embed": lambda: (
            [], [random(*s) for s in ((V, E), (2, E), (50, E), (E,), (E,), (W, E), (W,))],
            [below(V), below(2), below(50)],
        ),
    }  # fmt: skip
    return Operands(operator, *made[operator]())


def strided(package: ModuleType, operator: str, dtype: torch.dtype = torch.float32) -> None:
    """Check that operands with garbage in gaps and an expanded gradient change no bit of the results."""
    dense = operands(operator, 40, 48, dtype)
    spread = dense.spread().results(package, torch.ones((), device=DEVICE, dtype=dtype))
    pairs = zip(spread, dense.results(package), strict=True)
    for number, (got, want) in enumerate(pairs):
        assert got.isfinite().all() and torch.equal(got, want), f"strided {operator}: result {number} differs"


def repeated(package: ModuleType, operator: str, tokens: int, dtype: torch.dtype = torch.float32) -> None:
    """Check that a second run agrees with the first in every bit of output and gradients."""
    same = operands(operator, tokens, 48, dtype)
    for number, (a, b) in enumerate(zip(same.results(package), same.results(package), strict=True)):
        assert torch.equal(a, b), f"{operator} again: result {number} differs"


def far(
    package: ModuleType, operator: str, tokens: int, width: int, dtype: torch.dtype = torch.bfloat16
) -> None:
    """Check that the last of many tokens, and the gradients of these alone, are as without the others.

    With tokens * width over 2**31, a 32-bit address lands elsewhere.
    """
    whole = operands(operator, tokens, width, dtype)
    count = tokens % LENGTH
    tail = whole.last(count)
    y, *gradients = tail.results(package)
    dy = torch.zeros(tokens, *y.shape[1:], device=DEVICE, dtype=y.dtype)
    dy[-count:] = 1
    results = whole.results(package, dy)
    last = 1 + len(whole.rows)
    results = [x[-count:] for x in results[:last]] + results[last:]
    for number, (got, want) in enumerate(zip(results, [y, *gradients], strict=True)):
        # sums may be split differently; a wrong address is far off
        allowed = 4 * torch.finfo(dtype).eps * want.abs().max()
        assert (got - want).abs().max() <= allowed, f"{operator} of {tokens} tokens: result {number} differs"


def scatter_of_one_id(package: ModuleType, count: int = 1500) -> None:
    """Check an id with more rows than a program adds up at once, between two rare ones."""
    torch.manual_seed(0)
    x = torch.randn(count, 8, device=DEVICE)
    ids = torch.full((count,), 1, device=DEVICE)
    ids[7], ids[9] = 0, 2
    got = package.embedding.scatter_rows(x, ids, 4)
    expected = torch.zeros(4, 8, device=DEVICE, dtype=torch.float64).index_add_(0, ids, x.double())
    assert (got - expected).abs().max() <= 1e-6 * count**0.5 * 10  # rounding of partial sums
    assert got[3].eq(0).all()


def scatter_without_neighbours(package: ModuleType) -> None:
    """Check that a NaN row reaches only the ids of its own slice of the sorted rows."""
    x, ids = torch.ones(150, 8, device=DEVICE), torch.arange(150, device=DEVICE)
    x[0] = float("nan")
    table = package.embedding.scatter_rows(x, ids, 150)
    assert table[0].isnan().all() and table[64:].eq(1).all()


def rows_without_neighbours(package: ModuleType, operator: str, dtype: torch.dtype = torch.float32) -> None:
    """Check that a NaN row spoils its own output and gradients alone."""
    dirty = operands(operator, 70, 24, dtype)
    for rows in dirty.rows:
        rows[3] = float("nan")
    clean = torch.arange(70, device=DEVICE) != 3
    y, *gradients = dirty.results(package)
    for x in (y, *gradients[: len(dirty.rows)]):
        assert x[3].isnan().any() and x[clean].isfinite().all(), operator
