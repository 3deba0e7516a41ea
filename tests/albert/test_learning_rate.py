import math
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from albert.learning_rate import ScheduleName, choose_learning_rate, learning_rate_at


def test_the_rate_is_scaled_by_the_square_root_of_the_batch_and_one_meant_for_a_larger_is_remarked_upon():
    chosen = choose_learning_rate("lamb", 4096, from_checkpoint=True)
    assert chosen.rate == pytest.approx(0.00176 / math.sqrt(512))
    assert "7.78e-05 = 0.00176 x sqrt(4,096 / 2,097,152)" in chosen.explanation and chosen.warning is None
    large, small = (choose_learning_rate("adamw", n, from_checkpoint=True).rate for n in (65_536, 4096))
    assert large == pytest.approx(4 * small) and small == 5e-5
    assert choose_learning_rate("adamw", 4096, from_checkpoint=False).rate == 3e-4
    meant = choose_learning_rate("lamb", 4096, from_checkpoint=True, given=0.002, given_for=65_536)
    assert meant.rate == pytest.approx(0.0005)
    given = choose_learning_rate("lamb", 256, from_checkpoint=True, given=0.00176)
    assert given.rate == 0.00176 and "91 times" in given.warning
    near, far = (choose_learning_rate("adamw", 4096, from_checkpoint=True, given=n * 5e-5) for n in (7, 9))
    assert near.warning is None and "9 times" in far.warning


@given(st.sampled_from(get_args(ScheduleName)), st.integers(2, 300), st.floats(0, 1))
def test_every_schedule_rises_to_one_and_falls_towards_zero(name, steps, share):
    warmup = round(steps * share)
    rates = [learning_rate_at(name, step, steps, warmup) for step in range(steps)]
    assert all(0 < rate <= 1 for rate in rates)
    assert all(rate == 1 for rate in rates[max(warmup - 1, 0) : warmup + 1])
    assert rates[:warmup] == sorted(rates[:warmup])
    assert rates[warmup:] == sorted(rates[warmup:], reverse=True)
    assert learning_rate_at(name, steps, steps, warmup) == 0


def test_polynomial_is_the_square_of_what_is_left():
    left = [learning_rate_at("linear", step, 100, 10) for step in range(10, 100)]
    squares = [learning_rate_at("polynomial", step, 100, 10) for step in range(10, 100)]
    assert squares == pytest.approx([rate**2 for rate in left]) and left[45] == 0.5
