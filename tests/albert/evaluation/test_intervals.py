from functools import partial

import numpy as np
import pytest
from scipy.stats import t, ttest_rel

from albert.evaluation import estimate, label_set_statistics, linearised, mean_statistics, score, summarize
from benchmarks.coverage import agreeing, classes, coverage, crossed, difference, interval, simulate

RUNS = 1000  # simulated comparisons
ERROR = 0.7  # one standard error of the percentage of them whose interval holds the truth


@pytest.mark.parametrize("unit", [0.2, 1.0, 3.0, 10.0], ids="units {}".format)
@pytest.mark.parametrize("rest", [0.1, 0.7], ids="rest {}".format)
@pytest.mark.parametrize("U", [3, 5, 10], ids="{} seeds".format)
def test_the_interval_holds_the_truth_95_times_in_100(U, rest, unit):
    rng = np.random.default_rng(U)
    found = [estimate(crossed(rng, U, 60, unit, rest)) for _ in range(RUNS)]
    check_coverage([(one.mean, one.half_width) for one in found])
    # the p value says the same
    assert all((one.p_value < 0.05) == (abs(one.mean) > one.half_width) for one in found)


def check_coverage(intervals):
    """95% intervals of a difference that is not there hold 0 in 93 to 97%, and are above it in at most 5%."""
    assert 93 - ERROR <= coverage(intervals) <= 97 + ERROR
    assert np.mean([middle > half for middle, half in intervals]) <= 0.05


@pytest.mark.parametrize("unit", [0.2, 3.0], ids="units {}".format)
@pytest.mark.parametrize("U", [3, 5, 10], ids="{} seeds".format)
def test_groups_are_taken_whole(U, unit):
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(20), rng.integers(2, 15, size=20))
    whole, apart = [], []
    for _ in range(RUNS):
        shared = rng.normal(size=20)[groups] + rng.normal(size=(U, len(groups)))
        values = shared + unit * rng.normal(size=(U, 1)) * 20**-0.5
        statistics = np.stack([values, np.ones_like(values)], axis=-1)
        whole.append(interval(linearised("accuracy", statistics, groups)))
        apart.append(interval(linearised("accuracy", statistics)))
    check_coverage(whole)
    assert unit > 1 or coverage(apart) < 85


# two of thirty groups hold six tenths of the examples
FEW_LARGE = partial(difference, sizes=np.repeat([210.0, 10.0], [2, 28]), U=3, unit=0.3, own=0.1)


def few_groups_of_a_class(rng):
    """Macro F1 over seven classes of three groups each, as over the articles of a few large laws."""
    return interval(np.diff(linearised("macro_f1", *classes(rng, groups=21, n=1190)), axis=0))


@pytest.mark.parametrize(
    "make",
    [
        partial(agreeing, 0.7),
        partial(agreeing, 0.9),
        *(partial(simulate, draw) for draw in (FEW_LARGE, few_groups_of_a_class)),
    ],
    ids=["seeds agree", "seeds agree more", "a few large groups", "few groups of a class"],
)
def test_what_happens_to_look_sure_is_not_trusted_too_far(make):
    check_coverage(make(RUNS))


@pytest.mark.parametrize("first, second", [(5, 3), (3, 10), (1, 5)], ids=str)
def test_runs_that_are_not_paired_are_arms_of_their_own(first, second):
    """Such as three pretraining runs of a recipe against the seeds of one checkpoint, or against a rule."""

    def draw(rng):
        base = crossed(rng, first, 60, 1.0 if first > 1 else 0, 0.5 if first > 1 else 0)
        found = estimate(crossed(rng, second, 60, 2.0, 0.5), -base)
        return found.mean, found.half_width

    assert 93 <= coverage(simulate(draw, 10 * RUNS)) <= 97


@pytest.mark.parametrize("own", [0.1, 0.7])
@pytest.mark.parametrize("U", [3, 5])
def test_few_units_foretell_the_interval_of_many(U, own):
    rng = np.random.default_rng(0)
    few = [estimate(crossed(rng, U, 60, 1.0, own)) for _ in range(RUNS)]
    many = [estimate(crossed(rng, 1000, 60, 1.0, own)).half_width for _ in range(100)]
    assert np.mean([one.least_half_width for one in few]) == pytest.approx(np.mean(many), rel=0.03)
    assert all(one.least_half_width <= one.half_width for one in few)


def test_a_recipes_score_varies_with_the_seeds_that_its_runs_share():
    def draw(rng):
        runs = 2 * rng.normal(size=(1, 5, 1)) + 0.5 * rng.normal(size=(3, 5, 1))
        values = (runs + 60**0.5 * rng.normal(size=60)).reshape(15, 60)
        found = summarize("accuracy", np.stack([values, np.ones_like(values)], axis=-1), checkpoints=3)
        return found.mean, found.half_width

    check_coverage(simulate(draw, RUNS))


def test_without_noise_of_examples_or_of_seeds_it_is_that_of_the_other_and_without_any_no_certainty():
    first, second = np.array([0.61, 0.64, 0.60, 0.66]), np.array([0.65, 0.65, 0.66, 0.67])
    found = estimate(np.repeat((second - first)[:, None], 30, axis=1))
    assert (found.degrees, found.p_value) == pytest.approx((3, ttest_rel(second, first).pvalue))
    half = t.ppf(0.975, 3) * (second - first).std(ddof=1) / 2
    assert found.half_width == pytest.approx(half)
    values = np.linspace(-1, 2, 30)
    found = estimate(np.stack([values] * 3))
    assert found.degrees == pytest.approx(29)
    assert found.half_width == pytest.approx(t.ppf(0.975, 29) * values.std(ddof=1) / 30**0.5)
    assert estimate(values[None]) == found
    for same in (np.zeros((3, 30)), np.full((2, 30), 0.1)):
        found = estimate(same)
        assert (found.half_width, found.p_value, found.degrees) == (None, None, None)
    assert estimate(np.random.default_rng(0).normal(size=(5, 9))).half_width is None


def test_one_error_tells_little_of_a_score_and_it_has_an_interval_from_three_runs_on():
    found = estimate(np.arange(100)[None] > 0)  # Clopper and Pearson's begins at 94.6%
    assert found.mean - found.half_width < 0.95
    rng = np.random.default_rng(0)
    right = np.stack([mean_statistics(row) for row in rng.random((6, 50)) < 0.7])
    assert summarize("accuracy", right[:2]).half_width is None
    half = t.ppf(0.975, 49) * right[0, :, 0].std(ddof=1) / 50**0.5
    assert summarize("accuracy", right[:1], is_fixed=True).half_width == pytest.approx(half)
    seeds, runs = (summarize("accuracy", right, checkpoints=count) for count in (1, 3))
    assert seeds.values == runs.values and seeds.half_width != runs.half_width
    assert summarize("accuracy", right, checkpoints=2).half_width is None


def test_linearised_scores_have_the_bootstraps_error():
    """Of a metric that is no mean: macro F1 over five labels, one of them rare."""
    rng = np.random.default_rng(2)
    gold = rng.choice(5, 400, p=[0.4, 0.3, 0.2, 0.08, 0.02])
    said = np.where(rng.random(400) < 0.7, gold, rng.integers(5, size=400))
    one = label_set_statistics("macro_f1", np.eye(5)[said], np.eye(5)[gold])
    scores = linearised("macro_f1", one[None])
    assert scores.mean() == pytest.approx(score("macro_f1", one.sum(0)))
    drawn = rng.multinomial(400, np.full(400, 1 / 400), size=4000) @ one
    assert scores.std() / 20 == pytest.approx(np.std(score("macro_f1", drawn)), rel=0.1)
    (exact,) = linearised("accuracy", mean_statistics(said == gold)[None])  # of a mean
    assert exact == pytest.approx(1.0 * (said == gold), abs=1e-9)
