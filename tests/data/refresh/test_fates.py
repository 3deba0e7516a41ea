import random
from contextlib import nullcontext
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from data.errors import InputError
from data.refresh.read import read_sources
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


def text(seed):
    return "".join(random.Random(seed).choices("茶山水火土木金石春夏秋冬东西南北", k=200)) + "。"


def test_near_copies_are_decided_once_and_again_when_their_original_is_gone(tea):
    first, second = map(text, "ab")
    texts = {"a": [first], "b": [first[:-2], second], "c": [second + "茶"]}
    for names, kept in (("ab", [first, second]), ("abc", [first, second]), ("bc", [first[:-2], second])):
        for path in tea.raw.iterdir():
            path.unlink()
        for name in names:
            tea.put(name, *texts[name])
        tea.refresh()
        assert tea.texts() == sorted(kept)


@pytest.mark.parametrize("number, kept", [(0, 0), (2, 2)], ids=["at its beginning", "at its end"])
def test_a_source_that_changes_before_it_is_read_again_gives_no_wrong_text(tea, monkeypatch, number, kept):
    """A copy's source is read again as its original is gone. One that has grown is as good as before."""
    monkeypatch.setattr("data.refresh.plan.SMALL", 0)  # else both are read together
    first, second, new = map(text, "abc")
    copies = ["茶" + first, second]
    tea.put("a", first)
    tea.put("b", *copies)
    tea.refresh()
    (tea.raw / "a.jsonl").unlink()

    def read(*source):
        tea.put("b", *copies[:number], new, *copies[number:])
        read_sources(*source)

    monkeypatch.setattr("data.refresh.stages.read_sources", read)
    with (
        nullcontext() if kept else pytest.raises(InputError, match="b.jsonl changed meanwhile: refresh again")
    ):
        tea.refresh()
    assert tea.texts() == sorted(copies if kept else [first, second])


def test_small_sources_are_read_again_together_as_an_original_is_gone(tea, monkeypatch):
    first, second, other = map(text, "abc")
    tea.put("a", first, other)
    tea.put("b", "茶" + first)
    tea.put("c", second)
    monkeypatch.setattr("data.refresh.plan.SMALL", (tea.raw / "b.jsonl").stat().st_size)  # a is larger
    tea.refresh()
    assert tea.texts() == sorted([first, second, other])
    (tea.raw / "a.jsonl").unlink()
    tea.refresh()
    assert tea.texts() == sorted(["茶" + first, second])


def test_a_source_that_was_written_while_it_was_read_is_read_again(tea, monkeypatch):
    """Also one that holds in the end what it held at first, as a copy over itself does."""
    tea.put("a", text("a"))
    tea.put("b", text("b"))

    def read(uris, *rest):
        whole = {Path(uri): Path(uri).read_bytes() for uri in uris}
        for path, content in whole.items():
            path.write_bytes(content if path.name == "a.jsonl" else b"")
        read_sources(uris, *rest)
        for path, content in whole.items():
            path.write_bytes(content)

    with monkeypatch.context() as patch:
        patch.setattr("data.refresh.stages.read_sources", read)
        assert tea.refresh().documents == 1
    assert tea.refresh().documents == 2 and not tea.refresh().is_new
