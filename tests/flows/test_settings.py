"""From the parameters of a flow to the settings of its work."""

from pathlib import Path

import pytest

from data.cleaning import CleaningRules
from data.contamination import GuardRules
from data.deduplication import DuplicateRules
from data.filtering import QualityRules
from data.quality import GateRules
from data.recipe import RefreshSettings
from data.records import InputError
from flows.settings import held_out_share, next_start, refresh_settings


def test_every_parameter_of_a_refresh_becomes_the_setting_of_its_name():
    plain = {
        "corpus": "茶", "tokenizer": "tea", "objective": "roberta", "max_seq_length": 64, "sop": "off",
        "text_format": "bert", "text_field": "body", "mask_rate": 0.2, "max_ngram": 2, "copies": 3, "seed": 4,
        "discover_words": 5, "workers": 6,
    }  # fmt: skip
    settings = refresh_settings(
        workspace="w", source=["a", "b"], dictionary=["terms.txt"], simplify=True, scrub=["url", "phone"],
        min_characters=7, min_han_share=0.8, blocklist="ads.txt", near_duplicates="0.9", guard=["dev.tsv"],
        guard_action="report", max_lost_documents=0.1, max_unknown_share=0.11, **plain,
    )  # fmt: skip
    assert settings == RefreshSettings(
        workspace=Path("w"),
        sources=("a", "b"),
        dictionaries=("terms.txt",),
        cleaning=CleaningRules(simplify=True, scrub=("url", "phone")),
        quality=QualityRules(min_characters=7, min_han_share=0.8, blocklist="ads.txt"),
        duplicates=DuplicateRules(near=0.9),
        guard=GuardRules(files=("dev.tsv",), action="report"),
        gates=GateRules(max_lost_documents=0.1, max_unknown_share=0.11),
        **plain,
    )


def test_about_eight_documents_are_held_out_of_a_small_corpus():
    assert [held_out_share(n) for n in (10, 40, 100, 400, 10**6)] == [0.3, 0.2, 0.08, 0.02, 0.02]


def test_going_on_needs_a_checkpoint(tmp_path):
    settings = RefreshSettings(corpus="茶", sources=("a",), workspace=tmp_path)
    assert next_start(None, settings) is None
    with pytest.raises(InputError, match="no checkpoint of a completed pretraining on 茶"):
        next_start("drift>0.2", settings)
    with pytest.raises(InputError, match="'drifts>0.2' is no condition"):
        next_start("drifts>0.2", settings)
