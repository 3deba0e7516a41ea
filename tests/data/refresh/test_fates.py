"""Which documents are used."""

import random

import pyarrow.parquet as pq
import pytest

from data.refresh import divide, plan_refresh, read_batch
from tests.corpora import refresh_here, refresh_settings, texts_of, write_jsonl

FOOTER = "本网站所有内容均为转载，版权归原作者所有，如有侵权请联系删除。"


@pytest.mark.parametrize("carriers, reason", [(49, None), (50, "boilerplate")])
def test_a_sentence_of_fifty_documents_drops_those_it_fills(tmp_path, vocabulary_file, carriers, reason):
    """By the default rules. Five long documents end in the same sentence and stay."""
    rng = random.Random(0)
    lengths = [200] * 5 + [8] * (carriers - 5)
    texts = ["".join(chr(rng.randrange(0x4E00, 0x9F00)) for _ in range(length)) for length in lengths]
    write_jsonl(tmp_path / "raw.jsonl", *(f"{text}。{FOOTER}" for text in texts))
    planned = plan_refresh(refresh_settings(tmp_path / "w", tmp_path / "raw.jsonl", vocabulary_file))
    division = divide(planned, read_batch(planned.files, planned))
    listed = pq.read_table(division.listed_path, columns=["position", "reason"]).sort_by("position")
    assert listed["reason"].to_pylist() == [None] * 5 + [reason] * (carriers - 5)


def test_near_copies_are_decided_once_and_again_when_their_original_is_gone(tmp_path, vocabulary_file):
    rng = random.Random(1)
    first, second = ("".join(rng.choices("茶山水火土木金石春夏秋冬东西南北", k=200)) + "。" for _ in "ab")
    texts = {"a": [first], "b": [first[:-2], second], "c": [second + "茶"]}

    def kept(names):
        for path in raw.iterdir():
            path.unlink()
        for name in names:
            write_jsonl(raw / f"{name}.jsonl", *texts[name])
        settings = refresh_settings(tmp_path / "w", raw, vocabulary_file)
        refresh_here(settings)
        return texts_of(settings.workspace)

    raw = tmp_path / "raw"
    raw.mkdir()
    assert kept("ab") == sorted([first, second])
    assert kept("abc") == sorted([first, second])
    assert kept("bc") == sorted([first[:-2], second])
