"""May a base model be used? Three gates, printed as a table; exit code 1 where one fails.

    python -m benchmarks.base_gates CHECKPOINT --task law-categories TRAIN DEV TEST \\
        --task online_shopping TRAIN DEV TEST [--labels 1000] [--seeds 0 1 2] [--max-seq-length 256]

G1: its held-out whole-word loss is below that of a bigram count model on the same masks.
G2: fine-tuned with 1,000 labels it is at least as good as TF-IDF, and 3 points above random weights.
G3: every seed leaves chance.

The labels are drawn from TRAIN with one seed. Rates are swept on dev, for the model and for random weights.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from albert.evaluation import Comparison
from albert.finetuning import FineTuneSettings, fine_tune
from albert.pretraining import read_trainer_state
from benchmarks.support.results import write_result

ABOVE_RANDOM = 0.03


def gate_of_loss(checkpoint: Path) -> tuple[str, bool, str]:
    """G1, from the history that a checkpoint of a run keeps."""
    history = read_trainer_state(checkpoint).history
    bigram = history[0]["held_out_bigram_loss"]
    loss = [record["held_out_mlm_loss"] for record in history if "held_out_mlm_loss" in record][-1]
    return "G1", loss < bigram, f"held-out loss {loss:.3f}, bigram count model {bigram:.3f}"


def gates_of_task(comparison: Comparison) -> list[tuple[str, bool, str]]:
    """G2 and G3, from the scores of a task."""
    model, metric = comparison.models[0], comparison.metric
    score = model.reported[metric].mean
    rows = []
    for other in comparison.baselines:
        is_random = not other.is_fixed
        needed = other.reported[metric].mean + (ABOVE_RANDOM if is_random else 0)
        what = f"{comparison.task}: {score:.4f}, {other.name} {other.reported[metric].mean:.4f}"
        rows.append(("G2", score >= needed, what + (", 3 points above it needed" if is_random else "")))
    left = sum(seed.left_chance for seed in model.seeds)
    rows.append(("G3", left == len(model.seeds), f"{comparison.task}: {left} of {len(model.seeds)} seeds"))
    return rows


def judge(options: argparse.Namespace, task: Sequence[str], folder: Path) -> Comparison:
    """Fine-tune the checkpoint and the baselines with a number of labels."""
    name, train, dev, test = task
    header, *lines = Path(train).read_text(encoding="utf-8").splitlines(keepends=True)
    drawn = folder / f"{name}.tsv"
    drawn.write_text(
        header + "".join(random.Random(0).sample(lines, min(options.labels, len(lines)))), "utf-8"
    )
    return fine_tune(
        FineTuneSettings(
            task=name,
            train=drawn,
            dev=Path(dev),
            test=Path(test),
            models=(options.checkpoint,),
            seeds=tuple(options.seeds),
            running={"max_seq_length": options.max_seq_length},
        )
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.base_gates", description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument(
        "--task", nargs=4, action="append", metavar=("NAME", "TRAIN", "DEV", "TEST"), default=[]
    )
    parser.add_argument("--labels", type=int, default=1000, help="[%(default)s]")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="[%(default)s]")
    parser.add_argument("--max-seq-length", type=int, default=128, help="[%(default)s]")
    options = parser.parse_args(arguments)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        of_tasks = (gates_of_task(judge(options, task, Path(folder))) for task in options.task)
        for found in chain([[gate_of_loss(options.checkpoint)]], of_tasks):
            for gate, passed, what in found:
                print(gate, "passed" if passed else "FAILED", what, sep="  ", flush=True)
            rows += found
    failed = sorted({gate for gate, passed, _ in rows if not passed})
    verdict = f"the base fails {', '.join(failed)}" if failed else "the base passes every gate"
    write_result(
        "base_gates",
        verdict,
        {"gates": rows, "labels": options.labels, "max_seq_length": options.max_seq_length},
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
