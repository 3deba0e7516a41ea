"""The goals of `benchmarks.gpu` on an H200, and whether its results meet them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from benchmarks.gpu.timing import COMPILE, Case, Ceilings, Result, Run

Figure = Callable[[dict[str, Result], Ceilings], float]


class Unmeasured(Exception):
    """A goal's case or rival was not measured, for this reason."""


@dataclass(frozen=True)
class Goal:
    """A figure of one or two cases that must reach `least`."""

    claim: str
    least: float
    figure: Figure
    cases: tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    """`met` is None where there is no figure; `detail` is the figure or why there is none."""

    claim: str
    met: bool | None
    detail: str


def _milliseconds(results: dict[str, Result], case: str, who: str) -> float:
    if case not in results:
        raise Unmeasured(f"{case} was not run")
    result = results[case]
    if who not in result.timings:
        raise Unmeasured(f"{who}: {result.absent.get(who) or result.absent.get('jixu', 'not measured')}")
    return result.timings[who].milliseconds


def _times(claim: str, least: float, case: str, rivals: Sequence[str]) -> Goal:
    """Make a goal for jixu's speed relative to the fastest rival that ran."""

    def figure(results: dict[str, Result], _ceilings: Ceilings) -> float:
        ours = _milliseconds(results, case, "jixu")
        ran = [name for name in rivals if name in results[case].timings]
        # if no rival ran, the first says why
        return min(_milliseconds(results, case, name) for name in ran or rivals[:1]) / ours

    return Goal(claim, least, figure, (case,))


def _share(claim: str, least: float, case: str, what: str) -> Goal:
    """Make a goal for jixu's share of the measured ceiling of "flops" or "bytes"."""

    def figure(results: dict[str, Result], ceilings: Ceilings) -> float:
        seconds = _milliseconds(results, case, "jixu") / 1e3
        return getattr(results[case], what) / seconds / getattr(ceilings, what)

    return Goal(claim, least, figure, (case,))


def _memory(claim: str, least: float, case: str, rival: str) -> Goal:
    """Make a goal for the rival's peak memory relative to jixu's."""

    def figure(results: dict[str, Result], _ceilings: Ceilings) -> float:
        for who in ("jixu", rival):
            _milliseconds(results, case, who)
        ours, theirs = (results[case].timings[who].peak_bytes for who in ("jixu", rival))
        return theirs / max(ours, 1)

    return Goal(claim, least, figure, (case,))


def _tokens(claim: str, least: float, case: str, other: str) -> Goal:
    """Make a goal for jixu's tokens per second in one case relative to another."""

    def figure(results: dict[str, Result], _ceilings: Ceilings) -> float:
        ours, theirs = (_milliseconds(results, name, "jixu") / results[name].tokens for name in (case, other))
        return theirs / ours

    return Goal(claim, least, figure, (case, other))


FLASH = ("SDPA flash", "varlen_attn", "flash-attn")  # FlashAttention-2 in torch, and its own package
SDPA = ("SDPA any", "SDPA efficient", "SDPA nested")
CHUNKS = ("chunks of 1024 rows", "chunks, logits recomputed")
MASKED, VOCABULARY = 9830, 21128  # of a batch of 65536 tokens
_LOSS = f"mlm_loss n={MASKED} E=128 V={VOCABULARY} both passes"
_FLASH = "attention D=64 T=512: as fast as FlashAttention-2"
_SHORT = {name: f"step {name} T=128 full" for name in ("base", "large", "bert-large")}
_LONG = {name: f"step {name} T=512 full" for name in ("tiny", "base", "large")}

# in the order they are measured in: whole models first, as time may run out
GOALS = (
    _times("base T=128: 3 times transformers eager", 3.0, _SHORT["base"], ("transformers",)),
    _times("base T=128: 1.7 times transformers compiled", 1.7, _SHORT["base"], ("transformers compiled",)),
    _share("base T=512: MFU 50%", 0.5, _LONG["base"], "flops"),
    _share("large T=512: MFU 50%", 0.5, _LONG["large"], "flops"),
    _share("tiny T=512: MFU 35% (45% hoped for)", 0.35, _LONG["tiny"], "flops"),
    _tokens("large T=128: 1.7 times BERT-large's speed", 1.7, _SHORT["large"], _SHORT["bert-large"]),
    _times(f"{_FLASH}, forward", 1.0, "attention base T=512 full forward", FLASH),
    _times(f"{_FLASH}, both passes", 1.0, "attention base T=512 full both passes", FLASH),
    _times("attention, mixed lengths: 1.3 times SDPA", 1.3, "attention base T=512 mixed both passes", SDPA),
    _times("mlm_loss: 1.5 times torch.compile", 1.5, _LOSS, ("torch.compile",)),
    _times("mlm_loss: faster than chunks of 1024 rows", 1.0, _LOSS, CHUNKS),
    _memory("mlm_loss: a quarter of the memory of torch, which stores logits", 4.0, _LOSS, "torch eager"),
    _share("embed: 80% of copy bandwidth, forward", 0.8, "embed base google forward", "bytes"),
    _times("embed: 3 times torch eager, both passes", 3.0, "embed base google both passes", ("torch eager",)),
)


def by_importance(cases: Sequence[Case]) -> list[Case]:
    """Order cases: those of the goals, then the others, then what compiles among these."""
    wanted = list(dict.fromkeys(name for goal in GOALS for name in goal.cases))
    others = [case for case in cases if case.name not in wanted]
    first = sorted((case for case in cases if case.name in wanted), key=lambda c: wanted.index(c.name))
    compiling = [case for case in others if case.of_kernels and case.name.endswith("both passes")]
    return [
        *first,
        *(_only(case, compiled=False) if case in compiling else case for case in others),
        *(_only(case, compiled=True) for case in compiling),
    ]


def _only(case: Case, compiled: bool) -> Case:
    """Restrict a case to jixu and the rivals that compile, or to all others."""

    def runners() -> dict[str, Run | str]:
        made = case.runners()
        return {name: run for name, run in made.items() if name == "jixu" or (name in COMPILE) == compiled}

    return replace(case, name=case.name + ", compiled" * compiled, runners=runners)


def judge(results: Sequence[Result], ceilings: Ceilings | None) -> list[Verdict]:
    """Decide every goal."""
    by_name = {result.case: result for result in results}
    verdicts = []
    for goal in GOALS:
        try:
            if ceilings is None:
                raise Unmeasured("the machine's ceilings were not measured")
            figure = goal.figure(by_name, ceilings)
            verdicts.append(Verdict(goal.claim, figure >= goal.least, f"{figure:.2f}, goal {goal.least:g}"))
        except Unmeasured as why:
            verdicts.append(Verdict(goal.claim, None, str(why)))
    return verdicts


def goals_table(verdicts: Sequence[Verdict]) -> str:
    """Write verdicts as Markdown."""
    words = {True: "met", False: "missed", None: "not measured"}
    lines = ["| goal | | figure |", "|---|---|---|"]
    lines += [f"| {v.claim} | {words[v.met]} | {v.detail} |" for v in verdicts]
    return "\n".join(lines) + "\n"
