import pytest

from data.records import InputError
from data.refresh import RefreshSettings, refresh
from data.statistics import open_workspace


@pytest.fixture(scope="module")
def statistics(tmp_path_factory, samples, vocabulary_file):
    root = tmp_path_factory.mktemp("workspace")
    refresh(
        RefreshSettings(
            corpus="tea",
            sources=(str(samples / "tea.jsonl"),),
            workspace=root,
            tokenizer=str(vocabulary_file),
            workers=1,
        )
    )
    with open_workspace(root) as opened:
        yield opened


def test_every_relation_becomes_a_data_frame(statistics):
    for relation in (
        statistics.versions(),
        statistics.funnel("tea"),
        statistics.lengths("tea"),
        statistics.words("tea"),
        statistics.word_lengths("tea"),
        statistics.tokens("tea"),
        statistics.masks("tea"),
        statistics.source_shares("tea"),
    ):
        assert len(relation.df()) > 0


def test_length_bars_add_up_to_the_instances(statistics):
    total = sum(count for *_, count in statistics.lengths("tea").fetchall())
    assert [(total,)] == statistics.sql("select count(*) from instances").fetchall()


def test_words_are_the_fields_words(statistics):
    words = [word for word, _ in statistics.words("tea", 30).fetchall()]
    assert "茶叶" in words and all(len(word) > 1 for word in words)


def test_shares_are_shares(statistics):
    assert 0 <= statistics.unknown_share("tea") < 0.01
    shares = dict((kind, share) for kind, _, share in statistics.masks("tea").fetchall())
    assert sum(shares.values()) == pytest.approx(1) and shares["[MASK]"] > 0.7


def test_samples_read_as_text_with_their_masks(statistics):
    for sample in statistics.sample_instances("tea", 3):
        assert "[MASK]" in sample["masked"] and "[MASK]" not in sample["text"]
        assert sample["text"].startswith("[CLS]")


def test_sentences_are_all_there(statistics):
    ((count,),) = statistics.sql("select sum(sentences) from versions").fetchall()
    assert len(list(statistics.sentences("tea"))) == count


def test_an_unknown_corpus_is_named(statistics):
    with pytest.raises(InputError, match="no corpus 'law' .*there is: tea"):
        statistics.funnel("law")


def test_no_workspace_is_an_error(tmp_path):
    with pytest.raises(InputError, match="no catalog"):
        open_workspace(tmp_path)
