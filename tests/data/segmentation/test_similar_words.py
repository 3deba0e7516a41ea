import shutil

import numpy as np
import pytest

from data.catalog import open_workspace
from data.instances import read_info, word_keys
from data.segmentation import train_similar_words
from data.tokenization import train_tokenizer
from tests.corpora import NEW
from tests.data.helpers import SEGMENTER

# two pairs of words are used alike
TEXT = "".join(
    f"{who}在{where}慢慢喝{what}。\n"
    for who in ("老人", "学生", "客人", "朋友")
    for where in ("早上", "晚上", "中午")
    for what in ("绿茶", "红茶", "花茶", "XO", "xo")
    for _ in range(8)
)


def test_similar_words_have_the_same_number_of_tokens_and_are_deterministic(tokenizer):
    first, again = (train_similar_words(lambda: [TEXT], SEGMENTER, tokenizer, seed=0) for _ in range(2))
    assert len(first.keys) > 5 and (np.diff(first.keys.astype(float)) > 0).all()
    assert first.keys.tolist() == again.keys.tolist()
    assert first.input_ids.tolist() == again.input_ids.tolist()
    for word in ("绿茶", "早上", "老人", "xo"):
        ids = tokenizer.encode(word)[0]
        at = np.searchsorted(first.keys, word_keys(ids, np.array([0]), np.array([len(ids)]))[0])
        stand_in = first.input_ids[first.offsets[at] : first.offsets[at + 1]]
        assert len(stand_in) == len(ids) and stand_in.tolist() != ids.tolist()


def test_similar_words_of_sentencepiece_are_spelt_as_inside_a_sentence():
    tokenizer = train_tokenizer(TEXT.split("\n"), kind="sentencepiece", vocab_size=60)
    similar = train_similar_words(lambda: [TEXT], SEGMENTER, tokenizer, seed=0)
    pieces = [tokenizer.vocabulary[number] for number in similar.input_ids]
    assert len(similar.keys) > 5 and not any(piece.startswith("\u2581") for piece in pieces)


@pytest.mark.parametrize("objective", ["roberta", "macbert", "spanbert"])
def test_a_refresh_makes_shards_of_every_objective(tea, samples, objective):
    shutil.copy(samples / "tea.jsonl", tea.raw)
    tea, is_macbert = tea.changed(objective=objective), objective == "macbert"
    assert tea.refresh().sop == is_macbert
    (path,) = tea.place.shards("tea").glob("[0-9a-f]*.parquet")
    info = read_info(path)
    assert info.rule.objective == objective
    assert (info.vocabulary.similar is not None) == is_macbert
    with open_workspace(tea.root) as statistics:
        kinds = {kind for kind, *_ in statistics.masks("tea").fetchall()}
    assert ("[MASK]" in kinds) != is_macbert
    count = "select max(n) from (select count(distinct doc_id) as n from instances group by instance_id)"
    assert tea.ask(count) == [(1,)]
    # a document more: the same similar words
    tea.put("tea-2", f"{NEW}先看口沿，再看杯底。")
    more = tea.refresh()
    assert more.version == 2 and more.kept_shards == 1
    assert len(list(tea.place.shards("tea").glob("similar-*"))) == is_macbert
