"""Verdicts from outcomes: which contrast counts, what is paired, and where nothing can be told."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest

from albert.evaluation import linearised, number_statistics, pack, unpack
from albert.reports import protocol
from tests.albert.report_samples import (
    BASE,
    BETTER,
    EXAMPLES,
    comparison,
    contamination,
    knowing,
    model,
    report_of,
)


def verdict(compared):
    return report_of(compared).verdict


def with_seeds(one, **changes):
    return replace(one, seeds=tuple(replace(seed, **changes) for seed in one.seeds))


@pytest.mark.parametrize("examples", [100, 101])
def test_outcomes_are_unpacked_as_they_were(examples):
    # as of Spearman's coefficient
    ranks = np.random.default_rng(0).permutation(examples) - (examples - 1) / 2
    for outcomes in (ranks.reshape(1, -1, 1), ranks.reshape(1, -1, 1) / 3, np.eye(3)[None] * 2**40):
        assert (unpack(pack(outcomes)) == outcomes).all()


def test_the_primary_contrast_stands_alone_and_the_others_share_their_error():
    others = [model(f"m{n}", [0.74 + n / 100, 0.75, 0.76]) for n in range(4)]
    found = comparison(BASE, *others, primary="m1")
    contrasts = {(one.baseline, one.model): one for one in (*found.differences, *found.steps)}
    assert len(contrasts) == 7
    primary = contrasts.pop(("base", "m1"))
    assert primary.is_primary and primary.adjusted_p == primary.p_value
    least = min(contrasts.values(), key=lambda one: one.p_value)
    assert least.adjusted_p == pytest.approx(min(1, 6 * least.p_value))
    assert all(one.adjusted_p >= one.p_value and not one.is_primary for one in contrasts.values())
    assert "m1 against base" in verdict(found)


def test_runs_of_a_recipe_are_the_units_in_whatever_order_and_the_page_says_so():
    runs = [0.80, 0.81, 0.815, 0.75, 0.76, 0.755, 0.86, 0.85, 0.865]
    one = model("recipe", runs)
    recipe = replace(one, checkpoints=tuple("abc"), checksums=tuple("abc"))
    found = comparison(BASE, recipe)
    (difference,) = found.differences
    assert len(difference.values) == 3 and difference.values[0] == pytest.approx(0.0983, abs=1e-4)
    assert "by the recipe, over 3 pretraining runs of 3 seeds" in verdict(found)
    assert "over 3 seeds, against 3 pretraining runs" in verdict(comparison(recipe, BETTER, seeds=(0, 1, 2)))
    untrained = comparison(*(with_seeds(one, best_epoch=0) for one in (BASE, recipe)))
    assert "of 3 seeds" not in verdict(untrained)
    assert "without training. 3 pretraining runs of recipe." in protocol(untrained)
    # the spread of the pretraining runs counts, not that of the nine fine-tuning runs
    thrice = pack(np.tile(unpack(BASE.outcomes), (3, 1, 1)))
    seeds = comparison(replace(BASE, seeds=BASE.seeds * 3, outcomes=thrice), one)
    assert difference.half_width > 1.3 * seeds.differences[0].half_width
    two = replace(model("recipe", runs[:6]), checkpoints=tuple("ab"))
    assert "recipe has 2 pretraining runs, at least 3 are needed" in verdict(comparison(BASE, two))
    # what seeds do to all its runs alike cancels against another recipe, and not against a baseline
    alike = [replace(model(name, [0.7, 0.8, 0.9] * 3), checkpoints=tuple("abc")) for name in ("x", "y")]
    rule = replace(model("rule", [0.75]), is_fixed=True, checkpoints=())
    for others, half in (((alike[1], alike[0]), None), ((rule, alike[0]), 4.303 * 0.1 / 3**0.5)):
        for pair in (others, others[::-1]):
            found = comparison(*pair).differences[0].half_width
            assert found is None if half is None else found > 0.9 * half
    runs = {"base": [0.70, 0.75, 0.80], "other": [0.77, 0.82, 0.87]}
    one, other = (replace(model(*of_name), checkpoints=tuple("abc")) for of_name in runs.items())
    found = []
    for order in permutations(unpack(other.outcomes)):
        (difference,) = comparison(one, replace(other, outcomes=pack(np.stack(order)))).differences
        found.append(difference.half_width)
    assert max(found) == pytest.approx(min(found))


def test_a_change_that_is_not_clear_says_what_more_seeds_or_runs_could_do():
    apart = [0.60, 0.72, 0.86]
    elsewhere = replace(model("other", [0.70, 0.72, 0.71]), outcomes=pack(unpack(BASE.outcomes)[:, ::-1]))
    for other, told in (
        (BETTER, None),
        (elsewhere, "of the ± {} of the primary change about ± {} would remain with any number of seeds: "),
        (model("other", apart), "± {} of the primary change is mostly due to the seeds: more of them"),
        (
            replace(model("other", np.repeat(apart, 3)), checkpoints=tuple("abc")),
            "± {} of the primary change is mostly due to the pretraining runs: more of them",
        ),
    ):
        found = comparison(BASE, other)
        (change,) = found.differences
        assert change.is_clear == (told is None) and 0 <= change.least_half_width <= change.half_width
        widths = (f"{100 * width:.1f}" for width in (change.half_width, change.least_half_width))
        said = protocol(found).lower()
        assert told.format(*widths) in said if told else "primary change" not in said


@pytest.mark.parametrize(
    "read, expected",
    [
        (range(160, 200), "It helped: +11.3 "),  # nearly all wrong with either model
        (range(142, 163), "No clear difference: +0.4 "),  # what the model gains
        (range(190), "Cannot tell: +9.8 "),
    ],
)
def test_a_change_is_of_the_examples_that_neither_model_alone_has_read(read, expected):
    leak = replace(contamination(0), found=len(read), examples=tuple(read))
    found = comparison(BASE, replace(BETTER, contamination=(leak,)))
    assert expected in verdict(found)
    # whichever of the two has; of dev it does not matter
    of_dev = replace(leak, split="dev", examples=tuple(range(150)))
    base = replace(BASE, contamination=(leak, of_dev))
    assert comparison(base, BETTER).differences == found.differences
    # what both have read counts, be it in another version of the corpus
    newer = replace(BETTER, contamination=(leak, replace(leak, version=3)))
    both = comparison(replace(BASE, contamination=(leak,)), newer)
    assert verdict(both) == verdict(comparison(BASE, BETTER))
    assert ("may have read all but 10 examples" in verdict(found)) == (len(read) == 190)


def test_drift_is_what_a_model_knows_less_of_general_text():
    known = (knowing(200, 150, 100), None)
    first, second, third = comparison(BASE, *(model("m", [0.8], intrinsic=one) for one in known)).models
    assert first.drift == 0 and second.drift == pytest.approx(-0.1) and third.drift is None
    # 0, -0.1 and -0.2 of three documents
    assert second.drift_half_width == pytest.approx(4.303 * 0.1 / 3**0.5, rel=1e-3)


def test_examples_left_out_leave_ranks_and_groups_as_if_the_test_file_had_not_had_them():
    said, gold = np.random.default_rng(0).normal(size=(2, 60))
    whole, part = (number_statistics("spearman", said[at:], gold[at:]) for at in (0, 20))
    ours, theirs = (linearised("spearman", one[None]) for one in (whole[20:], part))
    np.testing.assert_allclose(ours, theirs)
    groups = tuple(n // 4 for n in range(EXAMPLES))
    few, n = replace(contamination(0), found=2, examples=(150, 151)), EXAMPLES - 2
    found = comparison(BASE, replace(BETTER, contamination=(few,)), groups=groups)
    kept = np.delete(np.arange(EXAMPLES), few.examples)
    models = [replace(one, outcomes=pack(unpack(one.outcomes)[:, kept])) for one in (BASE, BETTER)]
    shorter = comparison(*models, examples={"test": n}, groups=tuple(groups[at] for at in kept))
    assert replace(found.differences[0], left_out=0) == shorter.differences[0]
    more = replace(few, found=124, examples=tuple(range(124)))  # 31 of 50 groups
    (without,) = comparison(BASE, replace(BETTER, contamination=(more,)), groups=groups).differences
    left = "test has 19 groups of examples without those that one model alone may have read"
    assert without.unknown == f"{left}, at least 20 are needed"


def exchanged():
    """Outcomes of runs that differ, and make up for each other."""
    outcomes = unpack(BASE.outcomes)
    for runs in ([0, 1], [1, 2]):
        one = np.flatnonzero(outcomes[runs[0], :, 0] < outcomes[runs[1], :, 0])[-runs[0]]
        outcomes[runs, one] = outcomes[runs[::-1], one]
    return pack(outcomes)


BOTH, LABEL = (BASE, BETTER), "all examples have the label 是"
FEW = [replace(one, outcomes=pack(unpack(one.outcomes)[:, 138:143])) for one in BOTH]
FAILED = [with_seeds(one, left_chance=False) for one in BOTH]
ALIKE = "every example comes out the same, in the mean of the runs"


@pytest.mark.parametrize(
    "models, facts, reason",
    [
        (FEW, {"examples": {"train": 9, "test": 5}}, "test has 5 examples, at least 20 are needed"),
        (BOTH, {"groups": (0,) * 100 + (1,) * 100}, "test has 2 groups of examples, at least 20 are needed"),
        (BOTH, {"obstacle": LABEL}, LABEL),
        (FAILED, {}, "no run of either model left chance level"),
        ((BASE, replace(BASE, name="twin")), {}, ALIKE),
        ((BASE, replace(BASE, name="twin", outcomes=exchanged())), {}, ALIKE),
    ],
    ids=["few examples", "few groups", "one label", "at chance level", "the same model", "alike"],
)
def test_where_nothing_can_be_told_it_says_why(models, facts, reason):
    found = comparison(*models, **facts)
    assert verdict(found).startswith("Cannot tell: ") and verdict(found).endswith(f"({reason}).")
    (difference,) = found.differences
    assert difference.half_width is None and not difference.is_clear


def test_a_model_beats_one_that_stayed_at_chance_and_a_rule_without_training_needs_no_seeds():
    assert verdict(comparison(FAILED[0], BETTER)).startswith("It helped")
    found = comparison(BASE, replace(model("rule", [0.9]), is_fixed=True))
    assert found.differences[0].is_clear and verdict(found).endswith("without training.")
