"""How often the 95% intervals of a report hold the truth, by simulation: the figures of docs/report.md.

U = seeds, n = examples or groups. Run: python -m benchmarks.coverage [--runs 2000]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import product

import numpy as np

from albert.evaluation import (
    changes_of,
    estimate,
    label_set_statistics,
    linearised,
    mean_statistics,
    number_statistics,
    score,
    summarize,
)
from benchmarks.support.results import command, markdown, write_result

Interval = tuple[float, float]  # how far its middle is from the truth, and half its width
Draw = Callable[[np.random.Generator], Interval]
Cells = Sequence[Sequence[Interval]]  # simulated intervals of each cell of a row
Outcomes = tuple[np.ndarray, np.ndarray | None]  # statistics [2, n, k] of two models, and groups [n]
SEEDS = (3, 5, 10)
DEVIATIONS = (0, 0.3, 1, 3, 10)  # between seeds, in units of the deviation that examples give the mean
OWN = (0.1, 0.7)  # the part of an example's variance that differs between seeds


def crossed(rng: np.random.Generator, U: int, n: int, unit: float, own: float) -> np.ndarray:
    """Differences [U, n] around 0.

    What examples give the mean of a seed has variance 1, of which `own` is each seed's; seeds differ by a
    deviation of `unit` besides.
    """
    shared, rest = rng.normal(size=(1, n)), rng.normal(size=(U, n))
    return unit * rng.normal(size=(U, 1)) + n**0.5 * ((1 - own) ** 0.5 * shared + own**0.5 * rest)


def interval(*arms: np.ndarray, truth: float = 0.0) -> Interval:
    """The interval of linearised values [U, n], or of the sum of several."""
    found = estimate(*arms)
    return found.mean - truth, found.half_width or 0.0


def recipes(rng: np.random.Generator, unit: float, common: float) -> Interval:
    """Of two recipes' three runs; each has the part `common` of its variance from one of the other's."""
    runs = rng.normal(size=(3, 1))
    arms = [
        crossed(rng, 3, 60, (1 - common) ** 0.5 * unit, 0.7) + common**0.5 * unit * runs for _ in range(2)
    ]
    return interval(arms[0], -arms[1])


def of_recipe(rng: np.random.Generator, unit: float) -> Interval:
    """Of the score of a recipe's three runs, whose five seeds differ by `unit` for all of them alike."""
    runs, seeds = 0.5 * rng.normal(size=3), unit * rng.normal(size=5)
    values = crossed(rng, 15, 60, 0.3, 0.3) + np.add.outer(runs, seeds).reshape(15, 1)
    found = summarize("accuracy", np.stack([values, np.ones_like(values)], axis=-1), checkpoints=3)
    return found.mean, found.half_width or 0.0


def failing(rng: np.random.Generator, U: int, share: float) -> Interval:
    """Of a model whose runs fail by chance, and lose ten deviations then, and one whose runs do not."""
    fails = rng.random((U, 1)) < share
    return interval(crossed(rng, U, 60, 0.3, 0.3) - 10 * fails, truth=-10 * share)


def difference(rng: np.random.Generator, sizes: np.ndarray, U: int, unit: float, own: float) -> Interval:
    """Of the overall mean of groups of examples [n], whose means are `crossed`."""
    share = sizes / sizes.sum()
    means = crossed(rng, U, len(sizes), 0, own) / (len(sizes) * (share**2).sum()) ** 0.5
    means += unit * rng.normal(size=(U, 1))
    statistics = np.stack([means * sizes, np.broadcast_to(sizes, means.shape)], axis=-1)
    return interval(linearised("accuracy", statistics))


def simulate(draw: Draw, runs: int) -> list[Interval]:
    rng = np.random.default_rng(0)
    return [draw(rng) for _ in range(runs)]


def by_value(draw: Callable[..., Interval], runs: int, name: str, values: Iterable, **given) -> Cells:
    """Simulate a draw with each value of one of its arguments."""
    return [simulate(partial(draw, **{name: value}, **given), runs) for value in values]


def coverage(intervals: Sequence[Interval]) -> float:
    """The share of intervals that hold the truth, in percent."""
    return 100 * float(np.mean([abs(middle) <= half for middle, half in intervals]))


def agreeing(own: float, runs: int) -> list[Interval]:
    """Of the tenth of 10 x `runs` comparisons whose three seeds happen to be closest."""
    rng = np.random.default_rng(0)
    drawn = [crossed(rng, 3, 60, 0.3, own) for _ in range(10 * runs)]
    drawn.sort(key=lambda values: float(values.mean(1).std()))
    return list(map(interval, drawn[:runs]))


def accuracy(rng: np.random.Generator, rate: float, n: int) -> Interval:
    right = rng.random(n) < rate
    return interval(linearised("accuracy", mean_statistics(right)[None]), truth=rate)


def accuracy_of_five(rng: np.random.Generator, n: int) -> Interval:
    """Of seeds that are right on 95% of n examples, and mostly agree on which."""
    right = rng.random((5, n)) < rng.beta(0.95, 0.05, size=n)
    return interval(linearised("accuracy", np.stack(list(map(mean_statistics, right)))), truth=0.95)


def held_out_change(rng: np.random.Generator, D: int, deviation: float) -> Interval:
    """A change of the loss between two models, over D documents of log-normal length."""
    tokens = np.ceil(100 * rng.lognormal(sigma=deviation, size=D))
    before = np.zeros((D, 6))
    before[:, 2] = tokens
    before[:, 0] = tokens * rng.normal(3, 1, D)
    after = before.copy()
    after[:, 0] -= tokens * rng.normal(0.05, 0.1, D)
    found = changes_of(before, after, np.arange(D))
    low, high = found["mlm_loss_change_low"], found["mlm_loss_change_high"]
    return (low + high) / 2 + 0.05, (high - low) / 2


def classes(rng: np.random.Generator, groups: int, n: int) -> Outcomes:
    """Macro F1 of seven labels, some rare; each group has one label, and some are harder than others."""
    sizes = rng.multinomial(n - groups, rng.dirichlet(np.ones(groups))) + 1
    group = np.repeat(np.arange(groups), sizes)
    gold = np.searchsorted(np.cumsum([0.3, 0.2, 0.2, 0.1, 0.1, 0.05]), rng.random(groups))[group]
    right = rng.random((2, n)) < rng.beta(6, 3, size=groups)[group]
    said = np.where(right, gold, (gold + rng.integers(1, 7, size=right.shape)) % 7)
    eye = np.eye(7)
    return np.stack([label_set_statistics("macro_f1", eye[one], eye[gold]) for one in said]), group


def entities(rng: np.random.Generator, n: int) -> Outcomes:
    """Entity F1 of n sentences."""
    gold = rng.poisson(2, size=n)
    found = rng.binomial(gold, rng.beta(8, 2, size=n), size=(2, n))
    return np.stack([found, found + rng.poisson(0.3, size=(2, n)), np.stack([gold, gold])], axis=-1), None


def numbers(rng: np.random.Generator, n: int, has_tail: bool) -> Outcomes:
    """Spearman's coefficient of n normal or log-normal numbers."""
    gold, noise = rng.normal(size=n), rng.normal(size=(2, n))
    said = np.exp(gold) + np.exp(noise) if has_tail else gold + noise
    return np.stack([number_statistics("spearman", one, gold) for one in said]), None


def extremes(rng: np.random.Generator, n: int) -> Outcomes:
    """Pearson's coefficient of n numbers as of Student's t with three degrees, and normal errors."""
    gold, noise = rng.standard_t(3, size=n), rng.normal(size=(2, n))
    return np.stack([number_statistics("pearson", gold + one, gold) for one in noise]), None


def score_and_change(metric: str, draw: Callable[..., Outcomes], runs: int, **given: int) -> Cells:
    """Intervals of a model's score, and of the difference of two models that are equally good."""
    rng = np.random.default_rng(1)
    truth = float(np.mean([score(metric, draw(rng, **given)[0].sum(1)) for _ in range(4 * runs)]))

    def of_score(rng: np.random.Generator) -> Interval:
        return interval(linearised(metric, *draw(rng, **given))[:1], truth=truth)

    def of_change(rng: np.random.Generator) -> Interval:
        return interval(np.diff(linearised(metric, *draw(rng, **given)), axis=0))

    return simulate(of_score, runs), simulate(of_change, runs)


def by_seeds(runs: int) -> Iterator[list[str]]:
    """Rows of the first table."""
    groups = np.random.default_rng(0).integers(5, 41, size=48)
    examples = {
        "20": np.ones(20),
        "60": np.ones(60),
        "20 groups of 5 to 40": groups[:20],
        "48 groups of 5 to 40": groups,
    }
    for (name, sizes), own, U in product(examples.items(), OWN, SEEDS):
        cells = by_value(difference, runs, "unit", DEVIATIONS, sizes=sizes, U=U, own=own)
        yield [str(U), name, str(own), *(f"{coverage(cell):.1f}" for cell in cells)]


def others(runs: int) -> Iterator[tuple[str, Cells]]:
    """Rows of the second table."""
    for own in (0.7, 0.9):
        name = f"change, the tenth whose three seeds agree most, own part {own}"
        yield name, [agreeing(own, runs)]
    units = ", ".join(map(str, DEVIATIONS))
    for what, common in (("nothing", 0), ("half of their variance", 0.5)):
        name = f"two recipes of three pretraining runs, which share {what}; deviation between runs {units}"
        yield name, by_value(recipes, runs, "unit", DEVIATIONS, common=common)
    name = "score of a recipe; deviation between the seeds that its three runs share 0, 1, 3, 10"
    yield name, by_value(of_recipe, runs, "unit", (0, 1, 3, 10))
    for share in (0.1, 0.2):
        name = f"change, {share:.0%} of one model's runs fail: three seeds, five, ten"
        yield name, by_value(failing, runs, "U", SEEDS, share=share)
    for what, sizes in (
        ("one of 20 groups holds half of the examples", np.repeat([190.0, 10.0], [1, 19])),
        ("two of 30 groups hold six tenths", np.repeat([210.0, 10.0], [2, 28])),
    ):
        cells = by_value(difference, runs, "U", (1, 3), sizes=sizes, unit=0.3, own=0.1)
        yield f"change, {what}: one seed, three", cells
    for rate, few, many in ((0.9, 50, 200), (0.97, 100, 300)):
        name = f"accuracy of {rate:.0%}: {few} examples, {many}"
        yield name, by_value(accuracy, runs, "n", (few, many), rate=rate)
    cells = by_value(accuracy_of_five, runs, "n", (20, 50, 200))
    # without an error there is no interval
    shown = [[one for one in cell if one[1]] for cell in cells]
    yield "accuracy of 95%, five seeds that mostly agree: 20 examples, 50, 200", shown
    macro_f1 = score_and_change("macro_f1", classes, runs, groups=48, n=1000)
    yield "macro F1 of 7 labels, 1,000 examples in 48 groups: score, change", macro_f1
    for n in (50, 300):
        yield f"entity F1, {n} sentences: score, change", score_and_change("entity_f1", entities, runs, n=n)
    for shape, n in product(("normal", "log-normal"), (50, 300)):
        spearman = score_and_change("spearman", numbers, runs, n=n, has_tail=shape == "log-normal")
        yield f"Spearman's coefficient, {n} {shape} numbers: score, change", spearman
    for n in (300, 1500):
        pearson = score_and_change("pearson", extremes, runs, n=n)
        yield f"Pearson's coefficient, {n:,} numbers, some extreme: score, change", pearson
    for deviation in (0.5, 1):
        name = f"change of held-out loss, lengths' deviation {deviation}: 2 documents, 5, 10, 50"
        yield name, by_value(held_out_change, runs, "D", (2, 5, 10, 50), deviation=deviation)


def main(*, runs: int = 2000) -> None:
    """Run the benchmark.

    Args:
        runs: Simulations of a cell.
    """
    first, second = list(by_seeds(runs)), [(name, [*map(coverage, cells)]) for name, cells in others(runs)]
    second_table = [[name, ", ".join(f"{one:.1f}" for one in shares)] for name, shares in second]
    titles = ["seeds", "examples", "each seed's own part", *map(str, DEVIATIONS)]
    tables = f"{markdown(titles, first)}\n\n{markdown(['interval', 'coverage'], second_table)}"
    write_result("coverage", tables, {"runs": runs, "by_seeds": first, "others": second})


if __name__ == "__main__":
    command(main)
