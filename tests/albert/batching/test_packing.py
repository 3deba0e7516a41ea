"""Packed batches hold their rows: every token of them, in order, and nothing else."""

from itertools import takewhile

import numpy as np
import pytest

from albert.batching import InstanceStream, is_held_out, mask_batch, pack_batch
from albert.batching.stream import token_batches
from albert.model import IGNORED, pack
from data.errors import InputError
from data.instances import read_shard
from tests.corpora import make_corpus


@pytest.mark.parametrize("rows", np.split(np.random.default_rng(0).permutation(40), [1, 8, 9, 30]), ids=len)
@pytest.mark.parametrize("masking", ["dynamic", "static"])
def test_a_batch_is_its_rows_one_after_the_other_masked_as_each_is_alone(sample_shards, masking, rows):
    stream = InstanceStream(sample_shards, batch_tokens=600, masking=masking)
    instances, info = next(stream.plan()).instances, stream.info

    def packed(rows):
        return pack_batch(instances, rows, info.vocabulary, info.rule, seed=0, epoch=3)

    batch, masked = packed(rows), []
    plain = batch.input_ids.clone()
    plain[batch.masked_index] = batch.masked_labels
    assert len(batch.masked_index) >= len(rows)
    assert batch.max_seqlen == instances.lengths[rows].max()
    for number, row in enumerate(rows):
        begin, end = batch.cu_seqlens[number : number + 2].tolist()
        alone = packed(rows[number : number + 1])
        assert alone.input_ids.tolist() == batch.input_ids[begin:end].tolist()
        masked += (begin + alone.masked_index).tolist()
        tokens = instances.input_ids[instances.offsets[row] : instances.offsets[row + 1]]
        assert plain[begin:end].tolist() == tokens.tolist()
        assert batch.position_ids[begin:end].tolist() == list(range(len(tokens)))
        first_b = instances.segment_b_start[row] or len(tokens)
        types = [0] * first_b + [1] * (len(tokens) - first_b)
        assert batch.token_type_ids[begin:end].tolist() == types
    assert batch.masked_index.tolist() == masked
    orders = instances.sop_labels[rows]
    assert (batch.sop_labels is None) == (orders == IGNORED).all()
    assert batch.sop_labels is None or batch.sop_labels.tolist() == orders.tolist()


def test_special_tokens_are_words_of_their_own_whichever_words_a_caller_marks(tokenizer):
    batch = pack([[tokenizer.cls_id, *range(200, 207), tokenizer.sep_id]] * 100)
    with pytest.raises(InputError, match="a batch without masks"):
        batch.masked()
    pairs = batch.position_ids.numpy() % 2 == 1  # and the last token, with [SEP]
    _, labels = mask_batch(batch, tokenizer, seed=0, word_starts=pairs).masked()
    assert min(labels) >= 200 and (labels == 206).any()


def test_each_epoch_has_an_order_and_dynamic_masks_of_its_own(
    tmp_path, samples, vocabulary_file, monkeypatch
):
    monkeypatch.setattr("data.instances.shards.ROW_GROUP", 16)
    shards = make_corpus(tmp_path, "tea", samples / "tea.jsonl", vocabulary_file, max_seq_length=64)
    tables = [read_shard(one) for one in shards]
    all_ids, sides = (np.concatenate([one[name] for one in tables]) for name in ("instance_id", "side"))
    held_out = is_held_out(sides, 0.1)
    assert len(held_out) > 10 * 16 and 0 < held_out.mean() < 0.5
    for masking in ("dynamic", "static"):
        source = InstanceStream(shards, batch_tokens=300, held_out_share=0.1, masking=masking)
        ids, masked, windows = ({0: [], 1: []} for _ in range(3))
        plan = list(takewhile(lambda one: one.after.epoch < 2, source.plan()))
        for planned in plan:
            ids[planned.after.epoch] += planned.instances.instance_ids[planned.rows].tolist()
            masked[planned.after.epoch] += source.pack(planned, source.info.rule).masked_labels.tolist()
            windows[planned.after.epoch].append(frozenset(planned.instances.instance_ids.tolist()))
        assert sorted(ids[0]) == sorted(ids[1]) == sorted(all_ids[~held_out].tolist())
        assert (sorted(masked[0]) == sorted(masked[1])) == (masking == "static")
        # row groups far apart are read together, others in each epoch
        in_file = np.flatnonzero(np.isin(all_ids, list(windows[0][0])))
        assert len(in_file) == 4 * 16 and max(in_file) - min(in_file) > 6 * 16
        assert not set(windows[0]) & set(windows[1])
        # from amid a window, and from the end of the epoch, the same batches follow
        for at in (1, len(windows[0]) - 1):
            for one, again in zip(plan[at + 1 :], source.plan(plan[at].after), strict=False):
                assert again.after == one.after and np.array_equal(again.rows, one.rows)


def test_token_batches_hold_each_row_once_alike_in_length_and_in_any_order():
    """Batches are about full, and where one stands tells nothing of its lengths."""
    lengths = np.random.default_rng(0).integers(3, 128, 20_000)
    batches = token_batches(lengths, 2000, np.random.default_rng(1))
    assert sorted(np.concatenate(batches).tolist()) == list(range(20_000))
    tokens = np.array([lengths[b].sum() for b in batches])
    assert max(tokens) <= 2000 and np.mean(tokens > 1800) > 0.97
    assert np.mean([np.ptp(lengths[b]) for b in batches]) < 12
    means = np.array([lengths[b].mean() for b in batches])
    assert abs(np.corrcoef(np.arange(len(means)), means)[0, 1]) < 0.1
    assert abs(np.corrcoef(means[:-1], means[1:])[0, 1]) < 0.1
