"""The demonstration: a whole run on the samples that come with jixu."""

from __future__ import annotations

from dataclasses import replace

from albert.finetuning import TuningOptions
from data.samples import FOLDER
from flows.orchestration.settings import EndToEndOptions, TextOptions, WholePretraining, merge


def demo_options(options: EndToEndOptions) -> EndToEndOptions:
    """The samples, few labels, and sizes under which they take about three minutes on two cores, with the
    options that differ from their defaults.
    """
    demo = EndToEndOptions(
        domain=(str(FOLDER / "tea.jsonl"),),
        task="tea-topics",
        train=str(FOLDER / "tea_topics_train_48.tsv"),
        dev=str(FOLDER / "tea_topics_dev.tsv"),
        test=str(FOLDER / "tea_topics_test.tsv"),
        init="tiny-zh",
        steps=100,
        # a small corpus is read for many epochs: cut four ways, its pairs are harder to memorise
        text=TextOptions(copies=4),
        pretraining=WholePretraining(batch_tokens=2048, learning_rate=2e-4),
        # small models trained for a minute take a larger rate than published ones; a sweep or ten seeds would
        # take minutes
        fine_tuning=TuningOptions(seeds=(0, 1, 2), batch_size=16, learning_rate=8e-4),
    )
    return replace(merge(options, demo), demo=False)
