from collections import Counter
from itertools import pairwise
from math import exp, log

import pytest

from data.cleaning import CharacterPairs
from data.sources import document_id
from tests.conftest import sample_texts

RARE = "龘靐齉齾爩麤灪龖厵滟癵驫麣钃鸜麷。"


def counted(texts, size=50):
    pairs, ids = CharacterPairs(), list(map(document_id, texts))
    for begin in range(0, len(texts), size):
        pairs.add(ids[begin : begin + size], texts[begin : begin + size])
    return pairs, ids


def test_it_is_that_of_pairs_of_characters_in_the_other_half_in_whatever_order_and_batches():
    texts = sample_texts()
    pairs, ids = counted(texts)
    for number in (0, 7, 33):
        own = int(ids[number][-1], 16) % 2
        others = [f"\n{text}\n" for text, one in zip(texts, ids, strict=True) if int(one[-1], 16) % 2 != own]
        total, loss, text = sum(len(one) - 1 for one in others), 0.0, f"\n{texts[number]}\n"
        single = Counter("".join(one[1:] for one in others))
        both = Counter(pair for one in others for pair in pairwise(one))
        for before, after in pairwise(text):
            alone = (single[after] + 1) / (total + 2**18)
            loss -= log((both[before, after] + 100 * alone) / (single[before] + 100))
        expected = exp(loss / (len(text) - 1))
        assert pairs.perplexities([ids[number]], [texts[number]])[0] == pytest.approx(expected, rel=0.02)
    turned, _ = counted(texts[::-1], 7)
    assert (pairs.perplexities(ids, texts)[::-1] == turned.perplexities(ids[::-1], texts[::-1])).all()


def test_unlikely_documents_are_dropped_and_the_others_keep_what_was_measured(tea):
    tea.put("a", *sample_texts(), RARE)
    tea = tea.changed(quality={"max_perplexity": 10_000})

    def measured():
        rows = tea.ask("select doc_id, perplexity, dropped_stage, dropped_reason from documents")
        funnel = "from funnel where unit = 'documents' and reason = 'perplexity' order by version desc"
        ((lost,), *_) = tea.ask(f"select count {funnel}")
        return {row[0]: row[1] for row in rows}, [row for row in rows if row[2]], lost

    first = tea.refresh()
    before, dropped, lost = measured()
    assert [row[2:] for row in dropped] == [("filter", "perplexity")] and lost == 1
    assert dropped[0][0] == document_id(RARE) and dropped[0][1] > 10_000 > sorted(before.values())[-2] > 1
    assert not tea.refresh().is_new
    tea.put("b", "新来的一篇讲怎样选茶杯。白瓷的最公道，也最容易看出汤色。", RARE[::-1])
    assert tea.refresh().kept_shards == first.new_shards
    after, dropped, lost = measured()
    assert len(after) == len(before) + 2 and lost == 2 and after.items() >= before.items()
    assert not tea.refresh().is_new
    assert RARE not in tea.texts()
