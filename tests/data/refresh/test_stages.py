"""What a refresh holds out, over versions and corpora."""

import re
from itertools import takewhile

import numpy as np
import pytest

from albert.batching import InstanceStream, is_held_out
from data.catalog import never_trained_share, read_catalog, require_version, version_shards
from data.cleaning import sides_of
from tests.conftest import sample_texts
from tests.corpora import write_jsonl

# short documents, each of one sentence
SENTENCES = list(
    dict.fromkeys(one for text in sample_texts() for one in re.findall("[^。！？\\n]{12,}[。！？]", text))
)


@pytest.fixture
def refreshed(tea):
    """Refresh a corpus to some documents; returns the stream of its instances and its held-out share."""

    def stream(texts, corpus="c", **options):
        source = tea.raw / f"{corpus}.jsonl"
        write_jsonl(source, *texts)
        tea.refresh(corpus=corpus, source=(str(source),), **options)
        with read_catalog(tea.place) as db:
            version, never = require_version(db, corpus), never_trained_share(db)
            paths = [tea.root / shard.path for shard in version_shards(db, version)]
        share = version.held_out_share
        stream = InstanceStream(paths, batch_tokens=600, held_out_share=share, never_trained_share=never)
        return stream, share

    return stream


@pytest.fixture
def grow(refreshed):
    """Refresh a corpus to some documents; returns the ids that it measures, and those a run trains on."""

    def ids(texts, corpus="c", **options):
        stream, share = refreshed(texts, corpus, **options)
        everything = stream._load(stream.row_groups)
        epoch = takewhile(lambda planned: planned.after.epoch == 0, stream.plan())
        trained = {key for planned in epoch for key in planned.instances.doc_keys[planned.rows]}
        return set(everything.doc_keys[is_held_out(everything.sides, share)].tolist()), trained

    return ids


def test_what_was_held_out_stays_so_as_a_corpus_grows_and_shrinks_and_another_comes(grow):
    texts = sample_texts()
    held_out, trained = grow(texts[:60])
    assert 3 <= len(held_out) <= 16 and len(held_out) + len(trained) == 60
    more, trained = grow(texts[:113])
    assert held_out <= more and not more & trained
    # a small corpus needs a larger share, which then holds for all
    few, _ = grow(texts[113:123], corpus="few")
    again, trained = grow(texts[:114])
    assert few and more <= again and not again & trained
    fewer, trained = grow(texts[40:113], gates={"max_lost_documents": 1.0})
    assert fewer == again & fewer and not again & trained
    # nor is a copy trained on under another recipe
    copied, trained = grow(texts, corpus="copies", seed=7, objective="roberta")
    assert copied and trained and not again & trained


def test_a_single_document_takes_no_more_than_the_largest_share_from_other_corpora(refreshed):
    _, share = refreshed([max(sample_texts(), key=lambda text: sides_of([text])[0])])
    assert share == 0.3


def test_documents_that_share_a_sequence_are_held_out_with_few_others(refreshed, vocabulary_file):
    stream, share = refreshed(SENTENCES, objective="roberta")
    rows = stream._load(stream.row_groups)
    vocabulary = vocabulary_file.read_text(encoding="utf-8").split("\n")
    kept = is_held_out(rows.sides, share)
    sequences = np.split(rows.input_ids, rows.offsets[1:-1])
    trained = np.concatenate([ids for ids, out in zip(sequences, kept, strict=True) if not out])
    text = "".join(vocabulary[one] for one in trained)
    out = is_held_out(sides_of(SENTENCES), share)
    apart = [one for one, is_out in zip(SENTENCES, out, strict=True) if is_out]
    assert apart and not [one for one in apart if one in text]
    tokens = np.array([len(ids) for ids in sequences])
    assert tokens[kept].sum() / tokens.sum() < 2 * share
