"""The language of documents as a rule of a refresh, where py3langid is installed and where it is not."""

import sys

import pytest

from data.cleaning import languages
from data.errors import InputError
from data.refresh import plan_refresh
from tests.corpora import ask, refresh_here, refresh_settings, write_jsonl

TEXTS = {
    "zh": "继续预训练用同一领域的文本再训练一个公开的模型，然后在下游任务上比较。",
    "en": "Continued pretraining trains a public model further on text of one field, and compares it.",
    "ja": "東京都は日本の首都であり、世界最大級の都市である。人口は約千四百万人です。",
}


def settings_of(tmp_path, vocabulary_file, *kept):
    write_jsonl(tmp_path / "raw.jsonl", *TEXTS.values(), "，。！？")
    quality, gates = {"min_han_share": 0, "languages": kept}, {"max_unknown_share": 1}
    return refresh_settings(
        tmp_path / "w", tmp_path / "raw.jsonl", vocabulary_file, quality=quality, gates=gates
    )


def test_other_languages_are_dropped_and_every_document_has_its_language(tmp_path, vocabulary_file):
    pytest.importorskip("py3langid")
    refresh_here(settings_of(tmp_path, vocabulary_file, "zh", "en"))
    found = ask(tmp_path / "w", "select language, dropped_reason from documents order by source_uri")
    assert found == [("zh", None), ("en", None), ("ja", "language"), ("zh", "empty")]


def test_an_unknown_language_and_a_missing_library_are_refused(tmp_path, vocabulary_file, monkeypatch):
    settings = settings_of(tmp_path, vocabulary_file, "chinese")
    languages._identifier.cache_clear()
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "py3langid.langid", None)
        with pytest.raises(InputError, match=r"py3langid: pip install 'jixu\[language\]'"):
            plan_refresh(settings)
    pytest.importorskip("py3langid")
    with pytest.raises(InputError, match="quality.languages: py3langid knows no chinese"):
        plan_refresh(settings)
