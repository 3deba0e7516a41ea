"""Which documents are used."""

import random

import pyarrow.parquet as pq
import pytest

from tests.data.helpers import random_text

FOOTER = "本网站所有内容均为转载，版权归原作者所有，如有侵权请联系删除。"


@pytest.mark.parametrize("carriers, reason", [(49, None), (50, "boilerplate")])
def test_a_sentence_of_fifty_documents_drops_those_it_fills(tea, carriers, reason):
    """By the default rules. Five long documents end in the same sentence and stay."""
    lengths = [200] * 5 + [8] * (carriers - 5)
    tea.put("raw", *(f"{random_text(length, seed)}。{FOOTER}" for seed, length in enumerate(lengths)))
    *_, division = tea.divided()
    listed = pq.read_table(division.listed_path, columns=["position", "reason"]).sort_by("position")
    assert listed["reason"].to_pylist() == [None] * 5 + [reason] * (carriers - 5)


def test_near_copies_are_decided_once_and_again_when_their_original_is_gone(tea):
    rng = random.Random(1)
    first, second = ("".join(rng.choices("茶山水火土木金石春夏秋冬东西南北", k=200)) + "。" for _ in "ab")
    texts = {"a": [first], "b": [first[:-2], second], "c": [second + "茶"]}
    for names, kept in (("ab", [first, second]), ("abc", [first, second]), ("bc", [first[:-2], second])):
        for path in tea.raw.iterdir():
            path.unlink()
        for name in names:
            tea.put(name, *texts[name])
        tea.refresh()
        assert tea.texts() == sorted(kept)
