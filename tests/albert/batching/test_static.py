from dataclasses import asdict, replace

import pytest
import torch

from albert.batching import Shape, flatten, pad, unflatten, weights_of
from albert.model import Batch, pack
from tests.albert.model.test_encoder import random_model, with_dropout

SHAPE = Shape(tokens=40, sequences=7, masked=6, longest=16, is_ordered=True)


def make(*, is_ordered: bool = True) -> Batch:
    batch = pack(map(range, (5, 7), (15, 10)))
    masked = {"masked_index": torch.tensor([1, 9, 11]), "masked_labels": torch.tensor([6, 29, 0])}
    return replace(batch, **masked, sop_labels=torch.tensor([0, 1]) if is_ordered else None)


@pytest.mark.parametrize("is_ordered", [True, False])
def test_a_batch_comes_out_of_its_buffer_as_it_went_in(is_ordered):
    batch = make(is_ordered=is_ordered)
    buffer = flatten(batch, [0.3, 1e-9])
    assert torch.equal(weights_of(buffer), torch.tensor([0.3, 1e-9]))
    got = unflatten(buffer, Shape.of(batch))
    torch.testing.assert_close(asdict(got), asdict(batch), rtol=0, atol=0)


@pytest.mark.parametrize(
    "layout, norm, p", [("google", "post", 0), ("bright", "pre", 0.1), ("bert", "post", 0.1)]
)
@pytest.mark.parametrize("is_ordered", [True, False])
def test_losses_and_gradients_are_the_same_in_any_shape(layout, norm, p, is_ordered):
    """With dropout, real tokens draw the same numbers."""
    model = random_model(with_dropout(p, layout=layout, norm=norm, embedding_size=48))
    batch = make(is_ordered=is_ordered)
    padded = pad(batch, SHAPE._replace(is_ordered=is_ordered))
    assert Shape.of(padded) == SHAPE._replace(is_ordered=is_ordered)
    results = []
    for each in (batch, padded):
        model.zero_grad(set_to_none=True)
        torch.manual_seed(1)
        output = model(each)
        output.loss.backward()
        counts = (output.mlm_count, output.mlm_correct, output.sop_count, output.sop_correct)
        results.append((output.loss, counts, {n: p.grad for n, p in model.named_parameters()}))
    (loss, counts, gradients), (padded_loss, padded_counts, padded_gradients) = results
    assert torch.allclose(loss, padded_loss, atol=1e-6) and counts == padded_counts
    torch.testing.assert_close(padded_gradients, gradients, rtol=1e-5, atol=1e-6)


def test_empty_sequences_are_spread_over_the_others_and_a_batch_that_does_not_fit_is_not_padded():
    padded = pad(make(), SHAPE._replace(sequences=10))
    first = padded.cu_seqlens[:-1]
    assert first.bincount().max() == 3 and (padded.cu_seqlens.diff() > 0).sum() == 4
    for order, begin in ((0, 0), (1, 10)):
        (row,) = (padded.sop_labels == order).nonzero()
        assert first[row] == begin and padded.cu_seqlens[row + 1] > begin
    assert pad(make(), SHAPE) is not None
    # two sequences are its own and two fillers
    less = {"tokens": 12, "sequences": 3, "masked": 2, "longest": 9, "is_ordered": False}
    for name, value in less.items():
        assert pad(make(), SHAPE._replace(**{name: value})) is None, name
