import pytest

from data.errors import InputError
from data.tokenization import find_tokenizer, load_tokenizer, train_tokenizer
from data.tokenization.wordpiece import read_vocabulary
from tests.conftest import sample_sentences

kinds = pytest.mark.parametrize("kind", ["wordpiece", "sentencepiece"])


@kinds
def test_a_trained_vocabulary_covers_its_text_and_is_saved_as_the_same_files_each_time(kind, tmp_path):
    for name in ("once", "again"):
        trained = train_tokenizer(iter(sample_sentences()), kind=kind, vocab_size=2500)
        trained.save(tmp_path / name)
    for path in (tmp_path / "once").iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes(), path.name
    loaded = load_tokenizer(str(find_tokenizer(str(tmp_path / "once"))))
    assert loaded.kind == kind and loaded.vocab_size == trained.vocab_size <= 2500
    ids = [i for sentence in sample_sentences() for i in loaded.encode(sentence)[0].tolist()]
    assert ids.count(loaded.unknown_id) < 0.02 * len(ids)
    assert not {loaded.pad_id, loaded.mask_id, loaded.cls_id} & set(loaded.replacement_ids().tolist())


def test_a_vocabulary_smaller_than_its_texts_characters_leaves_out_the_rarest():
    notices = []
    texts = ["茶茶茶茶 Tea", "水水水", "火火", "土"]
    for size, left_out in ((8, {"t", "##e", "##a", "土"}), (14, set())):
        trained = train_tokenizer(texts, kind="wordpiece", vocab_size=size, on_notice=notices.append)
        assert trained.vocab_size == size and set("茶水火") < set(trained.vocabulary)
        assert not left_out & set(trained.vocabulary)
    assert len(notices) == 1 and notices[0].startswith("the characters alone make 14 entries: the 6 rarest")


@kinds
def test_a_vocabulary_is_learnt_in_lower_case_as_texts_are_read_and_none_on_nothing(kind):
    text = "茶 THE TEA is picked early and DRIED slowly over a small fire"
    trained = train_tokenizer([text] * 3, kind=kind, vocab_size=60)
    assert trained.unknown_id not in trained.encode(text)[0]
    with pytest.raises(InputError, match="no vocabulary .*can be trained on this text"):
        train_tokenizer(iter(["", " "]), kind=kind, vocab_size=60)
    with pytest.raises(InputError, match="'wordpiece' or 'sentencepiece'"):
        train_tokenizer([text], kind=kind.upper(), vocab_size=60)


def test_sentencepiece_offsets_are_those_of_the_characters():
    trained = train_tokenizer(sample_sentences(), kind="sentencepiece", vocab_size=2000)
    for sentence in [*sample_sentences()[:30], "带 空格 的 句子。"]:
        ids, starts = trained.encode(sentence)
        assert (starts[1:] >= starts[:-1]).all() and starts.max() < len(sentence)
        for number, start in zip(ids, starts, strict=True):
            piece = trained.vocabulary[number].lstrip("\u2581")
            assert piece == "<unk>" or sentence.lower().startswith(piece, start)
        assert trained.decode(ids).replace(" ", "") == sentence.replace(" ", "")


SOUND = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n"


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n好\n", r"no \[MASK\] in .*vocab.txt \(5 entries\)"),
        ("vocab.txt", f"{SOUND}好\n好\n", "more than once"),
        ("vocab.txt", f"{SOUND}\n\n好\n", "2 blank line.* first at line 6"),
        ("vocab.txt", "", r"no \[PAD\], \[UNK\], \[CLS\], \[SEP\], \[MASK\] in .*vocab.txt \(0 entries\)"),
        ("added_tokens.json", '{"好茶": 5, "[MASK]": 4}', "1 entries were added to .*, first '好茶'"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"5": {"content": "好茶"}}}', "first '好茶'"),
        ("tokenizer_config.json", '{"do_lower_case": "false"}', "do_lower_case is 'false', and must be true"),
        ("tokenizer_config.json", '{"strip_accents": 0}', "strip_accents is 0, and must be true"),
        ("tokenizer_config.json", '{"tokenize_chinese_chars": false}', "tokenize_chinese_chars off: not sup"),
        ("tokenizer_config.json", '{"domain_terms": ["不在表中"]}', r"1 domain term\(s\) are not in"),
        ("tokenizer_config.json", "[" * 100_000, "cannot be read as JSON"),
    ],
)
def test_what_cannot_work_or_would_make_other_ids_in_transformers_is_refused(write, name, content, message):
    path = write("vocab.txt", SOUND)
    load_tokenizer(path)
    write(name, content)
    with pytest.raises(InputError, match=message) as error:
        load_tokenizer(path)
    assert "\n" not in str(error.value)


def test_windows_line_ends_and_byte_order_mark_are_not_part_of_a_token_and_one_may_be_blank(write):
    path = write("vocab.txt", "\ufeff[PAD]\r\n[UNK]\r\n\r\n好\r\n\r\n\r\n".encode())
    assert read_vocabulary(path) == ["[PAD]", "[UNK]", "", "好"]
