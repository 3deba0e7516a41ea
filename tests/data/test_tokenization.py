import pytest
from transformers import AutoTokenizer

from data.records import InputError
from data.tokenization import find_tokenizer, load_tokenizer, train_tokenizer
from data.wordpiece import read_vocabulary
from tests.conftest import sample_sentences


def test_saved_files_open_in_transformers_with_the_same_ids(tokenizer, vocabulary_file):
    theirs = AutoTokenizer.from_pretrained(str(vocabulary_file.parent))
    for sentence in sample_sentences()[:50]:
        inner = tokenizer.encode(sentence)[0].tolist()
        assert theirs(sentence)["input_ids"] == [tokenizer.cls_id, *inner, tokenizer.sep_id]


@pytest.mark.parametrize("kind", ["wordpiece", "sentencepiece"])
def test_a_trained_vocabulary_saves_loads_and_covers_its_text(kind, tmp_path):
    trained = train_tokenizer(sample_sentences(), kind=kind, vocab_size=2500)
    trained.save(tmp_path)
    loaded = load_tokenizer(find_tokenizer(str(tmp_path)))
    assert loaded.kind == kind and loaded.vocab_size == trained.vocab_size <= 2500
    ids = [i for sentence in sample_sentences() for i in loaded.encode(sentence)[0].tolist()]
    assert ids.count(loaded.unknown_id) < 0.02 * len(ids)
    assert not {loaded.pad_id, loaded.mask_id, loaded.cls_id} & set(loaded.replacement_ids().tolist())


def test_sentencepiece_offsets_point_into_the_sentence():
    trained = train_tokenizer(sample_sentences(), kind="sentencepiece", vocab_size=2000)
    for sentence in [*sample_sentences()[:30], "带 空格 的 句子。"]:
        ids, starts = trained.encode(sentence)
        assert (starts[1:] >= starts[:-1]).all() and starts.max() < len(sentence)
        assert trained.decode(ids).replace(" ", "") == sentence.replace(" ", "")


@pytest.mark.parametrize(
    "lines, message",
    [
        (["[PAD]", "[UNK]", "[CLS]", "[SEP]", "好"], r"no \[MASK\] in .*vocab.txt \(5 entries\)"),
        (["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "好", "好"], "more than once"),
        (["[PAD]", "[UNK]", "", "[CLS]", "[SEP]", "[MASK]"], "blank line"),
    ],
)
def test_a_vocabulary_that_cannot_work_is_refused(tmp_path, lines, message):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(InputError, match=message):
        load_tokenizer(path)


def test_line_ends_of_windows_are_no_part_of_a_token(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_bytes("[PAD]\r\n[UNK]\r\n好\r\n".encode())
    assert read_vocabulary(path) == ["[PAD]", "[UNK]", "好"]


def test_an_unknown_tokenizer_is_named(tmp_path):
    with pytest.raises(InputError, match="no tokenizer 'nope'"):
        find_tokenizer("nope", tmp_path)
    (tmp_path / "bad.model").write_bytes(b"not a model")
    with pytest.raises(InputError, match="not a SentencePiece model"):
        load_tokenizer(tmp_path / "bad.model")
