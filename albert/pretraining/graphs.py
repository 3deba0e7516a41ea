"""CUDA graphs of a training step: the host launches two graphs in place of hundreds of kernels.

A graph repeats its kernels on the same addresses. So batches are padded to a fixed shape, one for each bucket
of the longest sequence, and copied into one buffer, and gradients stay where they are. The optimiser's step
is a graph of its own. A graph is checked when it is captured: replayed on its first batch, it must give the
figures and gradients of the eager passes, or the weights of the eager step. If it does not, or cannot be
captured, the run goes on without graphs, and a notice says so.

In another shape, or in a capture, a product may be another kernel that rounds differently. So that a resumed
run is exact, it gives the same batches the same shapes, and all padded batches' gradients are a graph's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import torch
from torch import Tensor, nn

from albert.batching import Shape, pad, unflatten, weights_of
from albert.model import Batch
from kernels.tuning import LENGTHS

# add the gradients of a batch, whose losses have these weights, and its figures to a row
Passes = Callable[[Batch, Tensor, Tensor], None]
WARM_UP = 3  # batches of a bucket, which show how many sequences and masked tokens there are
HEADROOM = 1.15  # on the largest numbers of both so far
TOLERANCE = 1e-3  # of a graph's gradients and figures, relative to the norm of the eager ones


class StepGraphs:
    """The graphs of a model's passes; on a CPU these run one by one, on the same padded batches."""

    def __init__(
        self, passes: Passes, parameters: Sequence[nn.Parameter], device: torch.device, *, tokens: int,
        longest: int, notify: Callable[[str], None], seen: Sequence[Shape] = (),
    ):  # fmt: skip
        """`tokens` and `longest` are the most of any batch and sequence; a resumed run has `seen` batches."""
        self._passes, self._parameters, self._device, self._notify = passes, parameters, device, notify
        self._tokens, self._longest = tokens, longest
        self.seen = list(seen)  # shapes of each bucket's first batches, and of those too large for its graph
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        # the passes of a flat batch, after a seed, to its figures; None until there is a batch of the shape
        self._graphs: dict[Shape, Callable[[Tensor, Callable[[], None]], Tensor] | None] = {}
        self._norm = torch.zeros((), device=device)  # of the gradients, as the update's graph writes it
        # by whether a step has order labels, which decides what is updated
        self._updates: dict[bool, Callable[[], object]] = {}
        self._warm_ups = {False: 0, True: 0}
        self.is_off = False

    def fit(self, batch: Batch) -> Batch:
        """The batch, padded to the shape of a graph if there is one for it; the loader's thread asks."""
        own = Shape.of(batch)
        if self.is_off or own.tokens > self._tokens:
            return batch
        shape = self._shape(own)
        padded = shape and pad(batch, shape)
        if padded is None:
            self.seen.append(own)
            # outside the warm-up it outgrew its bucket's graph, and is the first of a larger one
            shape = shape and self._shape(own)
            padded = shape and pad(batch, shape)
        if shape is None or padded is None:
            return batch
        self._graphs.setdefault(shape, None)
        return padded

    def run(self, buffer: Tensor, shape: Shape, row: Tensor, seed: Callable[[], None]) -> bool:
        """Run both passes of a flat batch as a graph; without one for it do nothing and return False.

        `seed` is called before anything random is drawn.
        """
        if self.is_off or shape not in self._graphs:
            return False
        passes = self._graphs[shape]
        if passes is None:
            row += self._capture_passes(shape, buffer.clone(), torch.zeros_like(row), seed)
        else:
            row += passes(buffer, seed)
        return True

    def update(
        self, is_ordered: bool, take: Callable[[], Tensor], state: Callable[[], list[Tensor]]
    ) -> Tensor:
        """Take the optimiser's step as a graph, in the warm-up by single launches as `take` does.

        Returns the norm of the gradients, as `take` does. `state` lists all that it changes.
        """
        if self.is_off:
            return take()
        if is_ordered not in self._updates:
            self._warm_ups[is_ordered] += 1
            if self._warm_ups[is_ordered] <= WARM_UP:
                return take()
            norms: list[Tensor] = []
            replay = self._capture_checked(
                lambda: self._norm.copy_(take()), lambda: norms.append(take()), state(), _unequal
            )
            if replay is not None:
                self._updates[is_ordered] = replay
            return norms[0]
        self._updates[is_ordered]()
        return self._norm.clone()

    def _shape(self, own: Shape) -> Shape | None:
        """The shape of the graph of a batch's bucket; None during the warm-up."""
        longest, is_ordered = self._bucket(own)
        seen = [shape for shape in self.seen if self._bucket(shape) == (longest, is_ordered)]
        if len(seen) < WARM_UP:
            return None
        fillers = 1 + max(self._tokens - shape.tokens for shape in seen) // longest
        sequences = int(max(shape.sequences for shape in seen) * HEADROOM) + fillers
        masked = int(max(shape.masked for shape in seen) * HEADROOM) + 1
        return Shape(self._tokens, sequences, masked, longest, is_ordered)

    def _bucket(self, shape: Shape) -> tuple[int, bool]:
        longest = next((length for length in LENGTHS if shape.longest <= length), self._longest)
        return min(longest, self._longest), shape.is_ordered  # a filler's positions are the model's too

    def _capture_passes(
        self, shape: Shape, static: Tensor, figures: Tensor, seed: Callable[[], None]
    ) -> Tensor:
        """Capture the passes of a shape on its first batch, whose gradients they add; returns its figures."""

        def passes() -> None:
            figures.zero_()
            self._passes(unflatten(static, shape), weights_of(static), figures)

        for p in self._parameters:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        eager = partial(_on_side_stream, passes, self._device)
        replay = self._capture_checked(passes, eager, [*gradients, figures], _difference, seed)
        if replay is not None:

            def replayed(buffer: Tensor, seed: Callable[[], None]) -> Tensor:
                static.copy_(buffer)
                seed()
                replay()
                return figures

            self._graphs[shape] = replayed
        return figures

    def _capture_checked(
        self, act: Callable[[], object], eager: Callable[[], object], state: list[Tensor],
        problem: Callable[[list[Tensor], list[Tensor]], str], seed: Callable[[], object] = lambda: None,
    ) -> Callable[[], object] | None:  # fmt: skip
        """Run `eager`, then capture `act`, which does the same, and compare its replay from the same state.

        Leaves the replay's state, and returns it, if there is no problem; else the eager one's, and None. So
        too if numbers are not finite, as those of fp16 that overflow: they cannot be compared.
        """
        other: list[Tensor] = []
        try:
            other = [x.clone() for x in state]  # before `eager`; after it from the exchange on
        except torch.OutOfMemoryError as error:
            self._give_up(_first_line(error))
        seed()
        eager()
        if self.is_off or not all(bool(x.isfinite().all()) for x in state):
            return None
        _exchange(state, other)
        try:
            replay = self._capture(act)
            seed()
            replay()
            wrong = problem(state, other)
        except RuntimeError as error:  # torch's and CUDA's, which cannot capture everything
            wrong = _first_line(error)
        if not wrong:
            return replay
        self._give_up(wrong)
        _exchange(state, other)
        return None

    def _give_up(self, why: str) -> None:
        self.is_off = True
        # their pool holds the memory of a step, which single launches need elsewhere
        self._graphs.clear()
        self._updates.clear()
        self._notify(f"CUDA graphs are off, which costs speed alone: {why}")

    def _capture(self, passes: Callable[[], object]) -> Callable[[], object]:
        """Capture passes or an update in a graph and return its replay; on a CPU return them.

        Graphs share the memory of a pool: none holds anything in it from one replay to the next.
        """
        if self._device.type != "cuda":
            return passes
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self._device)
        # after a failed capture torch stays on its stream, so go back here; other threads, such as the
        # loader's, may use CUDA meanwhile
        captured = torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local")
        try:
            with torch.cuda.stream(current), captured:
                passes()
        except RuntimeError:
            self._forget_capture()
            raise
        return graph.replay

    def _forget_capture(self) -> None:
        """End for torch a capture that CUDA refused, as it then skips its own end.

        Its generator would draw no more, and its allocator keep the memory that two streams used.
        """
        index = torch.cuda.current_device()
        fresh = torch.Generator(self._device).graphsafe_get_state()
        torch.cuda.default_generators[index].graphsafe_set_state(fresh)
        with suppress(RuntimeError, AttributeError):  # it has ended, or torch has another name for it
            torch._C._cuda_endAllocateToPool(index, self._pool or (0, 0))


@torch.no_grad()
def _exchange(state: Sequence[Tensor], other: Sequence[Tensor]) -> None:
    """Exchange what two lists of tensors hold, which takes less memory than a third list."""
    for x, y in zip(state, other, strict=True):
        value = x.clone()
        x.copy_(y)
        y.copy_(value)


def _first_line(error: RuntimeError) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _on_side_stream(passes: Callable[[], None], device: torch.device) -> None:
    """Run on another stream, as a capture does; this compiles kernels and allocates buffers."""
    if device.type != "cuda":
        passes()
        return
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        passes()
    torch.cuda.current_stream(device).wait_stream(stream)


def _unequal(got: Sequence[Tensor], expected: Sequence[Tensor]) -> str:
    return "" if all(map(torch.equal, got, expected)) else "the weights after a step differ"


def _difference(got: Sequence[Tensor], expected: Sequence[Tensor]) -> str:
    """Describe the larger of the relative differences, by norm, of the gradients and of the figures."""

    def share(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
        squares = [(x.double() - y.double()).square().sum() for x, y in zip(a, b, strict=True)]
        of = torch.stack([y.double().square().sum() for y in b]).sum()
        return float((torch.stack(squares).sum() / of.clamp_min(1e-30)).sqrt())

    larger = max(share(got[:-1], expected[:-1]), share(got[-1:], expected[-1:]))
    return "" if larger <= TOLERANCE else f"their gradients differ by a share of {larger:.1e}"
