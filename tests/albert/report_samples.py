"""Facts for reports, small and whole, for the tests of the page, of metrics.json and of comparing."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from albert.evaluation import LayerChange, Probe, judge, mean_statistics, pack, records, summarize
from albert.pretraining import Audits, Event, PretrainResult
from albert.reports import CorpusFacts, FunnelRow, Report, SampleInstance, build_report
from data.instances import LengthAudit, MaskAudit, NgramAudit

EXAMPLES = 200
CORPUS = CorpusFacts(
    corpus="茶",
    version=2,
    totals={"documents": 35, "tokens": 12345},
    sop=True,
    unknown_share=0.0123,
    funnel=(
        FunnelRow("filter", "documents", 40, 35, "too_short", 5),
        FunnelRow("filter", "characters", 4000, 3990, "too_short", 10),
    ),
    lengths=((16, 3), (32, 9), (128, 50)),
    word_lengths=((1, 100), (2, 300), (6, 2)),
    top_words=(("茶叶", 90), ("香气", 60)),
    samples=(
        SampleInstance("[CLS]<茶>[SEP]", "[MASK]", 1, "ab"),
        SampleInstance("[CLS]水[SEP]", "[MASK]", None, "cd"),  # of a corpus without order
    ),
    recipe_hash="0123456789abcdef",
    shards_sha256="ef" * 32,
)
AUDITS = Audits(
    rule_mask_rate=0.15,
    masks=MaskAudit(0.1501, {"1": 0.149, "2": 0.152}, 0.998, 0.83),
    ngrams=NgramAudit({"1": 600, "2": 300, "3": 200}, {"1": 6 / 11, "2": 3 / 11, "3": 2 / 11}),
    by_length=(LengthAudit(1, 64, 40, 52, 8, 0.148),),
    loader_wait_share=0.004,
    peak_memory_bytes=1_320_000_000,
)
EVENTS = (Event(20, "skipped_batch", "the gradient was not finite"),)


def history(mixed: str | None = None) -> list[dict[str, float]]:
    """Records of 40 steps; with the held-out scores of a second corpus, whose accuracy falls by 2 points."""

    def held_out(step: int) -> dict[str, float]:
        scores = {"held_out_mlm_loss": 8 - step / 12, "held_out_mlm_accuracy": 0.01 + step / 110}
        if mixed:
            scores |= {f"held_out_mlm_loss@{mixed}": 6 + step / 80}
            scores |= {f"held_out_mlm_accuracy@{mixed}": 0.3 - step / 2000}
        return {"step": step, **scores}

    records = [{**held_out(0), **Probe(9.1, 0.02, 9.96, 812, 300).to_record()}]
    for step in range(10, 50, 10):
        training = {"mlm_loss": 8 - step / 10, "mlm_accuracy": step / 100, "tokens_per_second": 9e3}
        records.append({"step": step, **training, "gradient_norm": 1.5, "learning_rate": 1e-4})
        records.append(held_out(step))
    return records


def pretraining(folder: Path, mixed: str | None = None) -> PretrainResult:
    """The result of a run that ended."""
    return PretrainResult(
        run_folder=folder / "models/r",
        checkpoint=folder / "models/r/checkpoint-40",
        status="completed",
        steps=40,
        tokens=160_000,
        passes=4.1,
        tokens_per_second=9123.4,
        resumed_from=0,
        history=history(mixed),
        notices=("the checkpoint has no MLM head: <it> starts from random weights",),
        learning_rate=2e-4,
        parameters=4_142_594,
        layers=tuple(LayerChange(n, 10.0 / n, 1 - 0.5 / n) for n in range(1, 5)),
    )


def contamination(found: int) -> records.Contamination:
    """Of a corpus that holds `found` of a hundred test texts."""
    place = {"corpus": "茶", "version": 2, "split": "test", "texts": 100}
    return records.Contamination(**place, found=found, documents=found, examples=tuple(range(found)))


def seed_result(seed: int, dev: Mapping[str, float], **changes: object) -> records.SeedResult:
    """A fine-tuning that left chance level at once."""
    figures: dict[str, object] = {"seed": seed, "learning_rate": 1e-4, "best_epoch": 1, "dev": dev}
    return records.SeedResult(**{**figures, "seconds": 1.0, "examples_per_second": 1.0, **changes})


def model(name: str, accuracies: list[float], **changes: object) -> records.ModelResult:
    """A model with a test accuracy for each seed and every other figure there is.

    A seed is right on the first of EXAMPLES examples, so that a better one is right wherever another is.
    """
    seeds = tuple(
        seed_result(
            seed,
            scores := {"accuracy": accuracy, "macro_f1": accuracy - 0.01},
            test=scores,
            best_epoch=2,
            restarts=seed % 2,
            curve=(records.EpochRecord(1, 0.6, accuracy - 0.05), records.EpochRecord(2, 0.4, accuracy)),
        )
        for seed, accuracy in enumerate(accuracies)
    )
    examples = np.arange(EXAMPLES)
    outcomes = np.stack([mean_statistics(examples < round(EXAMPLES * accuracy)) for accuracy in accuracies])
    summaries = dict.fromkeys(("accuracy", "macro_f1"), summarize("accuracy", outcomes))
    first = accuracies[0]
    bins = (records.CalibrationBin(0.5, 0.6, 9, 0.6, 0.5), records.CalibrationBin(0.9, 1, 51, 0.97, 0.9))
    figures: dict[str, object] = {
        "name": name,
        "checkpoints": (f"models/{name}/checkpoint-40",),
        "checksums": ("ab" * 32,),
        "seeds": seeds,
        "outcomes": pack(outcomes),
        "sweep": (records.SweepPoint(2e-5, 0.6, False), records.SweepPoint(1e-4, first, True)),
        "dev": summaries,
        "test": summaries,
        "classes": tuple(
            records.ClassScore(label, score, score, score, support)
            for label, score, support in (("否", first, 9), ("是", 0.5, 11))
        ),
        "confusion": ((20, 7), (5, 28)),
        "calibration": records.Calibration(0.03, bins),
        "slices": (
            records.SliceScore("length", 1, 16, 12, summaries["accuracy"]),
            records.SliceScore("length", 17, None, 8, summaries["accuracy"]),
        ),
        "cost": records.Cost(
            parameters=4_142_594,
            flops=1.2e9,
            sequence_length=128,
            checkpoint_bytes=16_600_000,
            latency=(records.Latency(1, 3.2, 4.1, 50), records.Latency(32, 88.0, 95.5, 20)),
            device="CPU, 2 threads",
        ),
        "intrinsic": records.Intrinsic(domain_mlm_accuracy=0.5, cloze_accuracy=0.3),
        "pretraining": tuple(history("general")),
    }  # fmt: skip
    return records.ModelResult(**{**figures, **changes})


def knowing(*predicted: int) -> records.Intrinsic:
    """What predicts so many of the 500 masked tokens of each general document knows."""
    outcomes = pack(np.array([[(right, 500.0, document) for document, right in enumerate(predicted)]]))
    accuracy = sum(predicted) / (500 * len(predicted))
    return records.Intrinsic(
        domain_mlm_accuracy=0.5, general_mlm_accuracy=accuracy, general_outcomes=outcomes, cloze_accuracy=0.3
    )


BASE = model("base", [0.70, 0.71, 0.72], intrinsic=knowing(200, 200, 200))
BETTER = model("继续", [0.80, 0.81, 0.815], intrinsic=knowing(199, 199, 199))


def comparison(
    first: records.ModelResult, *others: records.ModelResult, task: str = "茶事", **changes: object
) -> records.Comparison:
    """Models on a task; the last is the primary one."""
    changed = records.ChangedExample(3, "<茶>好喝吗 ‖ 茶香不香", "是", "否", "是", 0, 3)
    facts: dict[str, object] = {
        "task": task,
        "kind": "pair",
        "metric": "accuracy",
        "metrics": ("accuracy", "macro_f1"),
        "split": "test",
        "labels": ("否", "是"),
        "examples": {"train": 100, "dev": 20, "test": EXAMPLES},
        "skipped": ("t.tsv, row 3: empty",),
        "chance": 0.5,
        "seeds": tuple(range(len(first.seeds))),
        "models": (first, *others),
        "primary": others[-1].name if others else None,
        "changes": tuple(
            records.Changes(model=one.name, baseline=first.name, fixed=2, broken=1, fixed_examples=(changed,))
            for one in others
        ),
    }
    return judge(records.Comparison(**{**facts, **changes}), stepwise=len(others) > 1)


def report_of(*evaluations: records.Comparison, **parts: object) -> Report:
    return build_report(title="t", command="c", evaluations=evaluations, **parts)
