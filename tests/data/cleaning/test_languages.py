import sys

import pytest

from data.cleaning import languages
from data.errors import InputError

TEXTS = {
    "zh": "继续预训练用同一领域的文本再训练一个公开的模型，然后在下游任务上比较。",
    "en": "Continued pretraining trains a public model further on text of one field, and compares it.",
    "ja": "東京都は日本の首都であり、世界最大級の都市である。人口は約千四百万人です。",
}


def kept(*languages):
    return {"quality": {"min_han_share": 0, "languages": languages}, "gates": {"max_unknown_share": 1}}


def test_other_languages_are_dropped_and_an_unknown_one_and_a_missing_library_refused(tea, monkeypatch):
    tea.put("raw", *TEXTS.values(), "，。！？")
    languages._identifier.cache_clear()
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "py3langid.langid", None)
        with pytest.raises(InputError, match=r"py3langid: pip install 'jixu\[language\]'"):
            tea.plan(**kept("chinese"))
    pytest.importorskip("py3langid")
    with pytest.raises(InputError, match="quality.languages: py3langid knows no chinese"):
        tea.plan(**kept("chinese"))
    tea.refresh(**kept("zh", "en"))
    found = tea.ask("select language, dropped_reason from documents order by source_uri")
    assert found == [("zh", None), ("en", None), ("ja", "language"), ("zh", "empty")]
