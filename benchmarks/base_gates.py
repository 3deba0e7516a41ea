"""May a base model be used? Three gates, printed as a table; exit code 1 where one fails.

    python -m benchmarks.base_gates CHECKPOINT --task law-categories TRAIN DEV TEST \\
        --task online_shopping TRAIN DEV TEST [--labels 1000] [--seeds 0 1 2] [--max-seq-length 256]

G1: its held-out whole-word loss is below that of a bigram count model on the same masks.
G2: fine-tuned with 1,000 labels it is at least as good as TF-IDF, and 3 points above random weights.
G3: every seed leaves chance.

The labels are drawn from TRAIN with one seed. Rates are swept on dev, for the model and for random weights.
"""

from __future__ import annotations

import random
import tempfile
from itertools import chain
from pathlib import Path

from albert.evaluation import Comparison
from albert.finetuning import FineTuneSettings, fine_tune
from albert.pretraining import read_trainer_state
from benchmarks.support.results import command, write_result

ABOVE_RANDOM = 0.03
Task = tuple[str, Path, Path, Path]  # name, and files of train, dev and test


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


def main(
    checkpoint: Path, *, task: tuple[Task, ...] = (), labels: int = 1000, seeds: tuple[int, ...] = (0, 1, 2),
    max_seq_length: int = 128,
) -> int:  # fmt: skip
    """Run the benchmark.

    Args:
        task: Name, and files of train, dev and test.
        labels: Examples drawn from train.
    """

    def judge(name: str, train: Path, dev: Path, test: Path) -> Comparison:
        """Fine-tune the checkpoint and the baselines with a number of labels."""
        header, *lines = train.read_text(encoding="utf-8").splitlines(keepends=True)
        chosen = random.Random(0).sample(lines, min(labels, len(lines)))
        drawn = Path(folder) / f"{name}.tsv"
        drawn.write_text(header + "".join(chosen), "utf-8")
        settings = FineTuneSettings(
            task=name, train=drawn, dev=dev, test=test, models=(checkpoint,), seeds=seeds,
            running={"max_seq_length": max_seq_length},
        )  # fmt: skip
        return fine_tune(settings)

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        of_tasks = (gates_of_task(judge(*one)) for one in task)
        for found in chain([[gate_of_loss(checkpoint)]], of_tasks):
            for gate, passed, what in found:
                print(gate, "passed" if passed else "FAILED", what, sep="  ", flush=True)
            rows += found
    failed = sorted({gate for gate, passed, _ in rows if not passed})
    verdict = f"the base fails {', '.join(failed)}" if failed else "the base passes every gate"
    write_result("base_gates", verdict, {"gates": rows, "labels": labels, "max_seq_length": max_seq_length})
    return 1 if failed else 0


if __name__ == "__main__":
    command(main)
