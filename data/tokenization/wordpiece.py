"""BERT's WordPiece vocabulary (`vocab.txt`, Devlin et al. 2019), vectorised for Chinese.

Every Han character and punctuation mark is a token in any context, so a table from code point to id encodes
all of them at once; only runs of other letters, digits and symbols go through the `tokenizers` library. The
ids are the library's.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from data.errors import InputError
from data.files import write_json, write_text

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# as transformers names them; without it 5.0 to 5.5 find no [MASK] in an ALBERT's vocab.txt
SPECIAL_ROLES = dict(
    zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL_TOKENS, strict=True)
)
_RUN = -1  # part of a run for the library
_NOTHING = -2  # white space: no token
_REPEATED = 1000  # words handed to the library's training at once

# blocks in which every assigned character is "Chinese" to BERT's tokenizer and its own canonical form
_HAN_BLOCKS = [(0x3400, 0x4DB6), (0x4E00, 0x9FA6), (0x20000, 0x2A6D7)]
_BEYOND = 0x2A6D7  # code points from here on are part of a run


class WordPieceTokenizer:
    """Encodes text by a `vocab.txt`. "[MASK]" in a text is text, never the special token."""

    kind = "wordpiece"
    separators = 1  # between the texts of a pair

    def __init__(
        self,
        vocabulary: Sequence[str],
        *,
        lower_case: bool = True,
        strip_accents: bool | None = None,
        terms: Sequence[str] = (),
        source: str = "the vocabulary",
    ):
        """`vocabulary` is in id order. Raises InputError if an entry repeats or a special token is missing.

        Lower case strips accents unless `strip_accents` says otherwise. `terms` are entries found in the raw
        text, the longest first.
        """
        self.vocabulary = list(vocabulary)
        self.lower_case, self.strip_accents, self.terms = lower_case, strip_accents, tuple(terms)
        ids = {token: number for number, token in enumerate(self.vocabulary)}
        self._check(ids, source)
        self.vocab_size = len(self.vocabulary)
        strips = lower_case if strip_accents is None else strip_accents
        self.rules = (lower_case, strips, sorted(self.terms))  # how a text becomes entries
        # [V] bool, pieces that continue a word of letters
        self.is_continuation = np.array([token.startswith("##") for token in self.vocabulary])
        self._ids_of_terms = {term: ids[term] for term in self.terms}
        longest_first = sorted(self.terms, key=len, reverse=True)
        # its group makes `split` give the terms between the other parts
        self._find_terms = re.compile(f"({'|'.join(map(re.escape, longest_first))})") if self.terms else None
        self.pad_id, self.unknown_id, self.cls_id, self.sep_id, self.mask_id = (
            ids[name] for name in SPECIAL_TOKENS
        )
        model = models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=100)
        self.library = tokenizers.Tokenizer(model)
        self.library.normalizer = normalizers.BertNormalizer(
            lowercase=lower_case, strip_accents=strip_accents
        )
        self.library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        self._table = self._character_table(ids)
        self._encode_run = lru_cache(maxsize=1 << 16)(self._encode_run_uncached)

    def _check(self, ids: dict[str, int], source: str) -> None:
        if len(ids) < len(self.vocabulary):
            repeated = [token for token, count in Counter(self.vocabulary).items() if count > 1]
            raise InputError(
                f"{len(repeated)} token(s) stand more than once in {source}, first {repeated[0]!r}: "
                "a token must have one id; remove the repeated lines"
            )
        if missing := [name for name in SPECIAL_TOKENS if name not in ids]:
            raise InputError(
                f"no {', '.join(missing)} in {source} ({len(ids):,} entries): masked-language-model training "
                f"needs {', '.join(SPECIAL_TOKENS)}; pass --tokenizer with a BERT or SentencePiece vocabulary"
            )
        if absent := [term for term in self.terms if term not in ids]:
            raise InputError(f"{len(absent)} domain term(s) are not in {source}, first {absent[0]!r}")

    def _character_table(self, ids: dict[str, int]) -> np.ndarray:
        """Give the id of every code point that is a token in any context, or _RUN, or _NOTHING."""
        table = np.full(_BEYOND, _RUN, dtype=np.int32)
        for first, beyond in _HAN_BLOCKS:
            table[first:beyond] = self.unknown_id
        for token, number in ids.items():
            if len(token) == 1 and ord(token) < _BEYOND and table[ord(token)] == self.unknown_id:
                table[ord(token)] = number
        marks = _split_marks()
        encodings = self.library.encode_batch(marks, add_special_tokens=False)
        for mark, encoding in zip(marks, encodings, strict=True):
            # the library encodes marks that decompose or vanish, in their context
            if len(encoding.ids) == 1 and unicodedata.normalize("NFD", mark) == mark:
                table[ord(mark)] = encoding.ids[0]
        table[[ord(space) for space in " \t\n\r\u3000"]] = _NOTHING
        return table

    def _encode_run_uncached(self, run: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        encoding = self.library.encode(run, add_special_tokens=False)
        return tuple(encoding.ids), tuple(start for start, _ in encoding.offsets)

    def encode(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Encode a text without special tokens; return ids and the characters they start at, [n] int64."""
        if self._find_terms is None:
            return self._encode_plain(text)
        ids: list[np.ndarray] = []
        starts: list[np.ndarray] = []
        begin = 0
        for number, part in enumerate(self._find_terms.split(text)):
            if number % 2:
                found = np.array([self._ids_of_terms[part]]), np.zeros(1, dtype=np.int64)
            else:
                found = self._encode_plain(part)
            ids.append(found[0])
            starts.append(found[1] + begin)
            begin += len(part)
        return np.concatenate(ids), np.concatenate(starts)

    def _encode_plain(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
        ids = np.where(codes < _BEYOND, self._table[np.minimum(codes, _BEYOND - 1)], _RUN).astype(np.int64)
        in_run = ids == _RUN
        alone = np.flatnonzero(ids >= 0)
        if not in_run.any():
            return ids[alone], alone
        edges = np.flatnonzero(np.diff(in_run, prepend=False, append=False))
        run_ids: list[int] = []
        run_starts: list[int] = []
        for begin, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            tokens, offsets = self._encode_run(text[begin:end])
            run_ids.extend(tokens)
            run_starts.extend([begin + offset for offset in offsets])
        starts = np.concatenate([alone, np.array(run_starts, dtype=np.int64)])
        order = np.argsort(starts, kind="stable")
        return np.concatenate([ids[alone], np.array(run_ids, dtype=np.int64)])[order], starts[order]

    def decode(self, ids: Iterable[int]) -> str:
        """Decode ids to readable text: `##` pieces joined, spaces only between Latin words."""
        text = ""
        for token in (self.vocabulary[number] for number in ids):
            if token.startswith("##") and len(token) > 2:
                text += token[2:]
                continue
            after_latin = text[-1:].isascii() and text[-1:].isalnum()
            text += f" {token}" if after_latin and token[0].isalnum() and token.isascii() else token
        return text

    def replacement_ids(self) -> np.ndarray:
        """List the ids for random replacements of masked tokens: no special token, no [unused] slot."""
        reserved = ("[unused", "<S>", "<T>", *SPECIAL_TOKENS)
        tokens = enumerate(self.vocabulary)
        return np.array([number for number, token in tokens if token and not token.startswith(reserved)])

    def save(self, folder: Path) -> None:
        """Write vocab.txt, tokenizer.json and tokenizer_config.json, as transformers reads them."""
        write_text(folder / "vocab.txt", "".join(f"{token}\n" for token in self.vocabulary))
        library = tokenizers.Tokenizer.from_str(self.library.to_str())
        library.add_special_tokens(list(SPECIAL_TOKENS))
        library.add_tokens([tokenizers.AddedToken(term, normalized=False) for term in self.terms])
        library.post_processor = processors.BertProcessing(("[SEP]", self.sep_id), ("[CLS]", self.cls_id))
        library.decoder = decoders.WordPiece()
        write_text(folder / "tokenizer.json", library.to_str(pretty=True))
        config: dict[str, object] = {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": self.lower_case,
            **SPECIAL_ROLES,
        }
        if self.strip_accents is not None:
            config["strip_accents"] = self.strip_accents
        if self.terms:
            config["domain_terms"] = list(self.terms)
        write_json(folder / "tokenizer_config.json", config)


def is_han(character: str) -> bool:
    """Whether the character is in one of the two usual blocks that BERT's tokenizer treats as Chinese."""
    return "\u4e00" <= character <= "\u9fff" or "\u3400" <= character <= "\u4dbf"


@cache
def _split_marks() -> list[str]:
    """List the marks that the library splits off as tokens."""
    # between letters nothing but a mark stands alone; its Unicode is older than Python's
    signs = [c for c in map(chr, range(0x21, 0x10000)) if c.isprintable() and not c.isalnum()]
    pieces = pre_tokenizers.BertPreTokenizer().pre_tokenize_str("a".join(signs))
    return [piece for piece, _ in pieces if len(piece) == 1 and piece != "a"]


def read_vocabulary(path: Path) -> list[str]:
    """Read the entries of a `vocab.txt`. Raises InputError for other files, and for blank lines inside it.

    One may be blank: SimBERT's published vocabularies have one where BERT's has a line separator.
    """
    try:
        tokens = path.read_text(encoding="utf-8-sig").split("\n")  # with Windows' byte-order mark or without
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text at byte {error.start}: not a vocab.txt") from None
    while tokens and not tokens[-1]:
        tokens.pop()
    blank = [line for line, token in enumerate(tokens, 1) if not token]
    if len(blank) > 1:
        raise InputError(
            f"{len(blank)} blank line(s) inside {path}, first at line {blank[0]}: ids after it are shifted"
        )
    return tokens


def train_wordpiece(
    texts: Iterable[str], vocab_size: int, on_notice: Callable[[str], object]
) -> WordPieceTokenizer:
    """Train a WordPiece vocabulary of at most `vocab_size` entries with the `tokenizers` library.

    It is a function of the words' counts. The library takes every character, however many; the rarest are
    left out here, with a notice. Raises InputError if the texts hold no character.
    """
    words = _count_words(texts)
    if not words:
        raise InputError("no vocabulary can be trained on this text: it holds no character")
    # the library numbers them in an order of chance, and decides by number between pairs as frequent
    continuations = sorted({f"##{character}" for word in words for character in word[1:]})
    library = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=[*SPECIAL_TOKENS, *continuations],
        show_progress=sys.stderr.isatty(),
    )
    library.train_from_iterator(_repeated(words), trainer)
    found = library.get_vocab()
    entries = sorted(found, key=found.__getitem__)
    if len(entries) > vocab_size:
        special = len(SPECIAL_TOKENS)
        counts = Counter[str]()
        for word, count in words.items():
            counts.update(dict.fromkeys(word, count))
        frequent = sorted(entries[special:], key=lambda entry: -counts[entry.removeprefix("##")])
        kept = set(frequent[: vocab_size - special])
        on_notice(
            f"the characters alone make {len(entries):,} entries: the {len(entries) - vocab_size:,} rarest "
            f"are left out; --vocab-size {len(entries)} has room for all"
        )
        entries = entries[:special] + [entry for entry in entries[special:] if entry in kept]
    return WordPieceTokenizer(entries)


def _count_words(texts: Iterable[str]) -> Counter[str]:
    """Count what BERT's tokenizer divides texts into before it looks for pieces."""
    normalizer, divider = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    runs, words = Counter[str](), Counter[str]()
    for text in texts:
        runs.update(normalizer.normalize_str(text).split())
    for run, count in runs.items():
        for word, _ in divider.pre_tokenize_str(run):
            words[word] += count
    return words


def _repeated(words: Counter[str]) -> Iterator[str]:
    """Repeat each word as often as it was counted, but a single character, of which nothing is learnt."""
    for word, count in words.items():
        if len(word) == 1:
            yield word
            continue
        for done in range(0, count, _REPEATED):
            yield " ".join([word] * min(_REPEATED, count - done))
