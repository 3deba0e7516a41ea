"""Cut documents into instances: [CLS] A [SEP] B [SEP], A and B adjacent sentences, half of them swapped.

Sentence-order prediction: Lan et al. 2020, section 3.1. Full sentences without a pair: Liu et al. 2019,
section 4.2. No token of a document is lost: a chunk ends before the sentence that would not fit, and a
sentence longer than a chunk is cut. No pair has a part of one: the comma at its end would tell the order.
Everything works on many documents at once.

T = tokens, P = pieces (sentences, or parts of long ones), D = documents, R = instances.
"""

from __future__ import annotations

from binascii import unhexlify
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from data.hashing import GOLDEN, salt, uniform
from data.instances.objectives import Objective

if TYPE_CHECKING:
    from data.tokenization import Tokenizer

IN_ORDER, SWAPPED, NO_ORDER = 0, 1, -1  # sop_label; NO_ORDER is null in a shard
SHORT_SEQUENCE_SHARE = 0.1  # share of chunks cut short (Devlin et al. 2019, appendix A.2)
SHORTEST_CHUNK = 8  # least target of a short chunk, in tokens
_CLAUSE_MARKS = tuple(map(ord, "，,、：:"))


@dataclass(frozen=True, slots=True)
class TokenizedDocuments:
    """Documents one after the other."""

    input_ids: np.ndarray  # [T]
    word_starts: np.ndarray  # [T] bool
    cuts: np.ndarray  # [C], the tokens at which sentences were cut
    pieces: np.ndarray  # [P+1], the token each piece begins at, and T
    first_piece: np.ndarray  # [D+1], the piece each document begins with, and P


@dataclass(frozen=True, slots=True)
class Instances:
    """Instances one after the other."""

    instance_ids: np.ndarray  # [R] uint64
    documents: np.ndarray  # [R], number of its document; of several, the first
    input_ids: np.ndarray  # [T]
    word_starts: np.ndarray  # [T] bool; special tokens count as words
    cu_seqlens: np.ndarray  # [R+1]
    segment_b_start: np.ndarray  # [R], index of B's first token; 0 if there is no B
    sop_labels: np.ndarray  # [R]

    def __len__(self) -> int:
        return len(self.instance_ids)

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.cu_seqlens)


def document_keys(doc_ids: str | memoryview) -> np.ndarray:
    """Turn documents' ids, 16 hex digits each without separators, into numbers, [D] uint64.

    >>> document_keys("00000000000000ff").tolist()
    [255]
    """
    return np.frombuffer(unhexlify(doc_ids), dtype=">u8").astype(np.uint64)


def take_ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Concatenate ranges of indices: starts[i], starts[i] + 1, .., `lengths[i]` of them.

    >>> take_ranges(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    ends = np.cumsum(lengths)
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(ends[-1] if len(ends) else 0)


def tokenize_documents(
    text: str, word_lengths: np.ndarray, sentences: np.ndarray, tokenizer: Tokenizer, max_piece: int
) -> TokenizedDocuments:
    """Tokenise documents and find word starts and pieces.

    `text` holds their sentences, a line end after each; `word_lengths` [w] the characters of its words, with
    line ends as words; `sentences` [D] each document's number of lines. Words that share a token are one, as
    are those that WordPiece's `##` pieces join. A sentence of more than `max_piece` tokens is cut after a
    clause mark in the second half of a piece, else between words, else anywhere.
    """
    ids, starts = tokenizer.encode(text)
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    begins_word = np.zeros(len(codes), dtype=bool)
    begins_word[np.cumsum(word_lengths) - word_lengths] = True
    word_starts = begins_word[starts] & (np.diff(starts, prepend=-1) > 0) & ~tokenizer.is_continuation[ids]
    is_unknown = ids == tokenizer.unknown_id
    word_starts |= is_unknown  # a special token is a word by itself
    word_starts[1:] |= is_unknown[:-1]
    line_starts = np.concatenate([[0], np.flatnonzero(codes == 10) + 1])
    lines = np.searchsorted(starts, line_starts)  # [lines+1], first token of each
    first_line = np.concatenate([[0], np.cumsum(sentences)])
    has_token = np.diff(lines) > 0  # a line without a token is no piece
    before = np.concatenate([[0], np.cumsum(has_token)])
    pieces = np.append(lines[:-1][has_token], len(ids))
    first_piece = before[first_line]
    whole = pieces
    if len(pieces) > 1 and np.diff(pieces).max() > max_piece:
        is_mark = np.isin(codes[starts], _CLAUSE_MARKS)
        pieces, first_piece = _cut_long(pieces, first_piece, word_starts, is_mark, max_piece)
    return TokenizedDocuments(ids, word_starts, np.setdiff1d(pieces, whole), pieces, first_piece)


def _cut_long(
    pieces: np.ndarray, first_piece: np.ndarray, word_starts: np.ndarray, is_mark: np.ndarray, max_piece: int
) -> tuple[np.ndarray, np.ndarray]:
    """Cut pieces to at most `max_piece` tokens; return their bounds and each document's first piece."""
    long = np.flatnonzero(np.diff(pieces) > max_piece)
    cuts: list[int] = []
    after: list[int] = []  # the long piece that each cut divides
    for number in long.tolist():
        begin, end = int(pieces[number]), int(pieces[number + 1])
        while end - begin > max_piece:
            half = begin + max_piece // 2
            after_mark = np.flatnonzero(is_mark[half : begin + max_piece])
            at_word = np.flatnonzero(word_starts[begin + 1 : begin + max_piece + 1])
            if len(after_mark):
                begin = half + int(after_mark[-1]) + 1
            elif len(at_word):
                begin = begin + 1 + int(at_word[-1])
            else:
                begin = begin + max_piece
            cuts.append(begin)
            after.append(number)
    more = first_piece + np.searchsorted(after, first_piece)
    return np.insert(pieces, np.array(after) + 1, cuts), more


def build_instances(
    documents: TokenizedDocuments,
    doc_ids: Sequence[str],
    tokenizer: Tokenizer,
    objective: Objective,
    *,
    max_seq_length: int,
    sop: bool | np.ndarray,
    copy: int = 0,
    seed: int = 0,
) -> Instances:
    """Cut documents into instances, in order; a document's are a pure function of it and the arguments.

    Each chunk of whole pieces aims at `max_seq_length` tokens including special ones, one in ten at fewer.
    With `sop`, or where it is true for a document [D], a chunk of whole sentences is split into A and B
    beside a random token's sentence, and swapped with probability a half; any other chunk is a single segment
    without a label.

    An objective that packs fills its chunks across the ends of documents; such a chunk counts as of its first
    document. Give it documents by ascending side: then a chunk with part of a held-out document is held out,
    and few chunks hold documents of both kinds.
    """
    if objective.packs:
        documents = _separated(documents, tokenizer.sep_id)
    of_documents = document_keys("".join(doc_ids))
    keys = of_documents + salt(seed, copy)
    first_piece = documents.first_piece
    if objective.packs:  # as if they were one document
        keys, first_piece, sop = keys[:1], first_piece[[0, -1]], False
    room = max_seq_length - 3
    has_order = np.broadcast_to(sop, len(keys))
    backward = has_order & (uniform(keys, np.zeros(len(keys), np.int64), 4) < 0.5)
    first, last, document, number = _chunks_both_ways(documents.pieces, first_piece, keys, room, backward)
    begin, end = documents.pieces[first], documents.pieces[last]
    split, after = (uniform(keys[document], number, draw) for draw in (2, 5))
    middle = _middles(documents, first, last, split, after < 0.5)
    middle = np.where(has_order[document], middle, end)
    swapped = uniform(keys[document], number, 3) < 0.5
    labels = np.where(middle < end, np.where(swapped, SWAPPED, IN_ORDER), NO_ORDER)
    document = np.searchsorted(documents.first_piece, first, side="right") - 1  # packed, the first of several
    numbers = number.astype(np.uint64) + (np.uint64(copy) << np.uint64(32))
    instance_ids = of_documents[document] + numbers * GOLDEN
    return _assemble(documents, tokenizer, (begin, middle, end), labels, document, instance_ids)


def _middles(
    documents: TokenizedDocuments, first: np.ndarray, last: np.ndarray, split: np.ndarray, after: np.ndarray
) -> np.ndarray:
    """Find the token at which each chunk is split into two segments, or its end if it cannot be.

    It is split before or after the sentence with a random token, mostly a long one, as one is at an end of
    the chunk: else the sentences at the segments' ends would tell the order by their lengths.
    """
    pieces = documents.pieces
    begin, end = pieces[first], pieces[last]
    token = begin + (split * (end - begin)).astype(np.int64)
    piece = np.searchsorted(pieces, token, side="right") - 1 + after
    middle = pieces[np.clip(piece, first + 1, np.maximum(last - 1, first + 1))]
    is_cut = np.isin([begin, middle, end], documents.cuts).any(0)
    return np.where(is_cut, end, middle)


def _separated(documents: TokenizedDocuments, sep_id: int) -> TokenizedDocuments:
    """End every document with a separator (Liu et al. 2019, section 4.2)."""
    first_piece = documents.first_piece
    ends = documents.pieces[first_piece[1:][np.diff(first_piece) > 0]]
    return replace(
        documents,
        input_ids=np.insert(documents.input_ids, ends, sep_id),
        word_starts=np.insert(documents.word_starts, ends, True),
        pieces=documents.pieces + np.searchsorted(ends, documents.pieces, side="right"),
    )


def _chunks_both_ways(
    pieces: np.ndarray, first_piece: np.ndarray, keys: np.ndarray, room: int, backward: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Find every chunk as `_chunks` does, those of the documents `backward` [D] from their ends.

    A chunk begins with the sentence that did not fit into the one before, so mostly with a long one, and its
    longer segment would tell the order of a pair. In half of the documents it ends with that sentence.
    """
    forward = _chunks(pieces, first_piece, keys, room, ~backward)
    mirrored = pieces[-1] - pieces[::-1], len(pieces) - 1 - first_piece[::-1], keys[::-1]
    begin, end, document, number = _chunks(*mirrored, room, backward[::-1])
    P, D = len(pieces) - 1, len(keys)
    both = zip(forward, (P - end, P - begin, D - 1 - document, number), strict=True)
    first, last, document, number = map(np.concatenate, both)
    order = np.argsort(first, kind="stable")
    return first[order], last[order], document[order], number[order]


def _chunks(
    pieces: np.ndarray, first_piece: np.ndarray, keys: np.ndarray, room: int, chosen: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Find the first piece, end piece, document and number of the chunks of the documents `chosen` [D].

    Round k finds the k-th chunk of every document that has one.
    """
    rounds = [(np.empty(0, dtype=np.int64),) * 4]
    document = np.flatnonzero((np.diff(first_piece) > 0) & chosen)
    begin = first_piece[document]
    number = 0
    while len(document):
        key = keys[document]
        numbers = np.full(len(document), number)
        is_short = uniform(key, numbers, 0) < SHORT_SEQUENCE_SHARE
        shortest = min(SHORTEST_CHUNK, room)
        short = shortest + (uniform(key, numbers, 1) * (room + 1 - shortest)).astype(np.int64)
        target = np.where(is_short, short, room)
        end = np.searchsorted(pieces, pieces[begin] + target, side="right") - 1
        end = np.minimum(np.maximum(end, begin + 1), first_piece[document + 1])
        rounds.append((begin, end, document, numbers))
        has_more = end < first_piece[document + 1]
        document, begin = document[has_more], end[has_more]
        number += 1
    first, last, document, numbers = map(np.concatenate, zip(*rounds, strict=True))
    return first, last, document, numbers


def _assemble(
    documents: TokenizedDocuments,
    tokenizer: Tokenizer,
    bounds: tuple[np.ndarray, np.ndarray, np.ndarray],
    labels: np.ndarray,
    document: np.ndarray,
    instance_ids: np.ndarray,
) -> Instances:
    begin, middle, end = bounds
    # the separator of a chunk's last document is the chunk's own
    end = end - (documents.input_ids[end - 1] == tokenizer.sep_id)
    middle = np.minimum(middle, end)
    has_b = end > middle
    swapped = labels == SWAPPED
    a, a_length = np.where(swapped, middle, begin), np.where(swapped, end - middle, middle - begin)
    b, b_length = np.where(swapped, begin, middle), np.where(swapped, middle - begin, end - middle)
    lengths = a_length + b_length + 2 + has_b
    cu_seqlens = np.concatenate([[0], np.cumsum(lengths)])
    at = cu_seqlens[:-1]
    input_ids = np.full(cu_seqlens[-1], tokenizer.sep_id, dtype=documents.input_ids.dtype)
    word_starts = np.ones(cu_seqlens[-1], dtype=bool)
    input_ids[at] = tokenizer.cls_id
    separator = at + 1 + a_length
    # A and B of each instance in turn, so that a single copy fills all of them
    starts = np.stack([a, b], axis=1).ravel()
    counts = np.stack([a_length, b_length], axis=1).ravel()
    places = np.stack([at + 1, separator + 1], axis=1).ravel()
    source, target = take_ranges(starts, counts), take_ranges(places, counts)
    input_ids[target] = documents.input_ids[source]
    word_starts[target] = documents.word_starts[source]
    # a chunk may begin inside a long word: there it starts a word; B begins with a sentence, so with a word
    word_starts[at + 1] = True
    return Instances(
        instance_ids,
        document,
        input_ids,
        word_starts,
        cu_seqlens,
        np.where(has_b, separator + 1 - at, 0),
        labels,
    )
