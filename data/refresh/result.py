"""What a refresh leaves: the version that was made, or the one that stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from data.catalog import Version
from data.instances import find_objective
from data.refresh.funnel import FunnelRow
from data.refresh.gates import Gate
from data.refresh.plan import Plan, preview
from data.segmentation import Word

MOST_REASONS = 5  # told by name


@dataclass(frozen=True, slots=True)
class RefreshResult:
    corpus: str
    version: int
    is_new: bool  # False: nothing changed, this version was there before
    sop: bool
    sop_reason: str  # why it is off; empty where it is on
    documents: int
    instances: int
    tokens: int
    new_shards: int
    kept_shards: int
    removed_documents: int
    # of a version that was made: documents that are not in it, by reason, and those in it or not that were
    # in another encoding than UTF-8; the most first
    left_out: tuple[tuple[str, int], ...] = ()
    decoded_from: tuple[tuple[str, int], ...] = ()
    gates: tuple[Gate, ...] = ()
    new_words: tuple[Word, ...] = ()  # the best first; none unless `discover_words` asked for some


def result_of(
    plan: Plan,
    version: Version,
    is_new: bool,
    kept: int,
    new: int,
    removed: int,
    funnel: Sequence[FunnelRow] = (),
) -> RefreshResult:
    """`funnel`: the rows of a version that was made."""
    settings = plan.settings
    if version.sop:
        reason = ""
    elif not find_objective(settings.objective).sentence_order:
        reason = f"{settings.objective} has none"
    else:
        reason = "as asked" if settings.instances.sop == "off" else "the documents have no sentence order"
    counts = (version.documents, version.instances, version.tokens)
    told = (_by_reason(funnel, unit) for unit in ("documents", "decoded_from"))
    return RefreshResult(
        version.corpus, version.version, is_new, version.sop, reason, *counts, new, kept, removed, *told
    )


def _by_reason(funnel: Sequence[FunnelRow], wanted: str) -> tuple[tuple[str, int], ...]:
    found = [(reason, count) for _, _, unit, _, _, reason, count in funnel if unit == wanted and reason]
    return tuple(sorted(found, key=lambda one: -one[1]))


def standing(plan: Plan) -> RefreshResult | None:
    """The current version, if sources and recipe are as they were and its files are there: nothing is to be
    done. None if something may have changed.
    """
    current, root = plan.current, plan.workspace.root
    # in another order another of two duplicates may be the first
    in_order = [file.uri for file in plan.files] == [source.uri for source in plan.current_sources]
    if not current or not plan.current_shards or not in_order:
        return None
    paths = [
        current.index_path,
        *(path for one in plan.current_shards for path in (one.path, one.documents_path)),
        *(source.listing_path for source in plan.current_sources),
    ]
    if not all((root / path).is_file() for path in paths) or preview(plan).read:
        return None
    return result_of(plan, current, False, len(plan.current_shards), 0, 0)


def describe_standing(result: RefreshResult) -> str:
    """What a person is told where nothing changed."""
    counts = f"{result.documents:,} documents, {result.instances:,} instances, {result.tokens:,} tokens"
    return f"nothing changed: {result.corpus} version {result.version} stands ({counts})"


def describe_new(result: RefreshResult) -> list[str]:
    """The lines a person is told of a version that was made."""
    counts = f"{result.documents:,} documents, {result.instances:,} instances, {result.tokens:,} tokens"
    order = "on" if result.sop else f"off ({result.sop_reason})"
    return [
        f"{result.corpus} version {result.version}: {counts}",
        f"{result.new_shards} shard(s) written, {result.kept_shards} kept, "
        f"{result.removed_documents:,} document(s) gone; sentence-order prediction {order}",
        *describe_left_out(result),
    ]


def describe_left_out(result: RefreshResult) -> list[str]:
    """A line each of the documents that are not in a new version, and of encodings, where there are any."""
    lines = []
    if result.left_out:
        shown, rest = result.left_out[:MOST_REASONS], result.left_out[MOST_REASONS:]
        reasons = [f"{count:,} {reason}" for reason, count in shown]
        if rest:
            reasons.append(f"{sum(count for _, count in rest):,} for {len(rest)} other reason(s)")
        total = sum(count for _, count in result.left_out)
        what = f"left out {total:,} document(s), each a row of the view documents"
        lines.append(f"{what}: {', '.join(reasons)}")
    if result.decoded_from:
        encodings = [f"{count:,} from {encoding}" for encoding, count in result.decoded_from]
        lines.append(f"decoded: {', '.join(encodings)}")
    return lines
