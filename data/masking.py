"""Which tokens are masked and what stands in their place: whole words and n-grams of them.

Devlin et al. 2019, section 3.1 (15%, 80/10/10); Cui et al. 2019 (whole words for Chinese). What the
objectives add is in `data.objectives`. A label is the plain token id. A draw is a pure function of (seed,
epoch, instance_id) by a counter-based hash, so it does not depend on how instances are batched, on workers,
or on what was drawn before. T = tokens, S = sequences, W = words, G = groups (n-grams or spans) of words.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from data.hashing import mix, random_bits, salt
from data.instances import take_ranges
from data.objectives import find_objective, length_probabilities

_BLOCK_TOKENS = 1 << 16  # drawn at once: fits the cache, and a group's number fits 16 bits
# groups with a key below this many times the rate nearly always hold the budget, and only they are sorted
_ENOUGH = 2.0
_PLACE, _FILL = 0, 1  # streams of random bits


@dataclass(frozen=True, kw_only=True)
class MaskRule:
    """How many tokens are masked, and in what units."""

    rate: float = 0.15  # of the tokens that are not special
    objective: str = "albert"
    max_ngram: int = 3  # words masked together by "albert"; 1 is plain whole-word masking
    max_predictions: int | None = None  # at most so many tokens of one sequence


@dataclass(frozen=True)
class SimilarWords:
    """For words, as many token ids that stand for a similar word of the same length."""

    keys: np.ndarray  # [K] uint64 ascending, `word_keys` of the words
    offsets: np.ndarray  # [K+1]
    input_ids: np.ndarray  # [sum of lengths]


@dataclass(frozen=True)
class MaskVocabulary:
    """What masking has to know of a vocabulary."""

    vocab_size: int
    mask_id: int
    special_ids: np.ndarray  # never masked
    replacement_ids: np.ndarray  # what a random replacement is drawn from
    similar: SimilarWords | None = None

    @cached_property
    def is_special(self) -> np.ndarray:
        table = np.zeros(self.vocab_size, dtype=bool)
        table[self.special_ids] = True
        return table


class Masks(NamedTuple):
    positions: np.ndarray  # [n] int64, in 0..T-1, ascending
    labels: np.ndarray  # [n], the ids that stood there
    replacements: np.ndarray  # [n], the ids that stand there now


class _Words(NamedTuple):
    """Words that may be masked."""

    starts: np.ndarray  # [W], first token of each
    lengths: np.ndarray  # [W], tokens
    counts: np.ndarray  # [S], words of each sequence
    sequences: np.ndarray  # [W]
    ends: np.ndarray  # last word + 1 of each stretch between special tokens; no group leaves one


def word_keys(input_ids: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """A hash of the token ids of each word, [W] uint64."""
    if not len(starts):
        return np.empty(0, dtype=np.uint64)
    tokens = input_ids[take_ranges(starts, lengths)].astype(np.uint64)
    first = np.cumsum(lengths) - lengths
    place = np.arange(len(tokens)) - np.repeat(first, lengths)
    tokens += (place.astype(np.uint64) + np.uint64(1)) << np.uint64(32)
    return np.add.reduceat(mix(tokens), first)


def draw_masks(
    input_ids: np.ndarray,
    word_starts: np.ndarray,
    cu_seqlens: np.ndarray,
    instance_ids: np.ndarray,
    vocabulary: MaskVocabulary,
    rule: MaskRule,
    *,
    seed: int,
    epoch: int,
) -> Masks:
    """Masks of S packed sequences, at most 65,535 tokens each.

    input_ids [T], word_starts [T] bool (every special token starts a word), cu_seqlens [S+1], instance_ids
    [S] uint64. In each sequence the words between special tokens are cut into groups of drawn lengths; groups
    are taken in random order, word by word, until the next word would pass rate * tokens (rounded, at least
    1) or `max_predictions`. At least one word is masked wherever there is one.
    """
    keys = mix(instance_ids + salt(seed, epoch))
    parts: list[Masks] = []
    first, S = 0, len(instance_ids)
    while first < S:
        end = int(np.searchsorted(cu_seqlens, cu_seqlens[first] + _BLOCK_TOKENS, side="right")) - 1
        end = max(end, first + 1)
        begin, stop = int(cu_seqlens[first]), int(cu_seqlens[end])
        part = _draw_block(
            input_ids[begin:stop],
            word_starts[begin:stop],
            cu_seqlens[first : end + 1] - begin,
            keys[first:end],
            vocabulary,
            rule,
        )
        parts.append(part._replace(positions=part.positions + begin))
        first = end
    if not parts:
        return Masks(np.empty(0, np.int64), input_ids[:0], input_ids[:0])
    return Masks(*map(np.concatenate, zip(*parts, strict=True)))


def _find_words(
    input_ids: np.ndarray, word_starts: np.ndarray, cu_seqlens: np.ndarray, vocabulary: MaskVocabulary
) -> _Words:
    edges = np.flatnonzero(word_starts)
    special = vocabulary.is_special[input_ids[edges]]
    lengths = np.empty(len(edges), dtype=np.int64)
    np.subtract(edges[1:], edges[:-1], out=lengths[:-1])
    lengths[-1:] = len(input_ids) - edges[-1:]
    is_word = ~special
    starts, lengths = edges[is_word], lengths[is_word]
    counts = np.diff(np.searchsorted(starts, cu_seqlens))
    sequences = np.repeat(np.arange(len(counts)), counts)
    # words before each special token; where several stand in a row the stretch between them is empty
    before = np.flatnonzero(special)
    before -= np.arange(len(before))
    ends = np.append(before, len(starts))
    return _Words(starts, lengths, counts, sequences, ends[np.diff(ends, prepend=0) > 0])


def _group(words: _Words, bits: np.ndarray, probabilities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """First words of the groups [G], and the random bits of each.

    The k-th draw of a stretch is the length of its k-th group; the last one may be cut.
    """
    if len(probabilities) == 1:
        return np.arange(len(words.starts)), bits
    low = bits.astype(np.uint32)  # the lower half
    lengths = np.ones(len(low), dtype=np.int64)
    for bound in np.cumsum(probabilities)[:-1]:
        lengths += low >= np.uint32(bound * 2**32)
    inside = np.diff(words.ends, prepend=0)
    firsts = words.ends - inside
    starts = np.cumsum(lengths)
    starts -= lengths
    starts += np.repeat(firsts - starts[firsts], inside)
    drawn = np.flatnonzero(starts < np.repeat(words.ends, inside))
    return starts[drawn], bits[drawn]


def _draw_block(
    input_ids: np.ndarray,
    word_starts: np.ndarray,
    cu_seqlens: np.ndarray,
    keys: np.ndarray,
    vocabulary: MaskVocabulary,
    rule: MaskRule,
) -> Masks:
    words = _find_words(input_ids, word_starts, cu_seqlens, vocabulary)
    if not len(words.starts):
        return Masks(np.empty(0, np.int64), input_ids[:0], input_ids[:0])
    places = words.starts - np.repeat(cu_seqlens[:-1], words.counts)
    bits = random_bits(np.repeat(keys, words.counts), places, _PLACE)
    groups, bits = _group(words, bits, length_probabilities(rule.objective, rule.max_ngram))
    chosen = _choose(words, groups, (bits >> np.uint64(32)).astype(np.uint32), rule)
    return _replace(input_ids, cu_seqlens, keys, vocabulary, rule, words, groups, chosen)


def _budgets(words: _Words, rule: MaskRule) -> np.ndarray:
    """Tokens to be masked in each sequence, [S]."""
    total = np.concatenate([[0], np.cumsum(words.lengths)])
    ends = np.cumsum(words.counts)
    tokens = total[ends] - total[ends - words.counts]
    budget = np.maximum(np.rint(tokens * rule.rate).astype(np.int64), 1)
    return budget if rule.max_predictions is None else np.minimum(budget, rule.max_predictions)


def _choose(words: _Words, groups: np.ndarray, key: np.ndarray, rule: MaskRule) -> np.ndarray:
    """The words to mask, ascending: groups in the order of their keys, as far as the budget goes."""
    budget = _budgets(words, rule)
    low = key < np.uint32(min(_ENOUGH * rule.rate, 1.0) * (2**32 - 1))
    chosen, short = _take(words, groups, key, np.flatnonzero(low), budget)
    if short.any():
        again = short[words.sequences[groups]]
        chosen = chosen[~short[words.sequences[chosen]]]
        chosen = np.concatenate([chosen, _take(words, groups, key, np.flatnonzero(again), budget)[0]])
    chosen.sort()
    return chosen


def _take(
    words: _Words, groups: np.ndarray, key: np.ndarray, tried: np.ndarray, budget: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Words of the groups `tried` that the budget allows, and which sequences [S] would have taken more."""
    starts = groups[tried]
    # one integer to sort by sequence, then key, with the group's place among those tried in its low bits
    packed = words.sequences[starts].astype(np.uint64) << np.uint64(48)
    packed |= key[tried].astype(np.uint64) << np.uint64(16)
    packed |= np.arange(len(tried), dtype=np.uint64)
    packed.sort()
    order = (packed & np.uint64(0xFFFF)).astype(np.int64)
    ends = np.append(groups, len(words.starts))[tried + 1]
    candidates = take_ranges(starts[order], (ends - starts)[order])
    sequence = words.sequences[candidates]
    lengths = words.lengths[candidates]
    taken = np.cumsum(lengths)
    firsts = np.flatnonzero(np.diff(sequence, prepend=-1))
    inside = np.diff(firsts, append=len(candidates))
    taken -= np.repeat(taken[firsts] - lengths[firsts], inside)
    fits = taken <= budget[sequence]
    fits[firsts] = True  # a first word longer than the budget is masked all the same
    reached = np.zeros(len(budget), dtype=np.int64)
    reached[sequence[firsts]] = taken[firsts + inside - 1]
    return candidates[fits], (reached < budget) & (words.counts > 0)


def _replace(
    input_ids: np.ndarray,
    cu_seqlens: np.ndarray,
    keys: np.ndarray,
    vocabulary: MaskVocabulary,
    rule: MaskRule,
    words: _Words,
    groups: np.ndarray,
    chosen: np.ndarray,
) -> Masks:
    objective = find_objective(rule.objective)
    lengths = words.lengths[chosen]
    positions = take_ranges(words.starts[chosen], lengths)
    labels = input_ids[positions]
    sequence = np.repeat(words.sequences[chosen], lengths)
    bits = random_bits(keys[sequence], positions - cu_seqlens[sequence], _FILL)
    choice = ((bits >> np.uint64(32)) * np.uint64(len(vocabulary.replacement_ids))) >> np.uint64(32)
    random = vocabulary.replacement_ids[choice.astype(np.int64)].astype(input_ids.dtype)
    if objective.similar_words or objective.whole_spans:
        # one decision for the word, or for all words masked together: that of its first token
        unit = words.starts[chosen]
        if objective.whole_spans:
            unit = words.starts[groups[np.searchsorted(groups, chosen, side="right") - 1]]
        of_word = words.sequences[chosen]
        deciding = random_bits(keys[of_word], unit - cu_seqlens[of_word], _FILL)
        bits = np.repeat(deciding, lengths)
    kind = bits.astype(np.uint32)  # the lower half
    hidden = np.full(len(labels), vocabulary.mask_id, dtype=input_ids.dtype)
    if objective.similar_words:
        hidden = _similar(input_ids, words.starts[chosen], lengths, random, vocabulary.similar)
    replacements = np.where(
        kind < np.uint32(0.8 * 2**32), hidden, np.where(kind < np.uint32(0.9 * 2**32), random, labels)
    )
    return Masks(positions, labels, replacements)


def _similar(
    input_ids: np.ndarray,
    starts: np.ndarray,
    lengths: np.ndarray,
    random: np.ndarray,
    similar: SimilarWords | None,
) -> np.ndarray:
    """Ids of the words' similar ones; random ones for a word without (Cui et al. 2020, section 3.2)."""
    if similar is None or not len(similar.keys):
        return random
    wanted = word_keys(input_ids, starts, lengths)
    at = np.minimum(np.searchsorted(similar.keys, wanted), len(similar.keys) - 1)
    found = similar.keys[at] == wanted
    filled = random.copy()
    first = np.cumsum(lengths) - lengths
    target = take_ranges(first[found], lengths[found])
    filled[target] = similar.input_ids[take_ranges(similar.offsets[at[found]], lengths[found])]
    return filled
