"""Domain terms in free slots, and tokenizers as the original models have them."""

import numpy as np
import pytest
import sentencepiece
import tokenizers
from transformers import AlbertTokenizer, AutoTokenizer, BertTokenizer

from data.errors import InputError
from data.tokenization import (
    WordPieceTokenizer,
    add_terms_to_vocabulary,
    find_tokenizer,
    load_tokenizer,
    read_terms,
    train_tokenizer,
)
from data.tokenization.terms import free_slots
from data.tokenization.unigram import UnigramTokenizer
from tests.conftest import sample_sentences

TEXT = "新采的普洱茶和乌龙茶，普洱茶饼。DNA测序model普洱"
TERMS = ["普洱茶", "普洱茶饼", "乌龙", "DNA测序", "茶", "model"]


@pytest.fixture(scope="module")
def chinese(tokenizer):
    """The test vocabulary with characters of the terms, and [unused] slots and `##` twins as BERT's has."""
    characters = sorted(set("".join(TERMS) + TEXT) - set(tokenizer.vocabulary) - set("DNA"))
    han = [c for c in [*tokenizer.vocabulary, *characters] if len(c) == 1 and "\u4e00" <= c <= "\u9fff"]
    slots = [f"[unused{n}]" for n in range(2, 4)]
    return WordPieceTokenizer([*tokenizer.vocabulary, *characters, *slots, *(f"##{c}" for c in han)])


@pytest.fixture(scope="module")
def grown(chinese):
    return add_terms_to_vocabulary(chinese, TERMS)[0]


def pieces(tokenizer, text):
    return [tokenizer.vocabulary[i] for i in tokenizer.encode(text)[0]]


def test_terms_take_free_slots_and_the_table_keeps_its_size(chinese):
    grown, added = add_terms_to_vocabulary(chinese, [*TERMS, *TERMS])
    # 茶 and model are tokens already
    assert [addition.term for addition in added] == ["普洱茶", "普洱茶饼", "乌龙", "DNA测序"]
    assert grown.vocab_size == chinese.vocab_size
    slots = [chinese.vocabulary[addition.token_id] for addition in added]
    assert slots[:3] == ["[unused1]", "[unused2]", "[unused3]"] and slots[3].startswith("##")
    for addition in added:
        assert list(addition.pieces) == chinese.encode(addition.term)[0].tolist()
    changed = {i for i in range(chinese.vocab_size) if chinese.vocabulary[i] != grown.vocabulary[i]}
    assert changed == {addition.token_id for addition in added}


def test_the_longest_term_is_found_where_it_stands_and_no_text_is_ever_a_free_slot(grown, chinese):
    tokens, (_, starts) = pieces(grown, TEXT), grown.encode(TEXT)
    assert " ".join(tokens) == "新 采 的 普洱茶 和 乌龙 茶 ， 普洱茶饼 。 DNA测序 model 普 洱"
    assert [TEXT[s] for s in starts] == [token[0] for token in tokens]
    assert (np.diff(starts) > 0).all()
    slots = set(free_slots(chinese.vocabulary))
    assert len(slots) > 100
    texts = [*sample_sentences(), TEXT, "##采 ##茶 [unused1] 采##茶", "a采b茶c"]
    assert not slots & {i for text in texts for i in chinese.encode(text)[0].tolist()}


def test_a_grown_vocabulary_comes_back_and_opens_in_transformers(grown, tmp_path):
    grown.save(tmp_path)
    again = load_tokenizer(find_tokenizer(str(tmp_path)))
    assert again.vocabulary == grown.vocabulary and again.terms == grown.terms
    theirs = AutoTokenizer.from_pretrained(str(tmp_path))
    for text in [TEXT, *sample_sentences()[:20]]:
        ids = grown.encode(text)[0].tolist()
        assert again.encode(text)[0].tolist() == ids
        assert theirs(text)["input_ids"] == [grown.cls_id, *ids, grown.sep_id]
    assert theirs.convert_tokens_to_ids("普洱茶") == grown.vocabulary.index("普洱茶")
    assert len(theirs) == grown.vocab_size


def test_terms_are_added_to_a_vocabulary_with_terms_if_they_can_be_spelt_and_fit(chinese, tokenizer):
    marked = WordPieceTokenizer(chinese.vocabulary, terms=["[unused1]"])  # in use as a mark
    first, _ = add_terms_to_vocabulary(marked, ["普洱茶"])
    second, added = add_terms_to_vocabulary(first, ["普洱茶", "乌龙"])
    assert [addition.term for addition in added] == ["乌龙"]
    assert second.terms == ("[unused1]", "普洱茶", "乌龙")
    assert {"普洱茶", "乌龙"} <= set(pieces(second, TEXT))
    known = WordPieceTokenizer([*chinese.vocabulary, "采茶"])
    assert add_terms_to_vocabulary(known, ["龘龘", "MODEL", "采茶"])[1] == []  # [UNK], or tokens
    with pytest.raises(InputError, match="2 terms, but only 1 free slots"):
        add_terms_to_vocabulary(tokenizer, ["采茶", "炒锅"])  # it has one [unused] and no twins


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "holds no term"),
        (b"\xff\xfe\x00", "cannot be read: 'utf-8' codec"),
        ("普洱 茶\n".encode(), "or have spaces, first '普洱 茶'"),
        ("茶".encode() * 40, "longer than 32 characters"),
    ],
)
def test_a_file_of_terms_is_checked(write, content, message):
    path = write("terms.txt", content)
    with pytest.raises(InputError, match=message):
        read_terms(path)
    with pytest.raises(InputError, match="none.txt cannot be read"):
        read_terms(path.with_name("none.txt"))


ORIGINAL = [
    "Ünïcödé Café naïve ÅNGSTRÖM",
    "采茶model要早Model",
    "全角ＡＢＣ，１２３！",
    "é decomposed: e\u0301, 한국어, ñandú",
    "tab\tnew  space\u3000end",
    "\u4e00\u9fa5\u3400\U00020000\uf900",
]


@pytest.mark.parametrize("lower_case", [True, False])
@pytest.mark.parametrize("strip_accents", [None, True, False])
def test_lower_case_accents_and_han_spacing_are_the_originals(tokenizer, lower_case, strip_accents, tmp_path):
    more = [c for text in ORIGINAL for c in text + text.lower() if not c.isspace()]
    vocabulary = list(dict.fromkeys([*tokenizer.vocabulary, *more, *(f"##{c}" for c in more)]))
    ours = WordPieceTokenizer(vocabulary, lower_case=lower_case, strip_accents=strip_accents)
    ids = {token: i for i, token in enumerate(vocabulary)}
    theirs = BertTokenizer(vocab=ids, do_lower_case=lower_case, strip_accents=strip_accents)
    ours.save(tmp_path)
    again = load_tokenizer(tmp_path / "vocab.txt")
    for text in ORIGINAL:
        expected = theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.encode(text)[0].tolist() == expected == again.encode(text)[0].tolist(), text


@pytest.fixture(scope="module")
def english():
    """A SentencePiece model of English text, to be used in lower case and without accents, as ALBERT's."""
    words = "the tea of the garden is picked early and dried slowly over a small fire in the old house"
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(words.split(), 8)) + ' "cafe" 123.' for _ in range(400)]
    return train_tokenizer(texts, kind="sentencepiece", vocab_size=90).model


ENGLISH = [
    "The Tea of the GARDEN",
    "café tëä in thé house",
    "``cafe'' 123",
    "ID of İd",  # its lower case is two characters
    "slowly dried, early, № 3",  # № is decomposed to a capital letter
    "The\u3000tea\tis \u00a0 old\u3000\nof a house",
]


@pytest.mark.parametrize("keep_accents", [False, True])
@pytest.mark.parametrize("lower_case", [True, False])
def test_sentencepiece_is_used_as_alberts_own_tokenizer_does(english, keep_accents, lower_case, tmp_path):
    ours = UnigramTokenizer(english, lower_case=lower_case, keep_accents=keep_accents)
    model = sentencepiece.SentencePieceProcessor(model_proto=english)
    vocabulary = [(model.id_to_piece(i), model.get_score(i)) for i in range(ours.vocab_size)]
    theirs = AlbertTokenizer(vocab=vocabulary, do_lower_case=lower_case, keep_accents=keep_accents)
    ours.save(tmp_path)
    again = load_tokenizer(tmp_path / "spiece.model")
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in ENGLISH:
        ids, starts = ours.encode(text)
        assert library.encode(text + "[MASK]").ids == [ours.cls_id, *ids, ours.mask_id, ours.sep_id], text
        assert library.decode(ids.tolist()) == ours.decode(ids).replace("<unk>", ""), text
        assert ids.tolist() == theirs(text, add_special_tokens=False)["input_ids"], text
        assert again.encode(text)[0].tolist() == ids.tolist(), text
        assert (np.diff(starts) >= 0).all() and starts.max() < len(text)


def test_a_published_model_without_a_config_drops_accents(english, write):
    published = load_tokenizer(find_tokenizer(str(write("30k-clean.model", english).parent)))
    assert published.encode("café")[0].tolist() == published.encode("cafe")[0].tolist()


def test_the_wrong_kind_of_vocabulary_is_refused(tokenizer, english, tmp_path, write):
    tokenizer.save(tmp_path)
    for name, content, message in (
        ("other.model", (tmp_path / "vocab.txt").read_bytes(), "not a SentencePiece model"),
        ("other.txt", english, "not UTF-8 text|blank line|more than once|no .* in"),
    ):
        with pytest.raises(InputError, match=message):
            load_tokenizer(write(name, content))
    (tmp_path / "other.model").unlink()
    write("spiece.model", english)
    with pytest.raises(InputError, match="holds 2 vocabularies .vocab.txt, spiece.model.: pass the one"):
        find_tokenizer(str(tmp_path))
