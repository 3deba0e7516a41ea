"""The goals of `benchmarks.gpu` on an H100, and whether its results meet them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from benchmarks.gpu.scale import TOKENS, VOCABULARY
from benchmarks.gpu.timing import TUNED, Case, Ceilings, Result, Timing
from benchmarks.support.results import markdown

GRAPH = "jixu graph"


class Unmeasured(Exception):
    """A goal's case or rival was not measured, for this reason."""


@dataclass(frozen=True)
class Goal:
    """A figure of a case that must reach `least`.

    It is jixu's speed relative to the fastest rival that ran, the rival's peak memory relative to jixu's,
    jixu's share of the measured FLOPs (MFU), or the share of a step as a graph that the GPU is busy for.
    """

    claim: str
    least: float
    case: str
    figure: Literal["times", "memory", "mfu", "busy"] = "times"
    rivals: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """`met` is None where there is no figure; `detail` is the figure or why there is none."""

    claim: str
    met: bool | None
    detail: str


def _timing(result: Result, who: str) -> Timing:
    if who not in result.timings:
        why = result.absent.get(who) or result.absent.get("jixu", "not measured")
        raise Unmeasured(f"{who}: {why}")
    return result.timings[who]


def _figure(goal: Goal, result: Result, who: str, ceilings: Ceilings) -> float:
    ours = _timing(result, who)
    if goal.figure == "mfu":
        return result.flops / (ours.milliseconds / 1e3) / ceilings.flops
    if goal.figure == "busy":
        return min(1.0, (ours.busy or 0.0) / ours.milliseconds)
    # if no rival ran, the first says why
    ran = [name for name in goal.rivals if name in result.timings] or goal.rivals[:1]
    best = min((_timing(result, name) for name in ran), key=lambda timing: timing.milliseconds)
    if goal.figure == "memory":
        return best.peak_bytes / max(ours.peak_bytes, 1)
    return best.milliseconds / ours.milliseconds


FLASH = ("varlen_attn", "flash-attn", "SDPA cuDNN")  # FlashAttention-2, in torch too, and cuDNN
_LOSS = f"mlm_loss n={int(0.15 * TOKENS)} E=128 V={VOCABULARY} both passes"
_BASE, _LARGE = "step base T=128 full 32768 tokens", "step large T=512 full 16384 tokens"
_MIXED = "attention D=64 T=512 mixed both passes"
_BUSY = "4k tokens: busy for 95% of a step as a graph"

# in the order they are measured in: whole models first, as time may run out
GOALS = (
    Goal("base T=128: 3 times transformers eager", 3.0, _BASE, rivals=("transformers",)),
    Goal("base T=128: 1.3 times transformers compiled", 1.3, _BASE, rivals=("transformers compiled",)),
    Goal("base T=512: MFU 50%", 0.5, "step base T=512 full 32768 tokens", "mfu"),
    Goal("large T=512: MFU 55%", 0.55, _LARGE, "mfu"),
    Goal("tiny T=512: MFU 25%", 0.25, "step tiny T=512 full 65536 tokens", "mfu"),
    Goal("mlm_loss: 1.5 times torch.compile", 1.5, _LOSS, rivals=("torch.compile",)),
    Goal("mlm_loss: faster than chunks of 1024 rows", 1.0, _LOSS, rivals=("chunks of 1024 rows",)),
    Goal(
        "mlm_loss: a quarter of the memory of torch, which stores logits",
        4.0,
        _LOSS,
        "memory",
        ("torch eager",),
    ),
    Goal("attention, mixed lengths: 1.3 times SDPA", 1.3, _MIXED, rivals=FLASH),
    *(
        Goal(f"{case}: the best of FlashAttention-2 and cuDNN", 1.0, case, rivals=FLASH)
        for head_dim, dropout in ((64, ""), (64, " dropout"), (26, ""), (128, ""), (256, ""))
        for longest in (512, 128)
        for mix in ("full", "mixed")
        for case in [f"attention D={head_dim} T={longest} {mix}{dropout} both passes"]
    ),
    Goal(
        "embed: 3 times torch eager, both passes",
        3.0,
        "embed base google both passes",
        rivals=("torch eager",),
    ),
    *(
        Goal(f"{name} {_BUSY}", 0.95, f"step {name} T=128 mixed 4096 tokens", "busy")
        for name in ("tiny", "base", "large")
    ),
)


def of_goals(cases: Sequence[Case]) -> list[Case]:
    """Pick the cases of the goals, in their order."""
    wanted = list(dict.fromkeys(goal.case for goal in GOALS))
    return sorted((case for case in cases if case.name in wanted), key=lambda c: wanted.index(c.name))


def judge(results: Sequence[Result], ceilings: Ceilings | None) -> list[Verdict]:
    """Decide every goal, by jixu's best: with other tiles, and a step as a graph, as the trainer runs it."""
    by_name = {result.case: result for result in results}
    verdicts = []
    for goal in GOALS:
        try:
            if ceilings is None:
                raise Unmeasured("the machine's ceilings were not measured")
            if goal.case not in by_name:
                raise Unmeasured(f"{goal.case} was not run")
            result = by_name[goal.case]
            first, *others = (GRAPH,) if goal.figure == "busy" else ("jixu", TUNED, GRAPH)
            ran = [first, *(who for who in others if who in result.timings)]
            figures = {who: _figure(goal, result, who, ceilings) for who in ran}
            words = ", ".join(f"{figure:.2f} ({who})" for who, figure in figures.items())
            wrong = ", WRONG RESULTS" if result.wrong else ""
            is_met = not result.wrong and max(figures.values()) >= goal.least
            verdicts.append(Verdict(goal.claim, is_met, f"{words}, goal {goal.least:g}{wrong}"))
        except Unmeasured as why:
            verdicts.append(Verdict(goal.claim, None, str(why)))
    return verdicts


def goals_table(verdicts: Sequence[Verdict]) -> str:
    """Write verdicts as Markdown."""
    words = {True: "met", False: "missed", None: "not measured"}
    return markdown(["goal", "", "figure"], [(v.claim, words[v.met], v.detail) for v in verdicts]) + "\n"
