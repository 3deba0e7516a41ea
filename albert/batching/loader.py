"""Training data prepared in a thread of its own."""

from __future__ import annotations

import queue
import threading
import time

from albert.batching.mixture import DataState, StepData, TrainingData

_AHEAD = 2  # steps the loader keeps ready


class Loader:
    """Prepares steps of training data in a thread while the trainer computes.

    `waited` is how long the trainer has waited for data, in seconds.
    """

    def __init__(self, data: TrainingData, state: DataState):
        self.waited = 0.0
        self._data = data
        self._begin(state)

    def _begin(self, state: DataState) -> None:
        self._ready: queue.Queue[StepData | BaseException] = queue.Queue(_AHEAD)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._fill, args=(state,), daemon=True)
        self._thread.start()

    def go_to(self, state: DataState) -> None:
        """Discard what is ready, and continue from another place."""
        self.close()
        self._begin(state)

    def _fill(self, state: DataState) -> None:
        try:
            for step in self._data.steps(state):
                if not self._put(step):
                    return
        except BaseException as error:  # raised by `__next__`
            self._put(error)

    def _put(self, item: StepData | BaseException) -> bool:
        while not self._stop.is_set():
            try:
                self._ready.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def __next__(self) -> StepData:
        started = time.perf_counter()
        item = self._ready.get()
        self.waited += time.perf_counter() - started
        if isinstance(item, BaseException):
            raise item
        return item

    def close(self) -> None:
        """Stop the thread."""
        self._stop.set()
        self._thread.join()
