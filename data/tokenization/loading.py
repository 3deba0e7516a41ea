"""Find, load and train a vocabulary; the two kinds are in `wordpiece` and `unigram`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from data.errors import InputError
from data.files import read_json, sha256
from data.samples import shipped_checkpoint
from data.tokenization.tokenizer_json import read_tokenizer_json
from data.tokenization.unigram import UnigramTokenizer, train_unigram
from data.tokenization.wordpiece import WordPieceTokenizer, read_vocabulary, train_wordpiece

Tokenizer = WordPieceTokenizer | UnigramTokenizer
TOKENIZER_CONFIG = "tokenizer_config.json"
TOKENIZER_FILES = ("vocab.txt", "spiece.model", "tokenizer.json", TOKENIZER_CONFIG)  # of a checkpoint
# what it says about the words of a text, and what holds if it says nothing
_RULES: dict[str, object] = {
    "do_lower_case": True,
    "strip_accents": None,
    "keep_accents": False,
    "domain_terms": [],
}


def find_tokenizer(name_or_path: str, tokenizers_folder: Path | None = None) -> Path:
    """Find a `vocab.txt`-like file, a `*.model` or a `tokenizer.json` by name or path.

    The path is of such a file or a folder with one; the name is of a folder under `tokenizers_folder` or of
    a checkpoint that comes with jixu. Raises InputError if there is none.
    """
    path = Path(name_or_path)
    if not path.exists() and tokenizers_folder is not None and (tokenizers_folder / name_or_path).is_dir():
        path = tokenizers_folder / name_or_path
    if not path.exists():
        path = shipped_checkpoint(name_or_path) or path
    if path.is_file():
        return path
    if path.is_dir() and (vocabularies := _vocabularies(path)):
        if len(vocabularies) > 1:
            names = ", ".join(file.name for file in vocabularies)
            raise InputError(
                f"{path} holds {len(vocabularies)} vocabularies ({names}): pass the one that is meant"
            )
        return vocabularies[0]
    fault = f"no tokenizer {name_or_path!r}"
    if path.is_dir():
        fault = f"no vocab.txt, spiece.model or tokenizer.json in {path}"
    names = ", ".join(sorted(p.name for p in tokenizers_folder.glob("*"))) if tokenizers_folder else ""
    raise InputError(
        f"{fault}: pass a vocab.txt, a spiece.model, a folder with one, or a tokenizer of this workspace"
        f" ({names or 'it has none; jixu train-tokenizer makes one'})"
    )


def _vocabularies(folder: Path) -> list[Path]:
    """List the vocabulary files of a folder: with the usual names, else those of TensorFlow checkpoints."""
    usual = [folder / name for name in ("vocab.txt", "spiece.model") if (folder / name).is_file()]
    return usual or sorted(
        [*folder.glob("vocab*.txt"), *folder.glob("*.model"), *folder.glob("tokenizer.json")]
    )


def load_tokenizer(path: Path | str) -> Tokenizer:
    """Load the tokenizer of a vocabulary file.

    A tokenizer_config.json beside it decides about lower case and accents; without one, they are as in
    tokenizer.json, or for the other files as in the published models.
    """
    path = Path(path)
    read = {".json": read_tokenizer_json, ".model": _unigram}.get(path.suffix, _wordpiece)
    return read(path, _tokenizer_config(path))


def tokenizer_digest(path: Path) -> str:
    """Hash a vocabulary file, with what a tokenizer_config.json beside it changes."""
    config = _tokenizer_config(path)
    changed = {name: config[name] for name, usual in _RULES.items() if config.get(name, usual) != usual}
    digest = sha256(path)
    return hashlib.sha256((digest + json.dumps(changed)).encode()).hexdigest() if changed else digest


def _unigram(path: Path, config: Mapping[str, Any]) -> UnigramTokenizer:
    return UnigramTokenizer(
        path.read_bytes(),
        lower_case=bool(config.get("do_lower_case", True)),
        # ALBERT's own preprocessing drops accents; a model trained here says that it keeps them
        keep_accents=bool(config.get("keep_accents", False)),
        source=str(path),
    )


def _wordpiece(path: Path, config: Mapping[str, Any]) -> WordPieceTokenizer:
    if config.get("tokenize_chinese_chars") is False:
        raise InputError(f"{path}: its tokenizer_config.json has tokenize_chinese_chars off: not supported")
    tokenizer = WordPieceTokenizer(
        read_vocabulary(path),
        lower_case=bool(config.get("do_lower_case", True)),
        strip_accents=config.get("strip_accents"),
        terms=config.get("domain_terms", []),
        source=str(path),
    )
    _check_same_ids(path, tokenizer.vocabulary)
    _check_none_added(path, config, tokenizer.vocabulary)
    return tokenizer


def _check_same_ids(path: Path, vocabulary: list[str]) -> None:
    """Raise InputError if a tokenizer.json, which transformers reads first, gives an entry another id."""
    beside = path.with_name("tokenizer.json")
    try:
        theirs: dict[str, int] = read_json(beside)["model"]["vocab"]
        differing = [token for number, token in enumerate(vocabulary) if theirs.get(token, number) != number]
    except (InputError, KeyError, TypeError, AttributeError):
        return  # not there, or not read: vocab.txt is enough
    if differing:
        raise InputError(
            f"{len(differing):,} entries have other ids in {path} than in the {beside.name} beside it, first "
            f"{differing[0]!r}: remove the one that is not the model's"
        )


def _check_none_added(path: Path, config: Mapping[str, Any], vocabulary: list[str]) -> None:
    """Raise InputError if transformers adds entries to those of the vocab.txt."""
    added = set(_read_if_there(path.with_name("added_tokens.json")))
    if isinstance(listed := config.get("added_tokens_decoder"), dict):
        added |= {one["content"] for one in listed.values() if isinstance(one, dict) and "content" in one}
    if beyond := sorted(added.difference(vocabulary)):
        raise InputError(
            f"{len(beyond)} entries were added to {path} in other files, first {beyond[0]!r}: append them to "
            f"it in the order of their ids, and list those that texts hold in {TOKENIZER_CONFIG} as "
            "domain_terms"
        )


def _tokenizer_config(vocabulary: Path) -> dict[str, Any]:
    path = vocabulary.with_name(TOKENIZER_CONFIG)
    config = _read_if_there(path)
    for name in ("do_lower_case", "keep_accents", "strip_accents"):
        if not isinstance(value := config.get(name), bool | None):
            raise InputError(f"{path}: {name} is {value!r}, and must be true or false")
    return config


def _read_if_there(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def encode_alike(first: Path, second: Path) -> bool:
    """Whether two vocabulary files have the same entries, and read case, accents and terms alike."""
    a, b = load_tokenizer(first), load_tokenizer(second)
    return a.vocabulary == b.vocabulary and a.rules == b.rules


def train_tokenizer(
    texts: Iterable[str],
    *,
    kind: Literal["wordpiece", "sentencepiece"],
    vocab_size: int,
    on_notice: Callable[[str], object] = lambda line: None,
) -> Tokenizer:
    """Train a vocabulary of at most `vocab_size` entries on cleaned sentences.

    `on_notice` gets a line where even the characters of the text do not fit.
    """
    if kind == "sentencepiece":
        return train_unigram(texts, vocab_size)
    if kind != "wordpiece":
        raise InputError(f"kind={kind!r}: it must be 'wordpiece' or 'sentencepiece'")
    return train_wordpiece(texts, vocab_size, on_notice)
