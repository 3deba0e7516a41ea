"""Training data prepared in a thread of its own, which holds up the training less than a process would
(docs/architecture.md).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from albert.batching.mixture import DataState, StepData, TrainingData

_AHEAD = 16  # steps the loader prepares ahead of the trainer, as it reads row groups now and then
Prepared = TypeVar("Prepared")


class Loader(Generic[Prepared]):
    """Prepares steps of training data in a thread while the trainer computes.

    `prepare` is called there too. `waited` is how long the trainer has waited for data, in seconds.
    """

    def __init__(self, data: TrainingData, state: DataState, prepare: Callable[[StepData], Prepared]):
        self.waited = 0.0
        self._data, self._prepare = data, prepare
        self.begin(state)

    def begin(self, state: DataState) -> None:
        """Prepare the steps from a place in the data on."""
        self._steps = map(self._prepare, self._data.steps(state))
        self._thread = ThreadPoolExecutor(1, "loader")
        self._ready = deque(self._thread.submit(next, self._steps) for _ in range(_AHEAD))

    def __next__(self) -> Prepared:
        started = time.perf_counter()
        step = self._ready.popleft().result()
        self.waited += time.perf_counter() - started
        self._ready.append(self._thread.submit(next, self._steps))
        return step

    def close(self) -> None:
        """End the thread, and discard what it prepared."""
        self._thread.shutdown(cancel_futures=True)
