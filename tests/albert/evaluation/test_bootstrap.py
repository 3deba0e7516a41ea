import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import pearsonr, spearmanr, t, ttest_rel
from seqeval.metrics import f1_score as seqeval_f1
from seqeval.metrics import precision_score, recall_score
from sklearn.metrics import f1_score, matthews_corrcoef

from albert.evaluation import (
    calibration,
    class_statistics,
    entity_statistics,
    mean_statistics,
    number_statistics,
    paired_difference,
    score,
    summarize,
)
from albert.evaluation.bootstrap import PairedDifference, paired_p_value
from albert.evaluation.metrics import chance_margin, constant_score

TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40))
def test_accuracy_and_macro_f1_are_scikit_learns(pairs):
    predicted, gold = (np.array(column) for column in zip(*pairs, strict=True))

    def ours(metric):
        return score(metric, class_statistics(metric, predicted, gold, 4).sum(0))

    assert ours("accuracy") == pytest.approx(np.mean(predicted == gold))
    labels = sorted({*predicted.tolist(), *gold.tolist()})
    assert ours("macro_f1") == pytest.approx(f1_score(gold, predicted, labels=labels, average="macro"))


@pytest.mark.filterwarnings("ignore:A single label was found:UserWarning")  # from scikit-learn
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=2, max_size=40))
def test_scores_of_two_labels_are_scikit_learns(pairs):
    predicted, gold = (np.array(column) for column in zip(*pairs, strict=True))
    f1, matthews = (
        score(name, class_statistics(name, predicted, gold, 2).sum(0)) for name in ("f1", "matthews")
    )
    assert f1 == pytest.approx(f1_score(gold, predicted, zero_division=0))
    assert matthews == pytest.approx(matthews_corrcoef(gold, predicted), abs=1e-9)


def test_correlations_are_scipys():
    rng = np.random.default_rng(0)
    gold = rng.integers(0, 6, 50) + 100.0
    predicted = gold + rng.normal(size=50)
    for name, theirs in (("pearson", pearsonr), ("spearman", spearmanr)):
        ours = score(name, number_statistics(name, predicted, gold).sum(0))
        assert ours == pytest.approx(theirs(predicted, gold).statistic)
    assert score("pearson", number_statistics("pearson", np.ones(5), np.arange(5.0)).sum(0)) == 0


@given(
    st.lists(
        st.integers(1, 8).flatmap(
            lambda n: st.tuples(*[st.lists(st.sampled_from(TAGS), min_size=n, max_size=n)] * 2)
        ),
        min_size=1,
        max_size=6,
    )
)
@pytest.mark.filterwarnings("ignore")
def test_entity_scores_are_seqevals(sentences):
    predicted, gold = ([list(tags) for tags in column] for column in zip(*sentences, strict=True))
    sums = entity_statistics(predicted, gold).sum(0)
    for name, theirs in (
        ("entity_f1", seqeval_f1),
        ("entity_precision", precision_score),
        ("entity_recall", recall_score),
    ):
        assert score(name, sums) == pytest.approx(theirs(gold, predicted, zero_division=0))


def test_an_entity_counts_only_with_its_type_and_both_ends():
    gold = ["B-PER", "I-PER", "O", "B-LOC", "B-LOC"]
    right = entity_statistics([gold], [gold])
    assert right.tolist() == [[3, 3, 3]]
    # one too short, one of another type, one right
    found = entity_statistics([["B-PER", "O", "O", "B-ORG", "B-LOC"]], [gold])
    assert found.tolist() == [[1, 3, 3]]


def right(rng, accuracy, seeds=5, n=400):
    """Statistics [S, n, 2] of models that are right with some probability, which varies with the seed."""
    chances = np.clip(accuracy + 0.01 * rng.normal(size=(seeds, 1)), 0, 1)
    return np.stack([mean_statistics(row) for row in rng.random((seeds, n)) < chances])


def test_the_protocol_does_not_invent_gains():
    rng = np.random.default_rng(0)
    clear = sum(paired_difference("accuracy", right(rng, 0.7), right(rng, 0.7)).is_clear for _ in range(60))
    # at most 5% are expected; 8 or more of 60 would come up once in a hundred times
    assert clear < 8


def test_a_real_gain_is_seen_and_its_interval_holds_it():
    rng = np.random.default_rng(0)
    found = [paired_difference("accuracy", right(rng, 0.6), right(rng, 0.75)) for _ in range(20)]
    assert all(one.is_clear and one.probability > 0.99 and one.p_value < 0.01 for one in found)
    assert sum(one.low <= 0.15 <= one.high for one in found) >= 16


def test_the_interval_is_of_seeds_and_of_examples_which_all_seeds_share():
    def same(values):
        return np.stack([mean_statistics(np.array(values, dtype=float))] * 5)

    one_seed = np.stack([mean_statistics(np.full(5, float(seed == 0))) for seed in range(5)])
    for gained in (one_seed, same([1, 0, 0, 0, 0])):
        found = paired_difference("accuracy", same([0] * 5), gained)
        assert found.summary.mean == pytest.approx(0.2)
        # of five draws with a chance of 1/5 each: none with probability 0.33, at most three with 0.99
        assert (found.low, found.high) == (0, pytest.approx(3 / 5))
        assert found.probability == pytest.approx(1 - 0.8**5 / 2, abs=0.02) and not found.is_clear


def test_a_single_seed_says_nothing_of_the_spread():
    rng = np.random.default_rng(0)
    first, second = right(rng, 0.5, seeds=1), right(rng, 0.9, seeds=1)
    alone = paired_difference("accuracy", first, second)
    assert (alone.low, alone.p_value, alone.probability, alone.is_clear) == (None, None, None, False)
    # without training there is no seed to vary: the examples are all there is
    untrained = paired_difference("accuracy", first, second, seedless=True)
    assert untrained.is_clear and untrained.p_value is None
    assert summarize([0.5]).deviation == 0


def test_differences_that_are_all_the_same():
    assert paired_p_value(np.zeros(3)) == 1 and paired_p_value(np.full(3, 0.1)) == 0


def test_the_p_value_is_students():
    first, second = np.array([0.61, 0.64, 0.60, 0.66]), np.array([0.65, 0.65, 0.66, 0.67])
    gains = second - first
    ours = paired_p_value(gains)
    assert ours == pytest.approx(ttest_rel(second, first).pvalue)
    statistic = gains.mean() / (gains.std(ddof=1) / 4**0.5)
    assert ours == pytest.approx(2 * t.sf(statistic, df=3))


@pytest.mark.parametrize("metric", ["accuracy", "macro_f1"])
def test_interval_and_probability_are_those_of_a_bootstrap_written_out(metric):
    rng = np.random.default_rng(1)
    S, n, gold = 4, 60, np.arange(60) % 3

    def said(share):
        labels = np.where(rng.random((S, n)) < share, gold, rng.integers(3, size=(S, n)))
        return np.stack([class_statistics(metric, row, gold, 3) for row in labels])

    first, second = said(0.4), said(0.48)
    found = paired_difference(metric, first, second)
    drawn = []
    for _ in range(4000):
        seeds, examples = rng.integers(S, size=S), rng.integers(n, size=n)
        before, after = (score(metric, one[seeds][:, examples].sum(1)) for one in (first, second))
        drawn.append((after - before).mean())
    # of 2,000 resamples a 97.5% quantile lies 0.06 deviations off; that of 95% would 0.3
    off = 0.2 * np.std(drawn)
    assert [found.low, found.high] == pytest.approx(np.quantile(drawn, [0.025, 0.975]).tolist(), abs=off)
    assert 0.6 < found.probability < 0.99
    assert found.probability == pytest.approx(np.mean(np.array(drawn) > 0), abs=0.03)


def test_a_difference_is_clear_where_interval_and_p_agree():
    def is_clear(low, high, p_value):
        return PairedDifference(summarize([0.1, 0.2]), low, high, p_value, 0.99).is_clear

    assert is_clear(0.01, 0.3, 0.04) and is_clear(-0.3, -0.01, 0.04) and is_clear(0.01, 0.3, None)
    assert not is_clear(0.01, 0.3, 0.05) and not is_clear(0.0, 0.3, 0.04) and not is_clear(-0.3, 0.0, 0.04)


def test_calibration_error_is_the_mean_of_the_seeds_own():
    gold = np.array([0] * 6 + [1] * 4)
    # right of 6 and of all 10, each time sure to 0.8: together they would look calibrated
    always, knows = np.repeat([[0.8, 0.2]], 10, axis=0), np.where(np.eye(2)[gold], 0.8, 0.2)
    found = calibration(np.stack([always, knows]), gold)
    assert found.ece == pytest.approx(0.2)
    (both,) = found.bins
    assert (both.count, both.confidence, both.accuracy) == (20, pytest.approx(0.8), 0.8)
    # bins count by how many they hold
    unsure = np.where(np.eye(2)[gold], 0.6, 0.4)
    unsure[0] = [0.1, 0.9]
    assert calibration(unsure[None], gold).ece == pytest.approx((9 * 0.4 + 0.9) / 10)


def test_calibration_error_of_a_model_that_is_too_sure():
    probabilities = np.repeat([[0.95, 0.05]], 10, axis=0)
    found = calibration(probabilities[None], np.array([0] * 7 + [1] * 3))
    assert found.ece == pytest.approx(0.25)
    on_the_edge = calibration(np.array([[[0.5, 0.5]]]), np.array([0])).bins
    assert (on_the_edge[0].low, on_the_edge[0].high) == (0.4, 0.5)
    (only,) = found.bins
    assert (only.count, only.accuracy) == (10, 0.7) and only.low < 0.95 <= only.high


def test_chance_is_what_a_constant_answer_scores():
    gold = np.array([0] * 6 + [1] * 4)
    assert constant_score("accuracy", gold, 0, 2) == 0.6
    assert constant_score("macro_f1", gold, 0, 2) == pytest.approx(2 * 0.6 / 1.6 / 2)
    assert constant_score("f1", gold, 1, 2) == pytest.approx(2 * 0.4 / 1.4)
    assert constant_score("matthews", gold, 0, 2) == 0
    assert chance_margin("accuracy", 0.5, 100) == pytest.approx(0.1)
    # where nothing is ever right by accident, one that is may be one
    assert chance_margin("exact_match", 0.0, 100) == pytest.approx(0.02)
    assert chance_margin("pearson", 0.0, 100) == pytest.approx(0.2)
