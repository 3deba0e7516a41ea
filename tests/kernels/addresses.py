"""Address checks in Triton's interpreter, which by itself reads and writes anywhere.

`watched` lets a kernel touch only the tensors of its launch, and write no address twice: not in one store,
and not from two programs unless they write the same, since on a GPU either may come last. It can also record
which masks excluded an address outside of the tensors: those masks are needed.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

Site = tuple[str, int]  # file's stem, line


class AddressError(AssertionError):
    """A kernel touched memory outside of its tensors, or wrote an address twice."""


class Watch:
    """The address spans of a launch's tensors, and the sites of needed masks."""

    def __init__(self, folder: Path | None):
        self.folder = folder
        self.spans: list[tuple[int, int]] = []
        self.needed: set[Site] = set()
        self.written: list[tuple[Site, np.ndarray, np.ndarray, int]] = []  # where, addresses, bits, program

    def enter(self, arguments: list[object]) -> None:
        tensors = [x for x in arguments if isinstance(x, torch.Tensor) and x.numel()]
        reach = [sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True)) + 1 for x in tensors]
        self.spans = [
            (x.data_ptr(), x.data_ptr() + n * x.element_size()) for x, n in zip(tensors, reach, strict=True)
        ]

    def check(self, pointers, mask) -> None:
        """Raise AddressError unless all unmasked addresses lie in one tensor."""
        size = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        addresses, used = (np.ravel(x) for x in np.broadcast_arrays(pointers.data, mask.data))
        addresses, used = addresses.astype(np.int64), used.astype(bool)
        if used.any():
            low, high = addresses[used].min(), addresses[used].max() + size
            if not any(start <= low and high <= end for start, end in self.spans):
                raise AddressError(f"{self.site()}: touches memory outside of its tensors")
        if self.folder and not used.all():
            masked = addresses[~used]
            inside = [(start <= masked) & (masked + size <= end) for start, end in self.spans]
            if not np.any(inside, axis=0).all():
                self.needed.add(self.site())

    def note(self, pointers, value, mask, program: int) -> None:
        """Record a store until `leave`. Raise AddressError if it writes an address twice."""
        addresses, numbers, used = np.broadcast_arrays(pointers.data, value.data, mask.data)
        used = used.astype(bool)
        addresses, numbers = addresses[used].astype(np.int64), np.ascontiguousarray(numbers[used])
        if len(np.unique(addresses)) < len(addresses):
            raise AddressError(f"{self.site()}: one store writes an address twice")
        bits = numbers.view(f"u{numbers.itemsize}").astype(np.uint64)
        self.written.append((self.site(), addresses, bits, program))

    def leave(self) -> None:
        """Raise AddressError if two programs of the launch wrote different numbers to an address."""
        written, self.written = self.written, []
        if not written:
            return
        sites, addresses, bits, programs = zip(*written, strict=True)
        which = np.repeat(np.arange(len(written)), [len(a) for a in addresses])
        addresses, bits = np.concatenate(addresses), np.concatenate(bits)
        order = np.argsort(addresses, kind="stable")
        this, following = order[:-1], order[1:]
        programs = np.array(programs)[which]
        race = (addresses[this] == addresses[following]) & (bits[this] != bits[following])
        race &= programs[this] != programs[following]
        if race.any():
            raise AddressError(f"{sites[which[this[race.argmax()]]]}: two programs write an address")

    def site(self) -> Site:
        """Find the line of the kernels' source that the interpreter is at."""
        frame = sys._getframe()
        while frame and (frame.f_code.co_filename == __file__ or "triton" in frame.f_code.co_filename):
            frame = frame.f_back
        return Path(frame.f_code.co_filename).stem, frame.f_lineno


@contextmanager
def watched(folder: Path | None = None) -> Iterator[Watch]:
    """Watch every launch inside; with a folder of kernels, record the sites of needed masks."""
    from triton.runtime.interpreter import GridExecutor, InterpreterBuilder

    watch = Watch(folder)
    to_host = GridExecutor._init_args_hst
    run = GridExecutor.__call__
    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store

    def enter(self, arguments, kwargs):
        arguments, kwargs = to_host(self, arguments, kwargs)
        watch.enter([*arguments, *kwargs.values()])
        return arguments, kwargs

    def checked_load(self, pointers, mask, *rest):
        watch.check(pointers, mask)
        return load(self, pointers, mask, *rest)

    def checked_store(self, pointers, value, mask, *rest):
        watch.check(pointers, mask)
        x, y, z = self.grid_idx
        watch.note(pointers, value, mask, x + self.grid_dim[0] * (y + self.grid_dim[1] * z))
        return store(self, pointers, value, mask, *rest)

    def launch(self, *arguments, **kwargs):
        watch.written = []
        run(self, *arguments, **kwargs)
        watch.leave()

    with (
        patch.object(GridExecutor, "_init_args_hst", enter),
        patch.object(GridExecutor, "__call__", launch),
        patch.object(InterpreterBuilder, "create_masked_load", checked_load),
        patch.object(InterpreterBuilder, "create_masked_store", checked_store),
    ):
        yield watch


def masked_sites(folder: Path) -> Iterator[tuple[Site, int]]:
    """Yield every masked load and store in the kernels of a folder, and its last line."""
    for path in sorted(folder.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            access = isinstance(node, ast.Call) and ast.unparse(node.func) in ("tl.load", "tl.store")
            if access and any(keyword.arg == "mask" for keyword in node.keywords):
                yield (path.stem, node.lineno), node.end_lineno
