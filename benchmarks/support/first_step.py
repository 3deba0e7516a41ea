"""Do what a run does up to its first step, for `benchmarks.train_step` to time.

    python -m benchmarks.support.first_step SHARD

Imports the training loop, opens the shard, makes the model and takes one step.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from albert.batching import InstanceStream
from albert.model import AlbertConfig, PretrainingModel
from benchmarks.support.steps import training_step

BATCH_TOKENS = 4096


def main(shard: Path) -> None:
    stream = InstanceStream([shard], batch_tokens=BATCH_TOKENS)
    step = training_step(PretrainingModel(AlbertConfig.preset("tiny")))
    began = time.perf_counter()
    batch = next(stream.pack([next(stream.plan())]))
    loaded = time.perf_counter()
    step(batch)
    seconds = {"first_batch": loaded - began, "first_step": time.perf_counter() - loaded}
    print(json.dumps({**seconds, "processor": time.process_time()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
