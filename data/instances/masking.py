"""Draw which tokens are masked and what replaces them: whole words and n-grams of words.

Devlin et al. 2019, section 3.1 (15%, 80/10/10); Cui et al. 2019 (whole words for Chinese). The objectives'
own rules are in `objectives`. A label is the plain token id. A draw is a pure function of (seed, epoch,
instance_id) by a counter-based hash: batches, workers and earlier draws do not matter.
T = tokens, S = sequences, W = words, K = stretches of words, G = groups (n-grams or spans) of words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from data.hashing import mix, random_bits, rebase, salt
from data.instances.cutting import take_ranges
from data.instances.objectives import OBJECTIVES, length_probabilities

BLOCK_TOKENS = 1 << 18  # drawn at once: more would leave the cache, fewer cost more in calls
# groups with a key below this multiple of the rate nearly always fill the budget; only they are sorted
_ENOUGH = 2.0
_PLACE, _FILL = 0, 1  # streams of random bits
_LAST_WORD = salt(2)


@dataclass(frozen=True, kw_only=True)
class MaskRule:
    """How many tokens are masked, and in what units."""

    rate: float = 0.15  # of the tokens that are not special
    objective: str = "albert"
    max_ngram: int = 3  # words masked together by "albert"; 1 is plain whole-word masking
    max_predictions: int | None = None  # most tokens masked in one sequence


@dataclass(frozen=True)
class SimilarWords:
    """For each word, the token ids of a similar word of the same length."""

    keys: np.ndarray  # [K] uint64 ascending, `word_keys` of the words
    offsets: np.ndarray  # [K+1]
    input_ids: np.ndarray  # [sum of lengths]


@dataclass(frozen=True)
class MaskVocabulary:
    """The parts of a vocabulary that masking needs."""

    vocab_size: int
    mask_id: int
    special_ids: np.ndarray  # never masked
    replacement_ids: np.ndarray  # random replacements are drawn from these
    similar: SimilarWords | None = None


class Masks(NamedTuple):
    positions: np.ndarray  # [n] int64, in 0..T-1, ascending
    labels: np.ndarray  # [n], the original ids
    replacements: np.ndarray  # [n], the ids put in their place
    groups: np.ndarray = np.empty(0, np.int64)  # [G], tokens masked together; not stored in shards


class _Block(NamedTuple):
    """Sequences that are drawn together."""

    input_ids: np.ndarray  # [T]
    word_starts: np.ndarray  # [T] bool
    firsts: np.ndarray  # [S], first token of each sequence
    keys: np.ndarray  # [S] uint64


class _Words(NamedTuple):
    """Words in stretches that begin at a special token or a sequence; a group stays in its stretch."""

    edges: np.ndarray  # [W+1], first token of each word, special tokens being words; T at the end
    firsts: np.ndarray  # [K+1], first word of each stretch; W at the end
    is_special: np.ndarray  # [K] bool, whether that word is a special token
    sequences: np.ndarray  # [K], the sequence of each stretch


class _Draws(NamedTuple):
    """The k-th draw of a stretch makes its k-th group; draws past its end make none."""

    bits: np.ndarray  # [W] uint64: the upper half orders the groups, the lower one gives their lengths
    lengths: np.ndarray  # [W] uint8, words
    reach: np.ndarray  # [W], words of this and all earlier draws
    stretches: np.ndarray  # [W]
    shift: np.ndarray  # [K], from a draw's reach to the last word + 1 of its group


class _Groups(NamedTuple):
    """Words that may be masked together."""

    words: np.ndarray  # [G], first word of each
    starts: np.ndarray  # [G], first token
    ends: np.ndarray  # [G], last token + 1
    sequences: np.ndarray  # [G]
    keys: np.ndarray  # [G] uint64, lower ones are masked first


def word_keys(input_ids: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Hash the token ids of each word, [W] uint64."""
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
    """Draw the masks of S packed sequences.

    input_ids [T], word_starts [T] bool (every special token and every sequence starts a word), cu_seqlens
    [S+1] (no sequence is empty), instance_ids [S] uint64. In each sequence the words between special tokens
    are cut into groups of drawn lengths; groups are taken in random order, word by word, until the next word
    would exceed rate * tokens (rounded). With n tokens left, a word of m is then taken with probability
    n / m: the rate is met on average, and longer words are masked hardly less (on laws 15.5% of words of one
    token, 14.2% of four). The first word is always masked. No more than `max_predictions` tokens are masked;
    a group whose first word is longer is skipped, so a sequence that has no other group has no mask.
    """
    keys = mix(instance_ids + salt(seed, epoch))
    probabilities = length_probabilities(rule.objective, rule.max_ngram)
    parts = [Masks(np.empty(0, np.int64), input_ids[:0], input_ids[:0])]
    first, S = 0, len(instance_ids)
    while first < S:
        end = int(np.searchsorted(cu_seqlens, cu_seqlens[first] + BLOCK_TOKENS, side="right")) - 1
        end = max(end, first + 1)
        begin, stop = int(cu_seqlens[first]), int(cu_seqlens[end])
        firsts = cu_seqlens[first:end] - begin
        block_keys = rebase(keys[first:end], firsts)
        block = _Block(input_ids[begin:stop], word_starts[begin:stop], firsts, block_keys)
        words = _find_words(block, vocabulary)
        draws = _draw(words, block.keys, probabilities)
        budget = _budgets(words, rule)
        groups = _find_groups(words, draws, budget, rule)
        most = rule.max_predictions or len(block.input_ids)
        spans = _choose(words, groups, budget, most, len(probabilities))
        part = _replace(block, spans, vocabulary, rule)
        parts.append(part._replace(positions=part.positions + begin))
        first = end
    return Masks(*map(np.concatenate, zip(*parts, strict=True)))


def _find_words(block: _Block, vocabulary: MaskVocabulary) -> _Words:
    T = len(block.input_ids)
    is_special = np.zeros(T, dtype=bool)
    for token in vocabulary.special_ids.tolist():  # there are few: faster than a table
        is_special |= block.input_ids == token
    is_first = np.zeros(T, dtype=bool)
    is_first[block.firsts] = True
    edges = np.flatnonzero(np.append(block.word_starts, True))
    stretches = np.flatnonzero((is_special | is_first).take(edges[:-1]))
    begins = edges[stretches]
    sequences = np.cumsum(is_first[begins]) - 1
    return _Words(edges, np.append(stretches, len(edges) - 1), is_special[begins], sequences)


def _draw(words: _Words, keys: np.ndarray, probabilities: np.ndarray) -> _Draws:
    firsts, counts = words.firsts[:-1], np.diff(words.firsts)
    bits = random_bits(np.repeat(keys[words.sequences], counts), words.edges[:-1], _PLACE)
    low = bits.astype(np.uint32)  # the lower half
    lengths = np.ones(len(bits), dtype=np.uint8)
    for bound in np.cumsum(probabilities)[:-1]:
        lengths += (low >= np.uint32(bound * 2**32)).view(np.uint8)
    special = firsts[words.is_special]
    lengths[special] = 1  # alone in a group
    bits[special] = np.iinfo(np.uint64).max  # that is never taken
    reach = np.cumsum(lengths, dtype=np.int64)
    stretches = np.repeat(np.arange(len(firsts)), counts)
    return _Draws(bits, lengths, reach, stretches, firsts + lengths[firsts] - reach[firsts])


def _budgets(words: _Words, rule: MaskRule) -> np.ndarray:
    """Count the tokens to mask in each sequence, [S]."""
    first_words = words.firsts[:-1] + words.is_special
    tokens = words.edges[words.firsts[1:]] - words.edges[first_words]
    budget = np.rint(np.bincount(words.sequences, tokens) * rule.rate).astype(np.int64)
    return np.clip(budget, 1, rule.max_predictions)


def _find_groups(words: _Words, draws: _Draws, budget: np.ndarray, rule: MaskRule) -> _Groups:
    """Find each sequence's groups with the lowest keys: enough to fill its budget, or all."""
    bound = np.uint64(min(_ENOUGH * rule.rate, 1.0) * (2**32 - 1)) << np.uint64(32)
    longest = rule.max_predictions
    lowest = _groups(words, draws, np.flatnonzero(draws.bits < bound), longest)
    is_short = np.bincount(lowest.sequences, lowest.ends - lowest.starts, len(budget)) < budget
    if not is_short.any():
        return lowest
    again = np.flatnonzero(is_short[words.sequences])
    begins = words.firsts[again] + words.is_special[again]
    rest = take_ranges(begins, words.firsts[again + 1] - begins)
    more = _groups(words, draws, rest[draws.bits[rest] >= bound], longest)
    return _Groups(*map(np.concatenate, zip(lowest, more, strict=True)))


def _groups(words: _Words, draws: _Draws, drawn: np.ndarray, longest: int | None) -> _Groups:
    """Find the groups of some draws, except those whose first word has more than `longest` tokens."""
    stretches = draws.stretches.take(drawn)
    ends = draws.reach.take(drawn)
    ends += draws.shift.take(stretches)
    starts = ends - draws.lengths.take(drawn)
    last = words.firsts[1:].take(stretches)
    edges, has_group = words.edges, starts < last
    if longest is not None:
        word = np.minimum(starts, len(edges) - 2)
        has_group &= edges.take(word + 1) - edges.take(word) <= longest
    inside = np.flatnonzero(has_group)
    starts, stretches = starts.take(inside), stretches.take(inside)
    ends = np.minimum(ends, last).take(inside)
    keys = draws.bits.take(drawn.take(inside)) >> np.uint64(32)
    return _Groups(starts, edges.take(starts), edges.take(ends), words.sequences.take(stretches), keys)


def _choose(words: _Words, groups: _Groups, budget: np.ndarray, most: int, longest: int) -> _Groups:
    """Choose groups of at most `longest` words in the order of their keys until the budget is spent.

    The last group of a sequence is cut after a word. At most `most` tokens are chosen. Ascending by place.
    """
    order = np.argsort(groups.sequences.astype(np.uint64) << np.uint64(32) | groups.keys, kind="stable")
    taken = np.concatenate([[0], np.cumsum((groups.ends - groups.starts).take(order))])
    counts = np.bincount(groups.sequences, minlength=len(budget))
    last = np.cumsum(counts)
    first = last - counts
    limit = taken[first] + budget
    fits = taken[1:] <= np.repeat(limit, counts)
    fitting = np.concatenate([[0], np.cumsum(fits)])
    too_long = first + fitting[last] - fitting[first]  # the first group in each sequence that does not fit
    is_cut = too_long < last
    too_long = too_long[is_cut]
    cut = order[too_long]
    left = limit[is_cut] - taken[too_long]
    room = left + most - budget[is_cut]
    ends = groups.ends.copy()
    ends[cut] = _cut(words, groups, cut, left, room, too_long == first[is_cut], longest)
    is_chosen = np.zeros(len(order), dtype=bool)
    is_chosen[order] = fits
    is_chosen[cut] = ends[cut] > groups.starts[cut]
    chosen = np.flatnonzero(is_chosen)
    chosen = chosen[np.argsort(groups.starts[chosen], kind="stable")]
    return _Groups(*(column.take(chosen) for column in groups._replace(ends=ends)))


def _cut(
    words: _Words,
    groups: _Groups,
    cut: np.ndarray,
    left: np.ndarray,
    room: np.ndarray,
    is_first: np.ndarray,
    longest: int,
) -> np.ndarray:
    """Return the ends [C] of the groups `cut`: after the words that fit into `left` tokens, and with the
    probability that spends what is then left on average after one more, if it fits into `room` tokens.

    The first group of a sequence keeps at least one word.
    """
    word, starts = groups.words[cut], groups.starts[cut]
    ends = np.where(is_first, words.edges[word + 1], starts)
    for number in range(1, longest):
        further = words.edges[np.minimum(word + number, len(words.edges) - 1)]
        np.copyto(ends, further, where=further <= starts + left)
    following = np.searchsorted(words.edges, ends)
    tokens = words.edges[np.minimum(following + 1, len(words.edges) - 1)] - ends
    is_taken = last_word_draw(groups.keys[cut]) * tokens < starts + left - ends
    return np.where(is_taken & (tokens <= starts + room - ends), ends + tokens, ends)


def last_word_draw(keys: np.ndarray) -> np.ndarray:
    """Draw from [0, 1) by a group's key whether the word that does not fit into the budget is masked."""
    return (mix(keys + _LAST_WORD) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _replace(block: _Block, spans: _Groups, vocabulary: MaskVocabulary, rule: MaskRule) -> Masks:
    input_ids = block.input_ids
    objective = OBJECTIVES[rule.objective]
    lengths = spans.ends - spans.starts
    positions = take_ranges(spans.starts, lengths)
    labels = input_ids.take(positions)
    bits = random_bits(np.repeat(block.keys.take(spans.sequences), lengths), positions, _FILL)
    kind = bits.astype(np.uint32)  # the lower half
    replacements = np.full(len(labels), vocabulary.mask_id, dtype=input_ids.dtype)
    # if one draw decides for several tokens, it is the first token's
    if objective.whole_spans:
        kind = np.repeat(kind[np.cumsum(lengths) - lengths], lengths)
    elif objective.similar_words:
        first = np.flatnonzero(block.word_starts[positions])
        of_word = np.diff(first, append=len(positions))
        kind = np.repeat(kind[first], of_word)
        random = _random_ids(bits, vocabulary).astype(input_ids.dtype)
        replacements = _similar(input_ids, positions[first], of_word, random, vocabulary.similar)
    other = np.flatnonzero(kind >= np.uint32(0.8 * 2**32))
    is_random = kind.take(other) < np.uint32(0.9 * 2**32)
    random, same = other[is_random], other[~is_random]
    replacements[random] = _random_ids(bits.take(random), vocabulary)
    replacements[same] = labels.take(same)
    return Masks(positions, labels, replacements, lengths)


def _random_ids(bits: np.ndarray, vocabulary: MaskVocabulary) -> np.ndarray:
    """Draw ids by the upper halves of the bits."""
    number = np.uint64(len(vocabulary.replacement_ids))
    drawn = (bits >> np.uint64(32)) * number >> np.uint64(32)
    return vocabulary.replacement_ids.take(drawn.astype(np.int64))


def _similar(
    input_ids: np.ndarray,
    starts: np.ndarray,
    lengths: np.ndarray,
    random: np.ndarray,
    similar: SimilarWords | None,
) -> np.ndarray:
    """Take each word's similar word, or random ids if it has none (Cui et al. 2020, section 3.2)."""
    if similar is None or not len(similar.keys):
        return random
    keys = word_keys(input_ids, starts, lengths)
    at = np.minimum(np.searchsorted(similar.keys, keys), len(similar.keys) - 1)
    has_similar = similar.keys[at] == keys
    filled = random.copy()
    first = np.cumsum(lengths) - lengths
    target = take_ranges(first[has_similar], lengths[has_similar])
    source = take_ranges(similar.offsets[at[has_similar]], lengths[has_similar])
    filled[target] = similar.input_ids[source]
    return filled
