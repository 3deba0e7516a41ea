import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import pearsonr, spearmanr
from seqeval.metrics import f1_score as seqeval_f1
from seqeval.metrics import precision_score, recall_score
from sklearn.metrics import f1_score, matthews_corrcoef

from albert.evaluation import calibration, entity_statistics, label_set_statistics, number_statistics, score

TAGS = st.sampled_from(["O", "B-PER", "I-PER", "B-LOC", "I-LOC"])


@pytest.mark.filterwarnings("ignore:A single label was found:UserWarning")  # from scikit-learn
@pytest.mark.parametrize("C", [2, 4])
@given(data=st.data())
def test_scores_of_labels_are_scikit_learns(C, data):
    label = st.integers(0, C - 1)
    pairs = data.draw(st.lists(st.tuples(label, label), min_size=2 if C == 2 else 1, max_size=40))
    predicted, gold = (np.array(column) for column in zip(*pairs, strict=True))
    labels = sorted({*predicted.tolist(), *gold.tolist()})
    macro_f1 = f1_score(gold, predicted, labels=labels, average="macro", zero_division=0)
    theirs = {"accuracy": np.mean(predicted == gold), "macro_f1": macro_f1}
    if C == 2:
        theirs |= {"f1": f1_score(gold, predicted, zero_division=0)}
        theirs |= {"matthews": matthews_corrcoef(gold, predicted)}
    eye = np.eye(C)
    for metric, value in theirs.items():
        ours = score(metric, label_set_statistics(metric, eye[predicted], eye[gold]).sum(0))
        assert ours == pytest.approx(value, abs=1e-9), metric


def test_correlations_are_scipys():
    rng = np.random.default_rng(0)
    gold = rng.integers(0, 6, 50) + 100.0
    predicted = gold + rng.normal(size=50)
    for name, theirs in (("pearson", pearsonr), ("spearman", spearmanr)):
        ours = score(name, number_statistics(name, predicted, gold).sum(0))
        assert ours == pytest.approx(theirs(predicted, gold).statistic)
    assert score("pearson", number_statistics("pearson", np.ones(5), np.arange(5.0)).sum(0)) == 0


@given(st.lists(st.lists(st.tuples(TAGS, TAGS), min_size=1, max_size=8), min_size=1, max_size=6))
@pytest.mark.filterwarnings("ignore")
def test_entity_scores_are_seqevals(sentences):
    predicted, gold = ([[pair[side] for pair in one] for one in sentences] for side in (0, 1))
    sums = entity_statistics(predicted, gold).sum(0)
    scorers = {"entity_f1": seqeval_f1, "entity_precision": precision_score, "entity_recall": recall_score}
    for name, theirs in scorers.items():
        assert score(name, sums) == pytest.approx(theirs(gold, predicted, zero_division=0))


def test_calibration_error_is_the_mean_of_the_seeds_own():
    gold = np.array([0] * 6 + [1] * 4)
    # right of 6 and of all 10, each time sure to 0.8: together they would look calibrated
    always, knows = np.repeat([[0.8, 0.2]], 10, axis=0), np.where(np.eye(2)[gold], 0.8, 0.2)
    found = calibration(np.stack([always, knows]), gold)
    assert found.ece == pytest.approx(0.2)
    (both,) = found.bins
    assert (both.count, both.confidence, both.accuracy) == (20, pytest.approx(0.8), 0.8)
    on_the_edge = calibration(np.array([[[0.5, 0.5]]]), np.array([0])).bins
    assert (on_the_edge[0].low, on_the_edge[0].high) == (0.4, 0.5)
    # bins count by how many they hold
    unsure = np.where(np.eye(2)[gold], 0.6, 0.4)
    unsure[0] = [0.1, 0.9]
    assert calibration(unsure[None], gold).ece == pytest.approx((9 * 0.4 + 0.9) / 10)
