"""Words, tokens and the flags that tie them together."""

import re

import jieba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.instances import tokenize_document
from data.segmentation import split_words
from tests.conftest import sample_sentences

MIXED = [
    "用iPhone15拍照，很好。",
    "PyTorch 2.0的model训练中",
    "价格是3.5万元！",
    "“引号”里的[MASK]字样",
    "covid-19疫情",
    "𠮷野家",
]
sentences = st.sampled_from(sample_sentences() + MIXED)


@given(sentences)
def test_words_concatenate_to_the_sentence(sentence):
    assert "".join(split_words(sentence)) == sentence


@given(st.lists(sentences, min_size=1, max_size=5))
def test_word_starts_agree_with_jieba_on_han_runs(tokenizer, lines):
    document = tokenize_document("0", [split_words(line) for line in lines], tokenizer, 10_000)
    ids, starts = tokenizer.encode("\n".join(lines))
    assert document.input_ids.tolist() == ids.tolist()
    flag_at = dict(zip(starts.tolist(), document.word_starts.tolist(), strict=True))
    begin = 0
    for line in lines:
        boundaries = set(np.cumsum([0, *map(len, jieba.lcut(line))]).tolist())
        for run in re.finditer("[\u4e00-\u9fff]+", line):
            for position in range(run.start(), run.end()):
                assert flag_at[begin + position] == (position in boundaries), line[position:]
        begin += len(line) + 1


@given(st.lists(sentences, min_size=1, max_size=4))
def test_ids_and_offsets_are_those_of_the_tokenizers_library(tokenizer, lines):
    text = "\n".join(lines)
    library = tokenizer._library.encode(text, add_special_tokens=False)
    ids, starts = tokenizer.encode(text)
    assert ids.tolist() == library.ids
    assert starts.tolist() == [start for start, _ in library.offsets]


@given(st.text(max_size=40))
def test_ids_are_the_librarys_on_any_text(tokenizer, text):
    library = tokenizer._library.encode(text, add_special_tokens=False)
    assert tokenizer.encode(text)[0].tolist() == library.ids


@given(st.sampled_from(sample_sentences()))
def test_ids_round_trip(tokenizer, sentence):
    assert tokenizer.decode(tokenizer.encode(sentence)[0]) == sentence


def test_special_tokens_in_the_text_are_text(tokenizer):
    special = {tokenizer.mask_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id}
    assert not special & set(tokenizer.encode("文中的[MASK]和[CLS]")[0].tolist())


@pytest.mark.parametrize("max_piece", [8, 20])
def test_a_long_sentence_is_cut_without_losing_a_token(tokenizer, max_piece):
    sentence = "，".join(sample_sentences()[:6])
    document = tokenize_document("0", [split_words(sentence)], tokenizer, max_piece)
    assert document.pieces[0] == 0 and document.pieces[-1] == len(document.input_ids)
    assert np.diff(document.pieces).max() <= max_piece
    assert document.word_starts[document.pieces[1:-1]].all()
