"""A vocabulary as transformers 5 saves it: in tokenizer.json alone."""

import json
import shutil

import pytest
from sentencepiece import SentencePieceNormalizer
from sentencepiece.sentencepiece_model_pb2 import ModelProto, NormalizerSpec
from transformers import AutoTokenizer

from data.errors import InputError
from data.tokenization import encode_alike, find_tokenizer, load_tokenizer, train_tokenizer
from tests.conftest import change_json, sample_sentences

SENTENCES = sample_sentences()[:300]


@pytest.fixture(scope="module", params=["wordpiece", "sentencepiece", "sentencepiece with rules"])
def both(request, tmp_path_factory):
    """A trained tokenizer, and the folder that transformers makes of it."""
    ours, theirs = tmp_path_factory.mktemp("ours"), tmp_path_factory.mktemp("theirs")
    kind, _, has_rules = request.param.partition(" ")
    tokenizer = train_tokenizer([*SENTENCES, "tea café"], kind=kind, vocab_size=2500)
    tokenizer.save(ours)
    if has_rules:  # of normalisation, as the published models have
        model = ModelProto.FromString((ours / "spiece.model").read_bytes())
        rules = SentencePieceNormalizer(rule_name="nmt_nfkc").serialized_normalizer_spec()
        model.normalizer_spec.precompiled_charsmap = NormalizerSpec.FromString(rules).precompiled_charsmap
        (ours / "spiece.model").write_bytes(model.SerializeToString())
        tokenizer = load_tokenizer(ours / "spiece.model")
        tokenizer.save(ours)
    AutoTokenizer.from_pretrained(ours).save_pretrained(theirs)
    assert not list(theirs.glob("vocab.txt")) + list(theirs.glob("*.model"))
    return tokenizer, theirs


def test_it_encodes_as_the_files_it_was_made_from_and_another_pre_tokenizer_is_refused(both, write):
    tokenizer, folder = both
    alone = load_tokenizer(find_tokenizer(str(folder)))
    assert (alone.vocabulary, alone.rules) == (tokenizer.vocabulary, tokenizer.rules)
    for text in [*SENTENCES[:100], "Ａ Tea [MASK] 茶, café", "𠀀龘"]:
        for given, expected in zip(alone.encode(text), tokenizer.encode(text), strict=True):
            assert given.tolist() == expected.tolist(), text
    content = json.loads((both[1] / "tokenizer.json").read_text(encoding="utf-8"))
    for other in ({"type": "Whitespace"}, None):
        path = write("tokenizer.json", json.dumps(content | {"pre_tokenizer": other}))
        with pytest.raises(InputError, match="its pre_tokenizer has other settings"):
            load_tokenizer(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content.replace('"handle_chinese_chars": true', '"handle_chinese_chars": false'),
         "its normalizer has other settings"),
        (lambda content: content.replace('prefix": "##"', 'prefix": "@@"'), "its model has other settings"),
        (lambda content: json.dumps({**json.loads(content), "model": BPE}), "has a BPE model"),
    ],
    ids=["normalizer", "prefix", "another model"],
)  # fmt: skip
def test_what_is_no_such_vocabulary_is_refused(write, vocabulary_file, change, message):
    content = vocabulary_file.with_name("tokenizer.json").read_text(encoding="utf-8")
    with pytest.raises(InputError, match=message):
        load_tokenizer(write("tokenizer.json", change(content)))


@pytest.mark.parametrize(
    "config",
    [
        {"do_lower_case": False},
        {"keep_accents": True, "strip_accents": False},
        {"do_lower_case": False, "tokenizer_class": "PreTrainedTokenizerFast"},
    ],
    ids=str,
)
def test_lower_case_and_accents_are_read_as_transformers_reads_them(both, tmp_path, config):
    shutil.copytree(both[1], tmp_path, dirs_exist_ok=True)
    change_json(tmp_path / "tokenizer_config.json", **config)
    ours, theirs = load_tokenizer(tmp_path / "tokenizer.json"), AutoTokenizer.from_pretrained(tmp_path)
    for text in ("Tea 茶", "CAFÉ café"):
        assert ours.encode(text)[0].tolist() == theirs(text, add_special_tokens=False)["input_ids"]


def test_berts_chinese_vocabulary_survives_being_saved_by_transformers(tmp_path):
    """Its lines 344 and 13503 hold U+2028, which transformers strips."""
    published, saved = tmp_path / "published", tmp_path / "saved"
    published.mkdir()
    shutil.copy(find_tokenizer("tiny-zh"), published)
    (published / "config.json").write_text('{"model_type": "bert"}')
    AutoTokenizer.from_pretrained(published).save_pretrained(saved)
    assert encode_alike(saved / "tokenizer.json", published / "vocab.txt")


BPE = {"type": "BPE", "vocab": {"[UNK]": 0}, "merges": [], "unk_token": "[UNK]"}
