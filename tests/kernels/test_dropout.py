"""Which numbers drop, as torch computes it; the kernels' tests compare theirs with this."""

import pytest
import torch

from kernels.dropout import keep_reference, row_keys_reference

ROWS, COLUMNS = 2048, 256


def standardised(dropout_p: float, seed: int) -> torch.Tensor:
    """Which numbers stay, of mean 0 and variance 1."""
    kept = keep_reference(row_keys_reference(torch.tensor([seed]), torch.arange(ROWS)), COLUMNS, dropout_p)
    return (kept.double() - (1 - dropout_p)) / (dropout_p * (1 - dropout_p)) ** 0.5


@pytest.mark.parametrize("dropout_p", [0.1, 0.5])
def test_the_share_is_right_and_neighbours_drop_independently(dropout_p):
    x, other = standardised(dropout_p, 7), standardised(dropout_p, 8)
    products = [x, x * other]  # and those of numbers some rows and columns apart: a head's rows are 12 apart
    products += [x[:, n:] * x[:, : COLUMNS - n] for n in (1, 2, 8, 64)]
    products += [x[n:] * x[: ROWS - n] for n in (1, 12, 64)]
    products += [x[1:, 1:] * x[:-1, :-1], x[1:, :-1] * x[:-1, 1:]]
    for product in products:  # five standard deviations
        assert abs(product.sum()) < 5 * product.numel() ** 0.5
    # so are whole rows and columns
    for among in (x @ x.T, x.T @ x):
        among.fill_diagonal_(0)
        size = x.numel() / len(among)
        assert 0.95 < among.square().mean() / size < 1.05 and among.abs().max() < 8 * size**0.5
