"""The sentinel tells noise and harder tasks from divergence."""

import numpy as np

from albert.pretraining.sentinel import Sentinel


def test_the_sentinel_tells_noise_from_divergence():
    rng = np.random.default_rng(0)
    sound, spoilt = Sentinel({}), Sentinel({})
    losses = 3 + 5 * np.exp(-np.arange(300) / 50) + rng.normal(0, 0.4, 300)
    assert not any(sound.check({0: loss, 1: loss + 2}, 1.0) for loss in losses)
    assert not any(spoilt.check({0: loss}, 1.0) for loss in losses)
    assert any(spoilt.check({0: 9.0}, 1.0) for _ in range(10))
    assert "not finite" in Sentinel({}).check({0: 2.0}, float("inf"))


def test_a_task_that_grows_harder_is_not_taken_for_divergence():
    """Two nats more in 100 steps, as the mask rate rises every fourth of them; then one at once."""
    unaware, aware = Sentinel({}), Sentinel({})
    losses = [3.0] * 20 + [3 + step / 50 for step in range(100)]
    assert any(unaware.check({0: loss}, 1.0) for loss in losses)
    assert not any(aware.check({0: loss}, 1.0, is_harder=n % 4 == 0) for n, loss in enumerate(losses))
    assert any(aware.check({0: 9.0}, 1.0) for _ in range(5))


def test_a_harder_part_of_the_text_is_told_from_a_worse_model():
    """Training losses of two sources in turn, 2 nats apart; the model is the same, then it is spoilt."""
    asked = []

    def is_worse():
        asked.append(len(losses))
        return bool(spoilt)

    sentinel, losses, spoilt = Sentinel({}, is_worse), [], []
    for step in range(600):
        losses.append(3.4 if step // 100 % 2 == 0 else 5.4)
        assert sentinel.check({0: losses[-1]}, 1.0) is None
    assert len(asked) == 3  # once where the harder source begins
    spoilt.append(True)
    assert any("the MLM loss rose" in (sentinel.check({0: 7.0}, 1.0) or "") for _ in range(10))
