from pathlib import Path

import numpy as np
import polars
import pytest
import torch
from datasets.distributed import split_dataset_by_node

from data.catalog import collect_garbage, open_workspace
from data.cleaning import DuplicateRules
from data.errors import InputError
from data.refresh import RefreshSettings
from data.tokenization import WordPieceTokenizer
from data.tokenization.wordpiece import SPECIAL_TOKENS
from data.workspace import local_folder
from tests.conftest import sample_texts
from tests.corpora import make_corpus, record
from tests.workers import PreloadedContext


@pytest.fixture(scope="module")
def statistics(tmp_path_factory, samples, vocabulary_file):
    root = tmp_path_factory.mktemp("workspace")
    make_corpus(root, "tea", samples / "tea.jsonl", vocabulary_file)
    with open_workspace(root) as opened:
        yield opened


def test_every_relation_becomes_a_pandas_arrow_or_polars_table_and_a_query_finds_its_callers(statistics):
    """About a corpus, except new words and duplicates: the samples have none."""
    names = "funnel lengths words word_lengths tokens masks masked_words source_shares unknown_by_source "
    names += "coverage_by_source vocabulary_coverage version_changes changed_documents sample_instances"
    for relation in (statistics.versions(), *(getattr(statistics, name)("tea") for name in names.split())):
        frame, table = relation.df(), relation.to_arrow_table()
        assert len(frame) == len(table) > 0 and list(frame.columns) == table.column_names
        assert isinstance(relation.pl(), polars.DataFrame)
    marked = polars.DataFrame({"corpus": ["tea", "coffee"]})
    found = statistics.sql("select count(*) from versions join marked using (corpus)").fetchall()
    assert found == [(1,)] and len(marked) == 2


def test_a_workspace_is_found_by_its_url_and_from_other_folders(statistics, tmp_path, monkeypatch):
    root = statistics.workspace.root
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    url = "s3://bucket/tea"
    local_folder(url).parent.mkdir()
    local_folder(url).symlink_to(root)
    monkeypatch.chdir(root.parent)
    monkeypatch.setenv("HOME", str(root.parent))
    for place in (url, root.name, f"~/{root.name}"):
        with open_workspace(place) as opened:
            monkeypatch.chdir(tmp_path)
            assert len(list(opened.texts("tea"))) == len(opened.changed_documents("tea"))
            assert str(root) in repr(opened)
        monkeypatch.chdir(root.parent)
        assert RefreshSettings(corpus="tea", workspace=place).workspace.resolve() == root


def test_samples_lengths_unknown_tokens_and_masked_words_are_those_of_the_instances(statistics):
    relation = statistics.sample_instances("tea", 3)
    assert relation.filter("sop_label is not null").fetchall()
    assert relation.fetchall() == statistics.sample_instances("tea", 3).fetchall()
    for sample in relation.to_arrow_table().to_pylist():
        masks = "select input_ids, masked_positions, masked_input_ids from instances where instance_id = ?"
        ((ids, places, tokens),) = statistics.sql(masks, [sample["instance_id"]]).fetchall()
        assert sample["text"] == statistics.tokenizer("tea").decode(ids) and places
        for place, token in zip(places, tokens, strict=True):
            ids[place] = token
        assert sample["masked"] == statistics.tokenizer("tea").decode(ids)
        assert sample["text"].startswith("[CLS]")
    total = sum(count for *_, count in statistics.lengths("tea").fetchall())
    ids = "(select unnest(input_ids) as id from instances) where id not in (2, 3)"
    counts = f"select (select count(*) from instances), (select count(*) from {ids})"
    ((_, tokens, _, share),) = statistics.unknown_by_source("tea").fetchall()
    assert statistics.sql(counts).fetchall() == [(total, tokens)]
    assert share == pytest.approx(statistics.unknown_share("tea"))
    rows = statistics.masked_words("tea").fetchall()
    assert sum(words for _, words, _, _ in rows) > 1000
    for length, words, masked, share in rows:
        assert share == masked / words
        # three standard deviations of a binomial share, and a little for the last word that does not fit
        assert abs(share - 0.15) < 3 * (0.15 * 0.85 / words) ** 0.5 + 0.02, length


def test_versions_duplicates_and_new_words_are_compared(tea):
    texts = sample_texts()
    tea.put("a", *texts[:40])
    tea.refresh()
    near = f"{texts[0]}好。"
    tea.put("b#c", *texts[38:60], near, near)
    tea.refresh()
    with open_workspace(tea.root) as opened:
        first, second = opened.version_changes("tea").fetchall()
        assert second[7] == second[4] - first[4] and second[9] == 1 and second[10] == 0
        assert sum(count for *_, count in opened.lengths("tea").fetchall()) == second[5]
        rows = [(row[0], row[2], row[5]) for row in opened.funnel("tea").fetchall()]
        assert len(rows) == len(set(rows))  # of one version
        changed = opened.changed_documents("tea").fetchall()
        assert [row[0] for row in changed] == ["added"] * second[7] and second[7] > 0
        assert all(row[2].startswith(str(tea.raw / "b#c.jsonl")) for row in changed)
        # the other way round, what was added went: the older version's sources never held it
        back = opened.changed_documents("tea", newer=1, older=2).fetchall()
        assert sorted(back) == sorted(("removed", *row[1:]) for row in changed)
        oldest = opened.versions().df()["version"].iloc[-1]  # a number of NumPy's
        assert len(opened.changed_documents("tea", oldest)) == len(opened.words("tea", np.int64(first[4])))
        for number in (3, 0, -1):
            with pytest.raises(InputError, match=rf"no version {number} of tea \(there is: 1, 2\)"):
                opened.changed_documents("tea", newer=number)
        with pytest.raises(InputError, match="no version 3 of tea"):
            next(opened.texts("tea", 3))
        by_source = {Path(row[0]).name: row[1:] for row in opened.coverage_by_source("tea").fetchall()}
        ids = "(select unnest(input_ids) as id from instances)"
        ((used,),) = opened.sql(f"select count(distinct id) from {ids}").fetchall()
        (a, _, only_a), (b, share, only_b) = by_source["a.jsonl"], by_source["b#c.jsonl"]
        assert a - only_a == b - only_b and a + only_b == used and 0 < share < 1
        assert opened.vocabulary_coverage("tea").fetchall()[0][:2] == (1, used)
        shares = "select sum(documents - dropped), sum(chars) from shares"
        kept = opened.source_shares("tea").query("shares", shares).fetchall()
        assert kept == opened.sql("select documents, characters from versions where version = 2").fetchall()
        found = opened.duplicates("tea").fetchall()
        assert sorted(row[1] for row in found) == ["duplicate"] * 3 + ["near_duplicate"]
        assert all(row[3].startswith(str(tea.raw / "a.jsonl")) for row in found)
        new = {(word,) for word, _ in opened.new_words("tea").fetchall()}
        older = opened.sql(
            """
            select distinct unnest(flatten(t.words)) from document_texts t
            join documents using (corpus, doc_id) where first_version = 1
            """
        )
        assert new and not new & set(older.fetchall())
        firsts = "select count(*), count(first_version) from documents where dropped_reason is not null"
        assert opened.sql(firsts).fetchall() == [(4, 0)]
    with open_workspace(tea.root, newest={"tea": oldest}) as then:
        kept = "select version, count(*) from documents where dropped_reason is null group by version"
        assert then.sql(kept).fetchall() == [(1, first[4])] and len(then.changed_documents("tea")) == first[4]
    collect_garbage(tea.place, keep=1)
    gone = "no version of tea up to 1 is left"
    with open_workspace(tea.root) as opened:
        assert opened.version_changes("tea").fetchall() == [(*second[:7], None, None, None, None)]
        with pytest.raises(InputError, match=gone):
            opened.changed_documents("tea")
    with pytest.raises(InputError, match=gone):
        open_workspace(tea.root, newest={"tea": 1})
    with pytest.raises(InputError, match="no corpus 'coffee' in this workspace"):
        open_workspace(tea.root, newest={"coffee": 1})
    with pytest.raises(InputError, match=r"no version 9 of tea \(there is: 2\)"):
        open_workspace(tea.root, newest={"tea": 9})
    record(tea.place, "run", version=2)
    for name, text in zip("de", texts[60:62], strict=True):
        tea.put(name, text)
        tea.refresh()
    collect_garbage(tea.place, keep=1)
    with open_workspace(tea.root) as opened:  # versions 2 and 4
        assert [row[7:] for row in opened.version_changes("tea").fetchall()] == [(None,) * 4] * 2


def test_a_removed_document_has_the_reason_why_its_first_copy_is_dropped(tea):
    first = sample_texts()[0]
    tea.put("a", first, f"{first}好。", f"{first}好。")
    tea.refresh(duplicates=DuplicateRules(near=None))
    tea.refresh()
    with open_workspace(tea.root) as opened:
        ((change, _, _, _, reason),) = opened.changed_documents("tea").fetchall()
    assert (change, reason) == ("removed", "near_duplicate")


def test_an_older_version_is_read_with_the_vocabulary_and_the_settings_it_was_made_with(tea, tokenizer):
    other = tea.place.tokenizers / "other"
    WordPieceTokenizer([*SPECIAL_TOKENS, *reversed(tokenizer.vocabulary[5:])], lower_case=False).save(other)
    tea.put("a", *sample_texts()[:8])
    tea.refresh()
    lengths = "select max_seq_length, objective, vocab_size from corpora"

    def read(statistics):
        samples = statistics.sample_instances("tea", 20).project("text").fetchall()
        return samples, statistics.unknown_share("tea"), statistics.sql(lengths).fetchall()

    with open_workspace(tea.root) as opened:
        first = read(opened)
    assert tea.refresh(tokenizer="other", max_seq_length=64, objective="roberta").version == 2
    with open_workspace(tea.root, newest={"tea": 1}) as then:
        assert read(then) == first
        assert then.tokenizer("tea").vocabulary == tokenizer.vocabulary
    with open_workspace(tea.root) as now:
        assert now.sql(lengths).fetchall() == [(64, "roberta", tokenizer.vocab_size)]
        assert now.tokenizer("tea").vocabulary != tokenizer.vocabulary


def test_a_vocabulary_of_the_hubs_cache_is_read_with_what_stands_beside_it(tea, tokenizer, tmp_path):
    """There each name is a link to a file that is named by its content."""
    saved, snapshot = tmp_path / "saved", tmp_path / "snapshot"
    WordPieceTokenizer(tokenizer.vocabulary, lower_case=False).save(saved)
    snapshot.mkdir()
    for number, path in enumerate(list(saved.iterdir())):
        (snapshot / path.name).symlink_to(path.rename(tmp_path / str(number)))
    tea.put("a", *sample_texts()[:8])
    tea.refresh(tokenizer=str(snapshot))
    assert not tea.refresh(tokenizer=None).is_new
    with open_workspace(tea.root) as opened:
        assert not opened.tokenizer("tea").lower_case


def test_a_dataset_gives_every_trained_instance_once_an_epoch_in_an_order_of_its_own(statistics):
    instances = statistics.dataset("tea").shuffle(seed=0, buffer_size=64)
    assert isinstance(instances, torch.utils.data.IterableDataset)
    epochs = []
    for epoch in (0, 1):
        instances.set_epoch(epoch)
        rows = list(instances)
        epochs.append([int(row["instance_id"], 16) for row in rows])
        assert all(len(row["word_starts"]) == len(row["input_ids"]) for row in rows)
        assert rows[0]["word_starts"][0] and not all(rows[0]["word_starts"])
    share = statistics.sql("select held_out_share from corpora").fetchall()[0][0]
    query = f"select instance_id from instances where side >= {share} * 4294967296 order by all"
    assert [(number,) for number in sorted(epochs[0])] == statistics.sql(query).fetchall()
    assert sorted(epochs[0]) == sorted(epochs[1]) and epochs[0] != epochs[1]
    parts = [split_dataset_by_node(statistics.dataset("tea"), rank, 2) for rank in (0, 1)]
    both = [int(row["instance_id"], 16) for part in parts for row in part]
    assert sorted(both) == sorted(epochs[0])
    workers = {"num_workers": 2, "multiprocessing_context": PreloadedContext()}
    loaded = torch.utils.data.DataLoader(statistics.dataset("tea"), batch_size=None, **workers)
    assert sorted(int(row["instance_id"], 16) for row in loaded) == sorted(epochs[0])


def test_sources_are_where_they_stand_now_and_an_older_versions_texts_where_they_stood(tea):
    """Also where a later version makes the same instances of moved documents."""
    tea.put("old", *sample_texts()[:8])
    tea.put("other", *sample_texts()[8:12])
    tea.refresh()
    tea.refresh(seed=1)
    (tea.raw / "old.jsonl").rename(tea.raw / "new.jsonl")
    tea.refresh()
    (tea.raw / "other.jsonl").rename(tea.raw / "moved.jsonl")
    (tea.raw / "moved.parquet").write_bytes(b"PAR1 not really")  # its row says in a sentence what is wrong
    assert tea.refresh().kept_shards == 1
    for version, names in ((1, {"old", "other"}), (3, {"new", "other"})):
        with open_workspace(tea.root, newest={"tea": version}) as opened:
            places = opened.sql("select source_uri from document_texts").fetchall()
        assert {Path(uri).stem for (uri,) in places} == names
    with open_workspace(tea.root) as opened:
        for question in (opened.unknown_by_source, opened.coverage_by_source, opened.source_shares):
            assert {Path(row[0]).stem for row in question("tea").fetchall()} == {"new", "moved"}
