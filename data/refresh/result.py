"""The result of a refresh: the version it made, or the current one if nothing changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from data.catalog import FunnelRow, Version
from data.refresh.funnel import LONG_ADVICE, LONG_DOCUMENT
from data.refresh.gates import Gate
from data.refresh.plan import Plan, is_changed
from data.refresh.settings import advice_for
from data.segmentation import Word

_LAYOUTS = {
    "bert": "a sentence a line",
    "document": "a document each",
    "lines": "a document a line",
    "wrapped": "wrapped lines",
}
MOST_REASONS, MOST_WORDS = 5, 20  # listed by name
NOTABLE_SHARE = 0.1  # of the documents held out


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshResult(Version):
    """A version, and what the refresh did to get to it."""

    is_new: bool  # False: nothing changed, this version was there before
    new_shards: int
    kept_shards: int
    removed_documents: int
    anew: str | None  # why everything was built again, if it was
    funnel: tuple[FunnelRow, ...] = ()  # of a new version
    gates: tuple[Gate, ...] = ()
    new_words: tuple[Word, ...] = ()  # the best first; none unless `discover_words` asked for some

    def counts(self, unit: str) -> list[tuple[str, int]]:
        """List the reasons of a unit's rows in the funnel with their counts, the largest first."""
        counts = [(row.reason, row.amount) for row in self.funnel if row.unit == unit and row.reason]
        return sorted(counts, key=lambda pair: -pair[1])


def result_of(
    plan: Plan, version: Version, kept: int, new: int = 0, removed: int = 0, funnel: Sequence[FunnelRow] = ()
) -> RefreshResult:
    """Make the result for a version, with its funnel unless nothing changed."""
    return RefreshResult(
        **asdict(version),
        is_new=bool(funnel),
        new_shards=new,
        kept_shards=kept,
        removed_documents=removed,
        anew=plan.anew,
        funnel=tuple(funnel),
    )


def unchanged_version(plan: Plan) -> RefreshResult | None:
    """Return the current version if sources, recipe and its files are unchanged; None if there is work."""
    current, root = plan.current, plan.workspace.root
    if not current or plan.anew or plan.settings.discover_words:
        return None
    paths = [
        current.index_path,
        *(path for shard in plan.current_shards for path in (shard.path, shard.documents_path)),
        *(source.listing_path for source in plan.current_sources),
    ]
    is_whole = all((root / path).is_file() for path in paths)
    # a new or missing source shows without reading the others
    if not is_whole or [file.previous for file in plan.files] != [*plan.current_sources]:
        return None
    if any(is_changed(file, plan) for file in plan.files):
        return None
    return result_of(plan, current, len(plan.current_shards))


def describe_result(result: RefreshResult) -> list[str]:
    """Describe a version to a person, and what is new, line by line."""
    words = [word.word for word in result.new_words]
    rest = f", all in lexicons/{result.corpus} of the workspace" if len(words) > MOST_WORDS else ""
    shown = f"{len(words):,} new word(s), the best first: {' '.join(words[:MOST_WORDS])}{rest}"
    found = [shown] if words else []
    version = f"{result.corpus} version {result.version}"
    sizes = f"{result.documents:,} documents, {result.instances:,} instances, {result.tokens:,} tokens"
    if not result.is_new:
        return [f"nothing changed: {version} is still current ({sizes})", *found]
    off = "off: it was switched off, or the objective or the documents have no sentence order"
    order = f"on ({_order(result)})" if result.sop else off
    anew = f": everything anew, as {result.anew}" if result.anew else ""
    return [
        f"{version}: {sizes}",
        f"{result.new_shards} shard(s) written, {result.kept_shards} reused{anew}; "
        f"{result.removed_documents:,} document(s) removed; sentence-order prediction {order}",
        *_describe_held_out(result),
        *describe_left_out(result),
        *found,
    ]


def _describe_held_out(result: RefreshResult) -> list[str]:
    """Warn of a new corpus that loses much to the held-out documents, its own or an earlier one's."""
    if result.version > 1 or result.held_out_share <= NOTABLE_SHARE:
        return []
    return [
        f"{result.held_out_share:.0%} of the documents are held out and never trained on: the workspace's "
        "smallest corpus needs that many, and those made after it take its share over. If it is a trial, "
        "remove it and them (jixu corpus remove NAME)"
    ]


def _order(result: RefreshResult) -> str:
    """Say how many instances have sentence order, and why others have none."""
    why = {"no_pair": "are no two whole sentences", "source_without_order": "come from sources without order"}
    without = result.counts("without_order")
    shares = [(count / result.instances, why[reason]) for reason, count in without]
    rest = [f"{share:.1%} {reason}" for share, reason in shares if share >= 0.0005]
    with_order = 1 - sum(count for _, count in without) / result.instances
    return "; ".join([f"{with_order:.1%} of instances", *rest])


def describe_reasons(left_out: Sequence[tuple[str, int]], where: str = "") -> list[str]:
    """Describe how many documents were left out and why, the most frequent first, and what can be done."""
    most = MOST_REASONS if len(left_out) > MOST_REASONS + 1 else len(left_out)  # "1 other" is no shorter
    shown, rest = left_out[:most], left_out[most:]
    reasons = [f"{count:,} {reason}" for reason, count in shown]
    if rest:
        reasons.append(f"{sum(count for _, count in rest):,} for {len(rest)} other reason(s)")
    total = sum(count for _, count in left_out)
    return [f"left out {total:,} document(s){where}: {', '.join(reasons)}", *advice_for(dict(left_out))]


def describe_left_out(result: RefreshResult) -> list[str]:
    """Describe documents left out, encodings and text files, a line each if there are any."""
    lines = []
    if left_out := result.counts("documents"):
        lines += describe_reasons(left_out, f" (some by: jixu corpus dropped {result.corpus})")
    if guarded := dict(result.counts("characters")).get("in_evaluation_set"):
        lines.append(
            f"in_evaluation_set: {guarded:,} characters, as documents go whole; where set phrases are "
            "common, a larger --guard.share drops fewer"
        )
    if encodings := [f"{count:,} from {encoding}" for encoding, count in result.counts("decoded_from")]:
        lines.append(f"decoded: {', '.join(encodings)}")
    for _, urls in result.counts("removed"):
        lines.append(f"removed {urls:,} URL(s) from the text")
    if files := [f"{count:,} as {_LAYOUTS[layout]}" for layout, count in result.counts("files_read_as")]:
        lines.append(f"text files read: {', '.join(files)}")
    for _, count in result.counts("files_with_long"):
        lines.append(f"{count:,} of them with a document of over {LONG_DOCUMENT:,} characters: {LONG_ADVICE}")
    return lines
