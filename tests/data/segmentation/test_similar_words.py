import shutil
from itertools import product

import numpy as np
import pytest
from scipy import sparse

from data.catalog import open_workspace
from data.instances import read_info, word_keys
from data.segmentation import find_similar_words, word_vectors
from data.tokenization import train_tokenizer
from tests.corpora import NEW
from tests.data.helpers import SEGMENTER

# to the tokenizer XO and xo are the same
ALIKE = (("老人", "学生", "客人", "朋友"), ("早上", "晚上", "中午"), ("绿茶", "红茶", "花茶", "XO", "xo"))
TEXT = "".join(f"{who}在{where}慢慢喝{what}。\n" for who, where, what in product(*ALIKE) for _ in range(8))


def test_similar_words_are_used_alike_and_have_the_same_number_of_tokens(tokenizer):
    first, again = (find_similar_words([TEXT, ""], SEGMENTER, tokenizer, seed=0) for _ in range(2))
    assert (np.diff(first.keys.astype(float)) > 0).all() and first.keys.tolist() == again.keys.tolist()
    assert first.input_ids.tolist() == again.input_ids.tolist()
    for words in ALIKE:
        spelt = [tokenizer.encode(word)[0] for word in words]
        for ids in spelt:
            at = np.searchsorted(first.keys, word_keys(ids, np.array([0]), np.array([len(ids)]))[0])
            stand_in = first.input_ids[first.offsets[at] : first.offsets[at + 1]].tolist()
            assert stand_in != ids.tolist() and stand_in in [other.tolist() for other in spelt]


def test_words_that_are_rare_or_lonely_have_neither_similar_ones_nor_a_vector(tokenizer):
    for texts in ([], ["绿茶红茶。\n"], ["绿茶\n" * 9], ["绿茶\n红茶\n" * 9]):
        assert not len(find_similar_words(texts, SEGMENTER, tokenizer, seed=0).keys)
    together = sparse.coo_array(([1.0, 1.0], ([0, 1], [1, 0])), shape=(1200, 1200)).tocsr()
    assert not word_vectors(together, 100, seed=0)[2:].any()
    assert not word_vectors(0 * together, 100, seed=0).any()


def test_similar_words_of_sentencepiece_are_spelt_as_inside_a_sentence():
    tokenizer = train_tokenizer(TEXT.split("\n"), kind="sentencepiece", vocab_size=60)
    similar = find_similar_words([TEXT], SEGMENTER, tokenizer, seed=0)
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
