"""The side of a document under edits, other cleaning and other scripts."""

import numpy as np

from data.cleaning import CleaningRules, clean_text, sides_of
from tests.conftest import sample_texts


def test_width_case_punctuation_and_traditional_characters_do_not_move_a_document():
    text = "图书馆开设了新的阅览室，读者可凭 WiFi 证件123借阅，沿着画廊走。"
    others = [
        "圖書館開設了新的閱覽室，讀者可憑 WiFi 證件123借閱，沿著畫廊走。",
        "图书馆开设了新的阅览室,读者可凭ＷＩＦＩ证件１２３借阅！沿着画廊走",
        "图书馆开设了新的阅览室\n读者可凭wifi证件 123借阅\n\n沿着画廊走",
    ]
    assert len(set(sides_of([text, *others]).tolist())) == 1
    tags = f"<p>{text}</p>&nbsp;"
    cleaned = [clean_text(tags, CleaningRules(simplify=on, fold_width=not on)) for on in (False, True)]
    assert set(sides_of(cleaned).tolist()) == set(sides_of([text]).tolist())


def test_texts_keep_a_side_as_often_as_they_are_alike_and_sides_are_even_whatever_their_length():
    rng = np.random.default_rng(0)
    texts = [text[:205] for text in sample_texts() if len(text) > 205]
    sides = sides_of(texts)
    kept = alike = 0.0
    for _ in range(10):
        edited = []
        for text in texts:
            at = int(rng.integers(len(text)))
            edited.append(text[:at] + "龘" + text[at + 1 :])
            before, after = ({t[i : i + 5] for i in range(len(t) - 4)} for t in (text, edited[-1]))
            alike += len(before & after) / len(before | after)
        kept += (sides_of(edited) == sides).sum()
    total = 10 * len(texts)
    assert kept / total > alike / total - 3 * (0.1 / total) ** 0.5
    text = "".join(sample_texts())
    for length in (3, 20, 300):
        pieces = list(dict.fromkeys(text[at : at + length] for at in range(0, len(text) - length, 7)))[:2000]
        below = (sides_of(pieces) < 0.1 * 2**32).mean()
        assert abs(below - 0.1) < 0.035, length
