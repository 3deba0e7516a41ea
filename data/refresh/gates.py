"""Gates between building a version and committing it: a version that fails one is not committed.

Row counts come from the footer of every new shard, values from the first instances of a few.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data.errors import InputError
from data.instances import MaskRule, Shard, ShardInfo, list_values, read_info, read_shard
from data.refresh.assign import Division
from data.refresh.plan import Plan
from data.tokenization import load_tokenizer

AUDITED_SHARDS = 8  # evenly spaced among the new ones
# 80% [MASK], 10% the same, 10% random (Devlin et al. 2019, 3.1)
MASK_SHARE = 0.8
# of the tokens to mask: whole words round below and above
LEAST_MASKED, MOST_MASKED = 0.5, 1.25
SHORT = 4  # tokens to mask by the rate; with fewer an instance's first word rounds it far up
# standard deviations of a share: n-grams are replaced together, so tokens are not independent
DEVIATIONS = 12
FEW_TOKENS = 5000  # with fewer, the share of masks is not checked


@dataclass(frozen=True, slots=True)
class Gate:
    """A measured value and the bounds it must lie in."""

    name: str
    value: float
    low: float
    high: float

    @property
    def passed(self) -> bool:
        return self.low <= self.value <= self.high

    def describe(self) -> str:
        return f"{self.name} is {self.value:.4g}, not from {self.low:.4g} to {self.high:.4g}"


def check_quality(plan: Plan, division: Division, built: Sequence[Shard | None]) -> tuple[Gate, ...]:
    """Measure every gate. Raises InputError naming those that failed."""
    new = [shard for shard in built if shard]
    gates = [*_row_counts(plan, new), *_losses(plan, division, new)]
    if new:
        gates += _audit(plan, new, division.sop)
    failed = [gate for gate in gates if not gate.passed]
    if failed:
        left = f"version {plan.current.version} stays" if plan.current else "it has no version yet"
        reasons = pq.read_table(division.listed_path, columns=["reason"])["reason"].drop_null().value_counts()
        dropped = ", ".join(f"{one['counts']:,} {one['values']}" for one in reasons.to_pylist())
        raise InputError(
            f"{plan.settings.corpus} was not committed, {left}: "
            f"{'; '.join(gate.describe() for gate in failed)}. Look at the sources, of which it leaves out "
            f"{dropped or 'nothing'}; if all is as it should be, a bound named in brackets can be widened "
            "(gates of the recipe)"
        )
    return tuple(gates)


def _row_counts(plan: Plan, new: Sequence[Shard]) -> list[Gate]:
    missing = 0
    for shard in new:
        for path, rows in ((shard.path, shard.instances), (shard.documents_path, shard.documents)):
            missing += abs(pq.read_metadata(plan.workspace.root / path).num_rows - rows)
    return [Gate("rows that a shard lacks or has too many", missing, 0, 0)]


def _losses(plan: Plan, division: Division, new: Sequence[Shard]) -> list[Gate]:
    if plan.current is None or not plan.current.documents:
        return []
    after = sum(shard.documents for shard in (*division.kept, *new))
    lost = 1 - after / plan.current.documents
    bound = plan.settings.gates.max_lost_documents
    return [Gate("share of documents lost (max_lost_documents)", max(0.0, lost), 0, bound)]


def _audit(plan: Plan, new: Sequence[Shard], sop: bool) -> list[Gate]:
    """Gates on values: nulls, [UNK], labels and masks."""
    step = max(1, len(new) // AUDITED_SHARDS)
    paths = [plan.workspace.root / shard.path for shard in new[::step][:AUDITED_SHARDS]]
    info = read_info(paths[0])
    table = pa.concat_tables([read_shard(path, 0) for path in paths]).combine_chunks()
    nulls = sum(table[name].null_count for name in table.column_names if name != "sop_label")
    false_order = 0 if sop else len(table) - table["sop_label"].null_count
    ids, starts = list_values(table["input_ids"])
    places, masked = list_values(table["masked_positions"])
    labels, replacements = (list_values(table[name])[0] for name in ("masked_labels", "masked_input_ids"))
    at = np.repeat(starts[:-1], np.diff(masked)) + places
    special = np.isin(ids, info.vocabulary.special_ids)
    unknown = ids == load_tokenizer(plan.tokenizer_path).unknown_id
    tokens = int(np.sum(~special | unknown))  # without [CLS] and [SEP]
    bound = plan.settings.gates.max_unknown_share
    return [
        Gate("nulls where none may be", nulls, 0, 0),
        Gate("labels of sentence order where there is none", false_order, 0, 0),
        Gate("labels that are not the token at their place", int(np.sum(ids[at] != labels)), 0, 0),
        Gate("masked special tokens", int(np.sum(special[at])), 0, 0),
        Gate("share of [UNK] (max_unknown_share)", int(np.sum(unknown)) / max(tokens, 1), 0, bound),
        *_masked_share(info.rule, np.add.reduceat(~special, starts[:-1], dtype=int), np.diff(masked)),
        *_mask_tokens_share(info, len(at), int(np.sum(replacements == info.vocabulary.mask_id))),
    ]


def _masked_share(rule: MaskRule, lengths: np.ndarray, masked: np.ndarray) -> list[Gate]:
    """A gate on the share of the tokens [S] that are masked [S], in instances that are not short."""
    is_long = rule.rate * lengths >= SHORT
    lengths, masked = lengths[is_long], masked[is_long]
    if (tokens := lengths.sum()) < FEW_TOKENS:
        return []
    to_mask = float(np.minimum(rule.rate * lengths, rule.max_predictions or np.inf).sum() / tokens)
    low, high = LEAST_MASKED * to_mask, MOST_MASKED * to_mask
    return [Gate("share of tokens masked", float(masked.sum() / tokens), low, high)]


def _mask_tokens_share(info: ShardInfo, masked: int, mask_tokens: int) -> list[Gate]:
    if not masked or info.vocabulary.similar is not None:
        return []
    off = DEVIATIONS * (MASK_SHARE * (1 - MASK_SHARE) / masked) ** 0.5
    low, high = MASK_SHARE - off, min(1.0, MASK_SHARE + off)
    return [Gate("share of [MASK] among masks", mask_tokens / masked, low, high)]
