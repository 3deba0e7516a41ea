import marshal
import re

import jieba
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from data.errors import InputError
from data.instances import tokenize_documents
from data.segmentation import Segmenter
from data.segmentation.segmenter import LATIN_WORDS
from data.tokenization import WordPieceTokenizer
from data.tokenization.wordpiece import SPECIAL_TOKENS
from tests.conftest import sample_sentences
from tests.data.helpers import SEGMENTER

MIXED = [
    "用iPhone15拍照，很好。",
    "PyTorch 2.0的model训练中",
    "价格是3.5万元！",
    "“引号”里的[MASK]字样",
    "covid-19疫情",
    "𠮷野家",
]
sentences = st.sampled_from(sample_sentences() + MIXED)
# what real text is made of: Han characters common and rare, letters, digits, signs, repetitions
FRAGMENTS = "差评 赞 语言模型 C++ AT&T v1.15.0 2020-2035 _ -- % 3.5% 𠮷 鿖 γ射线 T恤"
fragments = st.sampled_from(FRAGMENTS.split())
texts = st.lists(fragments | sentences | st.text(max_size=3), max_size=12).map("".join)
latin = st.text(alphabet="aZ9+#&._%-AT&Tc ", max_size=14)
random_characters = st.text(alphabet=sorted(set("".join(sample_sentences()[:200]))), max_size=30)
# 繻 and the like stand only at the end of words in what jieba's Markov model has seen
rare = st.text(alphabet="繻躞鵅阌茶\n", max_size=8)
beginnings, endings = st.sampled_from("差评赞好哈一"), st.sampled_from(["", "评", "的", "茶"])
repetitions = st.builds(lambda one, count, end: one * count + end, beginnings, st.integers(1, 60), endings)


@settings(max_examples=500)
@given(texts | latin | random_characters | repetitions | rare)
@example("茶。\n繻躞")
@example("常在较陡峭的")  # two ways to cut it differ by 1.5e-7 in log probability
def test_words_are_jiebas(text):
    assert SEGMENTER.split(text) == jieba.lcut(text)


def test_a_users_words_are_found_as_jieba_finds_them_and_no_others_are_without_han_characters(write):
    jieba.initialize()
    assert sorted(w for w, n in jieba.dt.FREQ.items() if n and w.isascii()) == sorted(LATIN_WORDS)
    path = write("words.txt", "语言模型 100 n\n炒青法\n茶A级\nv2.x 50\n冻顶乌龙 3\n是 1\n茶的\n")
    theirs = jieba.Tokenizer()
    theirs.load_userdict(str(path))
    ours = Segmenter([path])
    for text in [*sample_sentences(), "继续预训练语言模型", "这是茶A级，用炒青法做的冻顶乌龙茶，v2.x-y。"]:
        assert ours.split(text) == theirs.lcut(text)
    assert "语言模型" in ours.split("继续预训练语言模型")


def test_words_are_no_others_where_another_jieba_left_its_cache(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "jieba.cache").write_bytes(marshal.dumps(({"的语": 9, "言": 1}, 10)))
    assert Segmenter().split("C++的语言") == ["C++", "的", "语言"]


@pytest.mark.parametrize("line", ["云计算平台\tn", "云计算平台  nz", "云计算平台 N", "云计算平台\t5000\tn"])
def test_a_users_word_is_found_however_its_line_is_spaced(write, line):
    path = write("words.txt", line)
    assert Segmenter([path]).split("A云计算平台，云计算平台") == ["A", "云计算平台", "，", "云计算平台"]


@pytest.mark.parametrize("line", ["词 3 n 多余", "词 0", "词 3.5", "大语言 模型", "New York", "# 注释"])
def test_a_malformed_dictionary_is_refused(write, line):
    path = write("words.txt", f"词\n{line}\n")
    with pytest.raises(InputError, match=f"words.txt: '{line}': a line is a word"):
        Segmenter([path])
    with pytest.raises(InputError, match="nowhere.txt cannot be read"):
        Segmenter([path.with_name("nowhere.txt")])


def tokenize(text, lines, tokenizer, max_piece):
    lengths = SEGMENTER.lengths(text)
    return tokenize_documents(text, lengths, np.array([lines]), tokenizer, max_piece)


@given(st.lists(sentences, min_size=1, max_size=5))
def test_word_starts_agree_with_jieba_on_han_runs(tokenizer, lines):
    text = "".join(f"{line}\n" for line in lines)
    document = tokenize(text, len(lines), tokenizer, 10_000)
    ids, starts = tokenizer.encode(text)
    assert document.input_ids.tolist() == ids.tolist()
    flag_at = dict(zip(starts.tolist(), document.word_starts.tolist(), strict=True))
    words = [word for line in lines for word in [*jieba.lcut(line), "\n"]]
    boundaries = set(np.cumsum([0, *map(len, words)]).tolist())
    for run in re.finditer("[\u4e00-\u9fff]+", text):
        for position in range(run.start(), run.end()):
            assert flag_at[position] == (position in boundaries), text[position:]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("茶Kondañña茶", "茶 kon_##dan_##na 茶"),  # jieba parts ñ and a
        ("Москва", "м_##осква"),  # jieba parts all letters
        ("约2.5km", "[UNK] 2_._5_##km"),  # jieba parts 2.5 and km
        ("倨傲的茶", "[UNK] 傲 的 茶"),  # a word of which the end is known
        ("量子", "量 [UNK]"),  # or the beginning
        ("裤子质量好", "裤子质_量 [UNK]"),  # a term has the beginning of 质量
    ],
)
def test_further_pieces_of_a_word_and_unknown_tokens_begin_none(text, words):
    pieces = ["茶", "傲", "的", "量", "kon", "##dan", "##na", "м", "##осква", "2", ".", "5", "##km", "裤子质"]
    tokenizer = WordPieceTokenizer([*SPECIAL_TOKENS, *pieces], terms=["裤子质"])
    document = tokenize(f"{text}\n", 1, tokenizer, 100)
    tokens = zip(document.input_ids.tolist(), document.word_starts.tolist(), strict=True)
    shown = "".join(f"{' ' if start else '_'}{tokenizer.vocabulary[i]}" for i, start in tokens)
    assert shown.strip() == words


@given(st.lists(sentences, min_size=1, max_size=4).map("\n".join) | st.text(max_size=40))
@example("0\u2e43")  # a dash that the library's Unicode does not know
@example("文中出现[MASK]和[CLS]字样，还有[UNK]、[SEP]与[PAD]。")  # are no special tokens
def test_ids_and_offsets_are_those_of_the_tokenizers_library(tokenizer, text):
    library = tokenizer.library.encode(text, add_special_tokens=False)
    ids, starts = tokenizer.encode(text)
    assert ids.tolist() == library.ids
    assert starts.tolist() == [start for start, _ in library.offsets]


def test_decoded_ids_have_spaces_between_latin_words_alone(tokenizer):
    ids, _ = tokenizer.encode("茶的modeling 茶(model 15,茶")
    assert tokenizer.decode(ids) == "茶的modeling茶(model 15,茶"


@pytest.mark.parametrize(
    ("words", "sizes"),
    [
        ((21,), [20, 1]),  # anywhere
        ((40,), [20, 20]),
        ((5, " ", 10, " ", 10), [15, 10]),  # before the last word that does not fit
        ((5, " ", 15, " ", 1), [20, 1]),
        ((5, " ", 16, " ", 1), [5, 17]),
        ((9, "，", 5, " ", 10), [15, 10]),  # not after a mark of the first half
        *(((10, mark, 5, " ", 10), [11, 15]) for mark in "，,、：:"),
        ((12, "，", 6, "，", 5), [20, 5]),
        ((5, " ", 15, "，", 3), [20, 4]),
        ((1, "\n\u200b\n", 1), [1, 1]),  # a line without a token is no piece
    ],
    ids=str,
)
def test_a_long_sentence_is_cut_after_a_mark_or_between_words(tokenizer, words, sizes):
    text = "".join(word if isinstance(word, str) else "a" * word for word in words)
    pieces = tokenize(f"{text}\n", text.count("\n") + 1, tokenizer, 20).pieces
    assert pieces[0] == 0 and np.diff(pieces).tolist() == sizes
