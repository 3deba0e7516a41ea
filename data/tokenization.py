"""Vocabularies: finding, loading and training one. The two kinds are in `data.wordpiece` and
`data.unigram`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from data.records import InputError
from data.unigram import UnigramTokenizer, train_unigram
from data.wordpiece import WordPieceTokenizer, read_vocabulary, train_wordpiece

Tokenizer = WordPieceTokenizer | UnigramTokenizer
KINDS = ("wordpiece", "sentencepiece")


def find_tokenizer(name_or_path: str, tokenizers_folder: Path | None = None) -> Path:
    """The file a name or path stands for: a `vocab.txt`-like file or a `*.model`.

    A path to such a file, a folder that holds one, or the name of a folder under `tokenizers_folder`. Raises
    InputError when there is none, naming what was looked for.
    """
    path = Path(name_or_path)
    if not path.exists() and tokenizers_folder is not None and (tokenizers_folder / name_or_path).is_dir():
        path = tokenizers_folder / name_or_path
    if path.is_file():
        return path
    for name in ("vocab.txt", "spiece.model"):
        if (path / name).is_file():
            return path / name
    known = (
        sorted(p.name for p in tokenizers_folder.iterdir())
        if tokenizers_folder and tokenizers_folder.is_dir()
        else []
    )
    what = f"no vocab.txt or spiece.model in {path}" if path.is_dir() else f"no tokenizer {name_or_path!r}"
    raise InputError(
        f"{what}: pass a vocab.txt, a spiece.model, a folder with one, or a tokenizer of this workspace"
        f" ({', '.join(known) or 'it has none; python -m flows.train_tokenizer makes one'})"
    )


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a vocabulary file. Lower case as its tokenizer_config.json says, else yes."""
    lower_case = True
    config_path = path.parent / "tokenizer_config.json"
    if config_path.is_file():
        try:
            lower_case = bool(json.loads(config_path.read_text(encoding="utf-8")).get("do_lower_case", True))
        except (ValueError, AttributeError):
            raise InputError(f"{config_path} is not a JSON object: mend or remove it") from None
    if path.suffix == ".model":
        return UnigramTokenizer(path.read_bytes(), lower_case=lower_case, source=str(path))
    return WordPieceTokenizer(read_vocabulary(path), lower_case=lower_case, source=str(path))


def train_tokenizer(
    texts: Iterable[str], *, kind: Literal["wordpiece", "sentencepiece"], vocab_size: int
) -> Tokenizer:
    """A new vocabulary of at most `vocab_size` entries from cleaned sentences."""
    if kind not in KINDS:
        raise InputError(f"unknown tokenizer kind {kind!r}: choose one of {', '.join(KINDS)}")
    return (train_wordpiece if kind == "wordpiece" else train_unigram)(texts, vocab_size)
