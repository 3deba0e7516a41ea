"""Claims about where an operator's operands lie: anywhere in memory, far into it, and twice the same.

As in `checks`, functions of the package; those operands of an operator are `Operands`.
"""

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

OPERATORS = ("attention", "attention_packed", "mlm_loss", "add_layer_norm", "bias_gelu", "embed")
LENGTH = 128  # of the sequences of a batch


@contextmanager
def poisoned() -> Iterator[None]:
    """What is allocated inside holds NaN, or a number no kernel writes: what a kernel leaves out is seen."""

    def poison(real):
        def allocate(*args, **kwargs):
            x = real(*args, **kwargs)
            return x.fill_(float("nan") if x.is_floating_point() else -7) if type(x) is torch.Tensor else x

        return allocate

    with (
        patch.object(torch, "empty", poison(torch.empty)),
        patch.object(torch, "empty_like", poison(torch.empty_like)),
    ):
        yield


@dataclass(frozen=True)
class Operands:
    """What an operator is called with: a row of each of `rows` and an entry of each of `ids` belong to a
    token, except that attention's ids are `cu_seqlens`; `rest` are the weights.
    """

    rows: list[Tensor]
    rest: list[Tensor]
    ids: list[Tensor]
    call: Callable[[ModuleType, list[Tensor], list[Tensor], list[Tensor]], Tensor]

    def last(self, count: int) -> Operands:
        """Those of the last tokens: for attention of the last sequence, which has so many."""
        ends = [torch.tensor([0, count], dtype=x.dtype, device=x.device) for x in self.ids]
        ids = ends if self.call in (_attention, _attention_packed) else [x[-count:] for x in self.ids]
        return replace(self, rows=[x[-count:] for x in self.rows], ids=ids)

    def spread(self) -> Operands:
        """The same numbers, every one with another between it and the next."""
        return replace(
            self, **{name: [_spread(x) for x in getattr(self, name)] for name in ("rows", "rest", "ids")}
        )

    def results(self, package: ModuleType, dy: Tensor | None = None) -> list[Tensor]:
        """The output, and the gradients of rows and rest."""
        rows, rest = ([x.detach().requires_grad_() for x in some] for some in (self.rows, self.rest))
        y = self.call(package, rows, rest, self.ids)
        return [y.detach(), *torch.autograd.grad(y, [*rows, *rest], torch.ones_like(y) if dy is None else dy)]


def _spread(x: Tensor) -> Tensor:
    other = float("nan") if x.is_floating_point() else -(2**30)
    return torch.stack([x, torch.full_like(x, other)], -1)[..., 0]


def _attention(package, rows, _rest, ids):
    return package.attention(*rows, *ids, LENGTH)


def _attention_packed(package, rows, _rest, ids):
    return package.attention_packed(*rows, *ids, LENGTH)


def _mlm_loss(package, rows, rest, ids):
    return package.mlm_loss(*rows, *rest, *ids, 0.05)[0]


def _add_layer_norm(package, rows, rest, _ids):
    return package.add_layer_norm(*rows, *rest, 1e-5)


def _bias_gelu(package, rows, rest, _ids):
    return package.bias_gelu(*rows, *rest, "gelu_new")


def _embed(package, _rows, rest, ids):
    tables, norm, projection = Tables(*rest[:3]), Norm(*rest[3:5], 1e-5), Projection(*rest[5:])
    return package.embed(*ids, tables, norm, projection)


def operands(operator: str, tokens: int, width: int, dtype: torch.dtype) -> Operands:
    """Random ones for so many tokens; rows of `width` numbers, of attention 3 times as many."""
    torch.manual_seed(tokens)
    R, W, E, V = tokens, width, 24, 60

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, device=DEVICE, dtype=dtype)

    def below(end: int) -> Tensor:
        return torch.randint(end, (R,), device=DEVICE)

    D = 64 if W % 64 == 0 else 16
    heads = (R, W // D, D)
    starts = [*range(0, R, LENGTH), R]
    cu_seqlens = torch.tensor(starts, dtype=torch.int32, device=DEVICE)
    made = {
        "attention": lambda: ([random(*heads) for _ in range(3)], [], [cu_seqlens], _attention),
        "attention_packed": lambda: (
            [random(R, 3, *heads[1:])], [], [cu_seqlens], _attention_packed,
        ),
        "mlm_loss": lambda: ([random(R, W)], [random(V, W), random(V)], [below(V)], _mlm_loss),
        "add_layer_norm": lambda: ([random(R, W), random(R, W)], [random(W), random(W)], [], _add_layer_norm),
        "bias_gelu": lambda: ([random(R, W)], [random(W)], [], _bias_gelu),
        "embed": lambda: (
            [], [random(*s) for s in ((V, E), (2, E), (50, E), (E,), (E,), (W, E), (W,))],
            [below(V), below(2), below(50)], _embed,
        ),
    }  # fmt: skip
    return Operands(*made[operator]())


def strided(package: ModuleType, operator: str, dtype: torch.dtype = torch.float32) -> None:
    """Operands that are views with gaps, garbage in them, change no bit of output or gradients."""
    dense = operands(operator, 40, 48, dtype)
    for name, got, want in zip(
        range(9), dense.spread().results(package), dense.results(package), strict=False
    ):
        assert got.isfinite().all() and torch.equal(got, want), f"strided {operator}: result {name} differs"


def repeated(package: ModuleType, operator: str, tokens: int, dtype: torch.dtype = torch.float32) -> None:
    """A second run agrees with the first in every bit, of output and gradients."""
    given = operands(operator, tokens, 48, dtype)
    for number, (a, b) in enumerate(zip(given.results(package), given.results(package), strict=True)):
        assert torch.equal(a, b), f"{operator} again: result {number} differs"


def far(
    package: ModuleType, operator: str, tokens: int, width: int, dtype: torch.dtype = torch.bfloat16
) -> None:
    """The last tokens of many, and what gradients they alone give, are as without the others.

    With tokens * width over 2**31 an address that is not of 64 bits lands elsewhere.
    """
    whole = operands(operator, tokens, width, dtype)
    count = tokens % LENGTH
    tail = whole.last(count)
    y, *gradients = tail.results(package)
    dy = torch.zeros(tokens, *y.shape[1:], device=DEVICE, dtype=y.dtype)
    dy[-count:] = 1
    found = whole.results(package, dy)
    of_rows = 1 + len(whole.rows)
    found = [x[-count:] for x in found[:of_rows]] + found[of_rows:]
    for number, (got, want) in enumerate(zip(found, [y, *gradients], strict=True)):
        # sums may be cut into other parts; a wrong address is not near
        allowed = 4 * torch.finfo(dtype).eps * want.abs().max()
        assert (got - want).abs().max() <= allowed, f"{operator} of {tokens} tokens: result {number} differs"


def scatter_of_one_id(package: ModuleType, count: int = 1500) -> None:
    """An id of so many rows, more than a program adds up at once, between two rare ones."""
    torch.manual_seed(0)
    x = torch.randn(count, 8, device=DEVICE)
    ids = torch.full((count,), 1, device=DEVICE)
    ids[7], ids[9] = 0, 2
    got = package.embedding.scatter_rows(x, ids, 4)
    expected = torch.zeros(4, 8, device=DEVICE, dtype=torch.float64).index_add_(0, ids, x.double())
    assert (got - expected).abs().max() <= 1e-6 * count**0.5 * 10  # rounding of partial sums
    assert got[3].eq(0).all()


def scatter_without_neighbours(package: ModuleType) -> None:
    """A NaN row reaches the ids of its own slice of the sorted rows, no others."""
    x, ids = torch.ones(150, 8, device=DEVICE), torch.arange(150, device=DEVICE)
    x[0] = float("nan")
    table = package.embedding.scatter_rows(x, ids, 150)
    assert table[0].isnan().all() and table[64:].eq(1).all()
