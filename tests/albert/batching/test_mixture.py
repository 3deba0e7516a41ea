import threading
import time
from itertools import islice

import numpy as np
import pytest
import torch

from albert.batching import DataState, InstanceStream, Loader, Phase, TrainingData, is_held_out
from data.errors import InputError
from tests.corpora import make_corpus

STEPS = 60


@pytest.fixture(scope="module")
def corpora(tmp_path_factory, samples, vocabulary_file, tea_shards):
    root = tmp_path_factory.mktemp("workspace")
    options = {"masking": {"rate": 0.4}, "instances": {"sop": "off"}}
    return [tea_shards, make_corpus(root, "general", samples / "general.txt", vocabulary_file, **options)]


def data(corpora, phases, batch_tokens=300, **options):
    shares = {"held_out_share": 0.1, "never_trained_share": 0.2}
    streams = [InstanceStream(shards, batch_tokens=batch_tokens, **shares) for shards in corpora]
    return TrainingData(streams, phases, **options)


def steps_of(source, count=STEPS, state=None):
    return list(islice(source.steps(state or DataState.start(2)), count))


def same(a, b):
    return torch.equal(a.input_ids, b.input_ids) and torch.equal(a.masked_labels, b.masked_labels)


def test_shares_of_the_tokens_are_kept_to_within_a_batch_and_each_corpus_is_masked_by_its_rule(corpora):
    drawn, masked = [0, 0], [0, 0]
    for step in steps_of(data(corpora, [Phase(STEPS, (0.7, 0.3))])):
        drawn[step.corpora[0]] += step.batches[0].tokens
        masked[step.corpora[0]] += len(step.batches[0].masked_index)
        assert abs(drawn[1] - 0.3 * sum(drawn)) <= 300 and step.after.tokens == tuple(drawn)
    assert [m / n for m, n in zip(masked, drawn, strict=True)] == pytest.approx([0.15, 0.4], abs=0.03)


def test_any_step_can_be_resumed_from(corpora):
    phases = [Phase(STEPS // 2, (0.7, 0.3)), Phase(STEPS, (0.2, 0.8))]
    run = steps_of(data(corpora, phases, accumulate=2))
    for at in (0, 13, 29, 30, 47):
        again = steps_of(data(corpora, phases, accumulate=2), 3, run[at].after)
        for step, expected in zip(again, run[at + 1 : at + 4], strict=True):
            assert step.after == expected.after and step.corpora == expected.corpora
            assert all(map(same, step.batches, expected.batches))
    # each phase counts its own tokens
    assert sum(run[29].after.tokens) > 20 * 300 > 2 * 300 >= sum(run[30].after.tokens)
    assert run[3].after.rolled_back_to(2).skipped == 6


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_processes_share_out_the_same_batches(corpora, world_size):
    phases = [Phase(STEPS, (0.6, 0.4))]
    alone = steps_of(data(corpora, phases, accumulate=4), 20)
    given = {"accumulate": 4, "world_size": world_size}
    parts = [steps_of(data(corpora, phases, rank=rank, **given), 20) for rank in range(world_size)]
    for number, step in enumerate(alone):
        assert all(part[number][2:] == step[2:] for part in parts)
        for i, batch in enumerate(step.batches):
            assert same(parts[i % world_size][number].batches[i // world_size], batch)


def test_phases_count_the_steps_that_were_not_rolled_back(corpora):
    phases = [Phase(20, (0.7, 0.3)), Phase(40, (0.0, 1.0))]
    after = steps_of(data(corpora, phases, accumulate=2), 25)[-1].after
    back = after.rolled_back_to(2 * 12)
    again = steps_of(data(corpora, phases, accumulate=2), 20, back)
    drawn = [step.corpora for step in again]
    assert {0, 1} == {corpus for pair in drawn[:8] for corpus in pair} and drawn[8:] == [[1, 1]] * 12
    # nothing that was rolled back is drawn again, and the shares hold for what is drawn
    assert again[0].after.batches == after.batches + 2
    assert again[7].after.cursors[0] > after.cursors[0]
    first = again[7].after.tokens
    assert abs(first[1] - 0.3 * sum(first)) <= 300
    # and a second time
    twice = again[3].after.rolled_back_to(2 * 13)
    assert twice.batches - twice.skipped == 2 * 13


def test_the_mask_rate_is_on_a_line_over_all_phases(corpora):
    phases = [Phase(20, (1.0, 0.0)), Phase(STEPS, (0.0, 1.0))]
    source = data(corpora, phases, mask_rates=(0.5, 0.1))
    rates = {step: source.rule_at(1, step).rate for step in (0, 20, 40, STEPS - 1, STEPS + 5)}
    assert rates == {0: 0.5, 20: 0.36, 40: 0.23, STEPS - 1: 0.1, STEPS + 5: 0.1}
    assert data(corpora, [Phase(1, (0.0, 1.0))], mask_rates=(0.5, 0.1)).rule_at(1, 0).rate == 0.5
    plain, falling = steps_of(data(corpora, phases)), steps_of(source)
    shares = [len(s.batches[0].masked_index) / s.batches[0].tokens for s in falling]
    assert np.mean(shares[:6]) > 0.4 and np.mean(shares[-6:]) < 0.16
    assert [s.after for s in plain] == [s.after for s in falling]


def test_how_often_each_corpus_is_read(corpora):
    source = data(corpora, [Phase(100, (0.7, 0.3)), Phase(200, (0.2, 0.8))], 2000, accumulate=2)
    drawn = [0, 0]
    for number, step in enumerate(steps_of(source, 200), 1):
        for corpus, batch in zip(step.corpora, step.batches, strict=True):
            drawn[corpus] += batch.tokens
        if number in (50, 100, 200):
            of = [sum(one.lengths[rows].sum() for one, rows in s.training_text()) for s in source.streams]
            assert source.passes(number) == pytest.approx(np.divide(drawn, of), rel=0.1)


def test_a_document_held_out_of_one_corpus_is_trained_on_in_none(corpora):
    source = data(corpora, [Phase(STEPS, (0.5, 0.5))])
    planned = islice(source.streams[1].plan(), 200)
    # nor are baselines made from it
    for parts in ([(p.instances, p.rows) for p in planned], source.streams[1].training_text()):
        sides = np.concatenate([instances.sides[rows] for instances, rows in parts])
        assert not is_held_out(sides, 0.2).any() and is_held_out(sides, 0.5).any()


def test_the_loader_gives_the_same_steps_ahead_of_time_and_ends_its_thread(corpora):
    source, start = data(corpora, [Phase(STEPS, (0.5, 0.5))]), DataState.start(2)
    expected = steps_of(source)
    threads = set()

    def prepare(step):
        threads.add(threading.current_thread())
        return step

    loader = Loader(data(corpora, [Phase(STEPS, (0.5, 0.5))]), start, prepare)
    time.sleep(0.2)
    for step in expected:
        got = next(loader)
        assert got.after == step.after and all(map(same, got.batches, step.batches))
    assert 0 <= loader.waited < 5
    loader.close()
    loader.begin(expected[9].after)
    assert next(loader).after == expected[10].after
    loader.close()
    assert len(threads) == 2  # one before the restart and one after
    assert not any(thread.is_alive() for thread in threads)
    assert threading.main_thread() not in threads


def test_the_loader_counts_how_long_it_was_waited_for_and_its_error_reaches_the_trainer(corpora, monkeypatch):
    source = data(corpora, [Phase(STEPS, (0.5, 0.5))])
    steps = source.steps
    monkeypatch.setattr(source, "steps", lambda state: (time.sleep(0.15) or step for step in steps(state)))
    loader = Loader(source, DataState.start(2), lambda step: step)
    started = time.perf_counter()
    for _ in range(2):
        next(loader)
    assert 0.25 < loader.waited <= time.perf_counter() - started
    loader.close()
    source = data(corpora, [Phase(STEPS, (1.0, 0.0))])
    source.streams[0].never_trained_share = 1.0
    loader = Loader(source, DataState.start(2), lambda step: step)
    with pytest.raises(InputError, match="of .*shards.* is held out: nothing is left to train on"):
        next(loader)
    loader.close()
