"""The file `tokenizer.json` of the `tokenizers` library, all that transformers 5 keeps of a vocabulary."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tokenizers

from data.errors import InputError
from data.tokenization.unigram import UnigramTokenizer, model_class
from data.tokenization.wordpiece import WordPieceTokenizer

_GENERIC = ("PreTrainedTokenizerFast", "TokenizersBackend")  # classes that read tokenizer.json alone
_RULES = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
# transformers 5 strips the lines of a vocab.txt, and with them two entries of BERT's Chinese vocabulary
STRIPPED = {"": "\u2028", "##": "##\u2028"}


def read_tokenizer_json(path: Path, config: Mapping[str, object]) -> WordPieceTokenizer | UnigramTokenizer:
    """Read BERT's WordPiece or ALBERT's unigram model, by the rules that the tokenizer_config.json beside it
    states, as transformers does. Raises InputError for any other model, and for damage.
    """
    try:
        library = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library's errors have no class of their own
        raise InputError(f"{path} is not a tokenizer.json: {error}") from None
    entries = library.get_vocab(with_added_tokens=True)
    vocabulary = sorted(entries, key=entries.__getitem__)
    if [entries[entry] for entry in vocabulary] != list(range(len(vocabulary))):
        raise InputError(f"{path}: its ids are not 0 to {len(vocabulary) - 1:,}, each once")
    # only now: the library counts up to the largest id
    content: dict[str, Any] = json.loads(library.to_str())
    if config.get("tokenizer_class") in _GENERIC:
        config = {}
    if content["model"]["type"] == "WordPiece":
        return _wordpiece(path, content, vocabulary, config)
    if content["model"]["type"] == "Unigram" and len(vocabulary) == len(content["model"]["vocab"]):
        return _unigram(path, content, config)
    raise InputError(
        f"{path} has a {content['model']['type']} model of {len(vocabulary):,} entries, not BERT's WordPiece "
        "or ALBERT's unigram model"
    )


def _wordpiece(
    path: Path, content: dict[str, Any], vocabulary: list[str], config: Mapping[str, object]
) -> WordPieceTokenizer:
    if "" in vocabulary:
        vocabulary = [STRIPPED.get(entry, entry) for entry in vocabulary]
    broken = [number for number, entry in enumerate(vocabulary) if not entry or {"\n", "\r"} & set(entry)]
    if broken:
        raise InputError(
            f"{path}: the entry of id {broken[0]} is empty or holds a line break, which no vocab.txt can"
        )
    rules = content["normalizer"] or {}
    rules |= {theirs: config[name] for name, theirs in _RULES.items() if name in config}
    tokenizer = WordPieceTokenizer(
        vocabulary,
        lower_case=rules.get("lowercase", True),
        strip_accents=rules.get("strip_accents"),
        terms=[added["content"] for added in content["added_tokens"] if not added["special"]],
        source=str(path),
    )
    ours = json.loads(tokenizer.library.to_str())
    for one in (content, ours):
        del one["model"]["vocab"]
    for part in ("normalizer", "pre_tokenizer", "model"):
        if content[part] != ours[part]:
            raise InputError(f"{path} does not divide text as BERT does: its {part} has other settings")
    return tokenizer


def _unigram(path: Path, content: dict[str, Any], config: Mapping[str, object]) -> UnigramTokenizer:
    """Make a SentencePiece model of the pieces and scores: it gives the places of pieces in a text."""
    normalizers = {one["type"]: one for one in _steps(content["normalizer"])}
    if "Metaspace" not in [one["type"] for one in _steps(content["pre_tokenizer"])]:
        raise InputError(f"{path} does not divide text as ALBERT does: its pre_tokenizer has other settings")
    special = {added["content"] for added in content["added_tokens"] if added["special"]}
    model = model_class()()
    kinds = model.SentencePiece
    for number, (piece, score) in enumerate(content["model"]["vocab"]):
        kind = kinds.CONTROL if piece in special else kinds.NORMAL
        kind = kinds.UNKNOWN if number == content["model"]["unk_id"] else kind
        model.pieces.add(piece=piece, score=score, type=kind)
    if rules := normalizers.get("Precompiled"):
        model.normalizer_spec.precompiled_charsmap = base64.b64decode(rules["precompiled_charsmap"])
    return UnigramTokenizer(
        model.SerializeToString(),
        lower_case=bool(config.get("do_lower_case", "Lowercase" in normalizers)),
        keep_accents=bool(config.get("keep_accents", "StripAccents" not in normalizers)),
        source=str(path),
    )


def _steps(rules: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    """Yield the single normalizers or pre-tokenizers that a sequence of them holds."""
    if rules is None:
        return
    if rules["type"] != "Sequence":
        yield rules
    for part in [*rules.get("normalizers", []), *rules.get("pretokenizers", [])]:
        yield from _steps(part)
