from collections import Counter

import numpy as np
import pytest

from albert.batching import InstanceStream
from albert.evaluation import bigram_loss, count_neighbours, frequencies_of, token_vectors


@pytest.fixture(scope="module")
def stream(tea_shards):
    return InstanceStream(tea_shards, batch_tokens=600, held_out_share=0.3)


def test_pairs_are_counted_within_a_sequence_and_similar_contexts_bring_words_together(stream):
    expected = Counter()
    for instances, rows in stream.training_text():
        for row in rows:
            ids = instances.input_ids[instances.offsets[row] : instances.offsets[row + 1]].tolist()
            expected.update(zip(ids[:-2], ids[2:], strict=True))
    counts = count_neighbours(stream, stream.info.vocab_size)
    found = counts[1].todok()
    assert {tuple(map(int, pair)): count for pair, count in found.items()} == expected
    special = stream.info.vocabulary.special_ids
    vectors = token_vectors(counts, 24, special_ids=special, seed=0)
    lengths = np.linalg.norm(vectors, axis=1)
    assert not lengths[special].any() and set(np.round(lengths, 4)) <= {0, 1}
    assert np.array_equal(vectors, token_vectors(counts, 24, special_ids=special, seed=0))
    frequent = np.argsort(-frequencies_of(counts))[10:200]
    together = np.zeros(vectors.shape[:1] * 2, dtype=bool)
    for pairs in counts:
        together |= (pairs + pairs.T).toarray() > 2
    likeness, near = (vectors @ vectors.T)[np.ix_(frequent, frequent)], together[np.ix_(frequent, frequent)]
    assert likeness[near].mean() > likeness[~near].mean() + 0.05


def test_the_bigram_loss_is_that_of_a_normalised_model(stream):
    (counts,) = count_neighbours(stream, stream.info.vocab_size, window=1)
    mask_id = stream.info.vocabulary.mask_id
    held_out, pairs, p = stream.held_out(1500), counts.toarray(), frequencies_of([counts])
    losses = []
    for batch in stream.held_out_batches(1500):
        ids = batch.input_ids.tolist()
        for at, label in zip(*(each.tolist() for each in batch.masked()), strict=True):
            product = 1 / p
            for neighbour, seen in ((ids[at - 1], pairs[ids[at - 1]]), (ids[at + 1], pairs[:, ids[at + 1]])):
                known = 0 if neighbour == mask_id else seen.sum() / max(seen.sum() + (seen > 0).sum(), 1)
                product = product * ((1 - known) * p + known * seen / max(seen.sum(), 1))
            losses.append(-np.log(product[label] / product.sum()))
    assert bigram_loss(stream, held_out) == pytest.approx(np.mean(losses), rel=1e-6)
    assert np.mean(losses) < np.log(stream.info.vocab_size) - 2
