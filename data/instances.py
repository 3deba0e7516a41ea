"""Training instances of a document: [CLS] A [SEP] B [SEP], A and B adjacent sentences, half of them swapped.

Sentence-order prediction: Lan et al. 2020, section 3.1. An instance never spans two documents, and no token
of a document is lost: a chunk closes before the sentence that would not fit, and a sentence too long by
itself is cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from data.tokenization import Tokenizer


IN_ORDER, SWAPPED, NO_ORDER = 0, 1, -1  # sop_label; NO_ORDER is null in a shard
SHORT_SEQUENCE_SHARE = 0.1  # of chunks are cut short (Devlin et al. 2019, appendix A.2)
SHORTEST_CHUNK = 8  # tokens a short chunk aims at, at least
_CLAUSE_MARKS = "，、：,:"


@dataclass(frozen=True, slots=True)
class TokenizedDocument:
    doc_id: str
    input_ids: np.ndarray  # [n]
    word_starts: np.ndarray  # [n] bool
    pieces: np.ndarray  # [p+1], where sentences (or parts of long ones) begin among the tokens, and n


@dataclass(frozen=True, slots=True)
class Instance:
    instance_id: int  # uint64
    doc_id: str
    input_ids: np.ndarray  # [n]
    word_starts: np.ndarray  # [n] bool; special tokens count as words
    segment_b_start: int  # index of B's first token; 0 when there is no B
    sop_label: int


def tokenize_document(
    doc_id: str, sentences: Sequence[Sequence[str]], tokenizer: Tokenizer, max_piece: int
) -> TokenizedDocument:
    """Token ids and word starts of a document given as the words of its sentences.

    A sentence of more than `max_piece` tokens is cut into pieces, after a clause mark where there is one in
    the second half of the piece, else between words, else (one word longer than a piece) anywhere.
    """
    lines = ["".join(words) for words in sentences]
    ids, starts = tokenizer.encode("\n".join(lines))
    words_of_characters = np.array(
        word_index([word for words in sentences for word in (*words, "\n")]), dtype=np.int64
    )
    word = words_of_characters[starts]
    word_starts = np.diff(word, prepend=-1) != 0
    line_starts = np.array(list(accumulate((len(line) + 1 for line in lines), initial=0)))
    pieces = np.searchsorted(starts, line_starts)
    pieces = np.unique(pieces)  # a line without a token has no piece
    if len(pieces) > 1 and np.diff(pieces).max() > max_piece:
        text = "\n".join(lines)
        is_mark = np.array([text[start] in _CLAUSE_MARKS for start in starts])
        pieces = np.array(_cut_long(pieces.tolist(), word_starts, is_mark, max_piece))
    return TokenizedDocument(doc_id, ids, word_starts, pieces)


def word_index(words: list[str]) -> list[int]:
    """For every character of the sentence, the number of its word.

    >>> word_index(["语言", "模型"])
    [0, 0, 1, 1]
    """
    return [number for number, word in enumerate(words) for _ in word]


def _cut_long(pieces: list[int], word_starts: np.ndarray, is_mark: np.ndarray, max_piece: int) -> list[int]:
    """Piece bounds with none further apart than `max_piece`."""
    bounds = pieces[:1]
    for end in pieces[1:]:
        while end - bounds[-1] > max_piece:
            begin = bounds[-1]
            window = slice(begin + max_piece // 2, begin + max_piece)
            after_mark = np.flatnonzero(is_mark[window])
            at_word = np.flatnonzero(word_starts[begin + 1 : begin + max_piece + 1])
            if len(after_mark):
                bounds.append(window.start + int(after_mark[-1]) + 1)
            elif len(at_word):
                bounds.append(begin + 1 + int(at_word[-1]))
            else:
                bounds.append(begin + max_piece)
        bounds.append(end)
    return bounds


def build_instances(
    document: TokenizedDocument,
    tokenizer: Tokenizer,
    *,
    max_seq_length: int,
    sop: bool,
    copy: int = 0,
    seed: int = 0,
) -> list[Instance]:
    """Instances of one document, in order; a pure function of the arguments.

    Each chunk of whole pieces aims at `max_seq_length` tokens with its special ones, one in ten at a shorter
    length. With `sop` a chunk of two or more pieces is split at a random one into A and B and swapped with
    probability a half; any other chunk is a single segment without a label.
    """
    rng = np.random.default_rng([seed, copy, int(document.doc_id, 16)])
    pieces = document.pieces
    room = max_seq_length - 3
    base = np.uint64(int(document.doc_id, 16))
    instances = []
    begin, last = 0, len(pieces) - 1
    while begin < last:
        target = room
        if rng.random() < SHORT_SEQUENCE_SHARE:
            target = int(rng.integers(min(SHORTEST_CHUNK, room), room + 1))
        end = int(np.searchsorted(pieces, pieces[begin] + target, side="right")) - 1
        end = min(max(end, begin + 1), last)
        middle, label = end, NO_ORDER
        if sop and end - begin >= 2:
            middle = int(rng.integers(begin + 1, end))
            label = SWAPPED if rng.random() < 0.5 else IN_ORDER
        segments = [(pieces[begin], pieces[middle]), (pieces[middle], pieces[end])]
        number = np.uint64(len(instances) + (copy << 32))
        instances.append(
            _assemble(
                document, tokenizer, segments[::-1] if label == SWAPPED else segments, label, base, number
            )
        )
        begin = end
    return instances


def _assemble(
    document: TokenizedDocument,
    tokenizer: Tokenizer,
    segments: list[tuple[int, int]],
    label: int,
    base: np.uint64,
    number: np.uint64,
) -> Instance:
    (a, a_end), (b, b_end) = segments
    has_b = b_end > b
    length = (a_end - a) + (b_end - b) + (3 if has_b else 2)
    ids = np.empty(length, dtype=np.int64)
    word_starts = np.ones(length, dtype=bool)
    separator = a_end - a + 1
    ids[0], ids[separator], ids[-1] = tokenizer.cls_id, tokenizer.sep_id, tokenizer.sep_id
    ids[1:separator], word_starts[1:separator] = document.input_ids[a:a_end], document.word_starts[a:a_end]
    word_starts[1] = True
    if has_b:
        ids[separator + 1 : -1] = document.input_ids[b:b_end]
        word_starts[separator + 1 : -1] = document.word_starts[b:b_end]
        word_starts[separator + 1] = True
    with np.errstate(over="ignore"):
        instance_id = int(base + number * np.uint64(0x9E3779B97F4A7C15))
    return Instance(instance_id, document.doc_id, ids, word_starts, int(separator + 1) if has_b else 0, label)
