"""The goals of `benchmarks.gpu` on an H100, and whether its results meet them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.gpu.scale import TOKENS, VOCABULARY
from benchmarks.gpu.timing import TUNED, Case, Ceilings, Result
from benchmarks.support.results import markdown

Figure = Callable[[Result, str, Ceilings], float]  # of a runner: jixu, jixu tuned or jixu graph
GRAPH = "jixu graph"


class Unmeasured(Exception):
    """A goal's case or rival was not measured, for this reason."""


@dataclass(frozen=True)
class Goal:
    """A figure of a case that must reach `least`."""

    claim: str
    least: float
    case: str
    figure: Figure
    who: str = "jixu"


@dataclass(frozen=True)
class Verdict:
    """`met` is None where there is no figure; `detail` is the figure or why there is none."""

    claim: str
    met: bool | None
    detail: str


def _timing(result: Result, who: str):
    if who not in result.timings:
        why = result.absent.get(who) or result.absent.get("jixu", "not measured")
        raise Unmeasured(f"{who}: {why}")
    return result.timings[who]


def _times(claim: str, least: float, case: str, rivals: Sequence[str]) -> Goal:
    """Make a goal for jixu's speed relative to the fastest rival that ran."""

    def figure(result: Result, who: str, _ceilings: Ceilings) -> float:
        ran = [name for name in rivals if name in result.timings]
        # if no rival ran, the first says why
        best = min(_timing(result, name).milliseconds for name in ran or rivals[:1])
        return best / _timing(result, who).milliseconds

    return Goal(claim, least, case, figure)


def _mfu(claim: str, least: float, case: str) -> Goal:
    """Make a goal for jixu's model FLOPs utilisation: its share of the measured ceiling."""

    def figure(result: Result, who: str, ceilings: Ceilings) -> float:
        return result.flops / (_timing(result, who).milliseconds / 1e3) / ceilings.flops

    return Goal(claim, least, case, figure)


def _memory(claim: str, least: float, case: str, rival: str) -> Goal:
    """Make a goal for the rival's peak memory relative to jixu's."""

    def figure(result: Result, who: str, _ceilings: Ceilings) -> float:
        return _timing(result, rival).peak_bytes / max(_timing(result, who).peak_bytes, 1)

    return Goal(claim, least, case, figure)


def _busy(claim: str, least: float, case: str) -> Goal:
    """Make a goal for the share of a step as a CUDA graph that the GPU is busy for."""
    return Goal(claim, least, case, lambda result, who, _: 1 - (_timing(result, who).idle or 0), GRAPH)


FLASH = ("SDPA flash", "varlen_attn", "flash-attn", "SDPA cuDNN")  # FlashAttention-2, in torch too, and cuDNN
SDPA = ("SDPA any", "SDPA efficient", "SDPA nested")
CHUNKS = ("chunks of 1024 rows", "chunks, logits recomputed")
_LOSS = f"mlm_loss n={int(0.15 * TOKENS)} E=128 V={VOCABULARY} both passes"


def _step(name: str, longest: int, tokens: int, mix: str = "full") -> str:
    return f"step {name} T={longest} {mix} {tokens} tokens"


# in the order they are measured in: whole models first, as time may run out
GOALS = (
    _times("base T=128: 3 times transformers eager", 3.0, _step("base", 128, 32768), ("transformers",)),
    _times(
        "base T=128: 1.3 times transformers compiled",
        1.3,
        _step("base", 128, 32768),
        ("transformers compiled",),
    ),
    _mfu("base T=512: MFU 50%", 0.5, _step("base", 512, 32768)),
    _mfu("large T=512: MFU 55%", 0.55, _step("large", 512, 16384)),
    _mfu("tiny T=512: MFU 25%", 0.25, _step("tiny", 512, 65536)),
    _times("mlm_loss: 1.5 times torch.compile", 1.5, _LOSS, ("torch.compile",)),
    _times("mlm_loss: faster than chunks of 1024 rows", 1.0, _LOSS, CHUNKS),
    _memory("mlm_loss: a quarter of the memory of torch, which stores logits", 4.0, _LOSS, "torch eager"),
    _times("attention, mixed lengths: 1.3 times SDPA", 1.3, "attention D=64 T=512 mixed both passes", SDPA),
    *(
        _times(f"{case}: the best of FlashAttention-2 and cuDNN", 1.0, case, FLASH)
        for head_dim in (64, 26, 128, 256)
        for longest in (512, 128)
        for mix in ("full", "mixed")
        for case in [f"attention D={head_dim} T={longest} {mix} both passes"]
    ),
    _times("embed: 3 times torch eager, both passes", 3.0, "embed base google both passes", ("torch eager",)),
    *(
        _busy(
            f"{name} 4k tokens: busy for 95% of a step as a graph",
            0.95,
            _step(name, 128, 4096, "mixed") + ", launched",
        )
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
            figures = {goal.who: goal.figure(result, goal.who, ceilings)}
            for other in (TUNED, GRAPH) if goal.who == "jixu" else ():
                if other in result.timings:
                    figures[other] = goal.figure(result, other, ceilings)
            best = max(figures.values())
            words = ", ".join(f"{figure:.2f} ({who})" for who, figure in figures.items())
            wrong = ", WRONG RESULTS" if result.wrong else ""
            verdicts.append(Verdict(goal.claim, best >= goal.least, f"{words}, goal {goal.least:g}{wrong}"))
        except Unmeasured as why:
            verdicts.append(Verdict(goal.claim, None, str(why)))
    return verdicts


def goals_table(verdicts: Sequence[Verdict]) -> str:
    """Write verdicts as Markdown."""
    words = {True: "met", False: "missed", None: "not measured"}
    return markdown(["goal", "", "figure"], [(v.claim, words[v.met], v.detail) for v in verdicts]) + "\n"
