"""Training data prepared in a thread of its own."""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor

from albert.batching.mixture import DataState, StepData, TrainingData

_AHEAD = 3  # steps the loader prepares ahead of the trainer


class Loader:
    """Prepares steps of training data in a thread while the trainer computes.

    A thread is enough: it prepares 27 million tokens a second (`benchmarks.batching`). `waited` is how long
    the trainer has waited for data, in seconds.
    """

    def __init__(self, data: TrainingData, state: DataState):
        self.waited = 0.0
        self._data = data
        self._begin(state)

    def _begin(self, state: DataState) -> None:
        self._steps = self._data.steps(state)
        self._thread = ThreadPoolExecutor(1, "loader")
        self._ready = deque(self._thread.submit(next, self._steps) for _ in range(_AHEAD))

    def restart(self, state: DataState) -> None:
        """Discard the prepared steps, and continue from another place in the data."""
        self.close()
        self._begin(state)

    def __next__(self) -> StepData:
        started = time.perf_counter()
        step = self._ready.popleft().result()
        self.waited += time.perf_counter() - started
        self._ready.append(self._thread.submit(next, self._steps))
        return step

    def close(self) -> None:
        """Stop the thread."""
        self._thread.shutdown(cancel_futures=True)
