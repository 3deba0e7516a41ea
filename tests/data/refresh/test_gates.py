"""A version that fails a gate is not made, and the one before stays current."""

from dataclasses import replace
from itertools import combinations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data.catalog import Condition, measure_drift, open_workspace, parse_condition
from data.errors import InputError
from data.refresh import build_batch, check_quality
from tests.corpora import Corpus


@pytest.fixture(scope="module")
def built(tmp_path_factory, samples, vocabulary_file):
    """The sample as shards that are not committed yet: plan, division and shards."""
    corpus = Corpus.begin(tmp_path_factory.mktemp("w"), vocabulary_file, samples / "tea.jsonl")
    planned, _, division = corpus.divided()
    return planned, division, build_batch(division.pieces, planned)


def spoilt(shard, planned, change):
    """The shard with its table changed, under another name."""
    path = planned.workspace.root / shard.path
    other = path.with_name("spoilt.parquet")
    table = pq.read_table(path)
    pq.write_table(change(table), other)
    return replace(shard, path=planned.workspace.relative(other))


def with_column(name, make):
    return lambda table: table.set_column(table.column_names.index(name), name, make(table))


CITIES = ["北京", "上海", "广州", "成都", "武汉", "南京", "杭州", "西安", "昆明", "长沙", "厦门", "天津"]


def unknown_alone(table):
    ids = table["input_ids"]
    return pa.array([[2, *[1] * (len(row) - 2), 3] for row in ids.to_pylist()], ids.type)


def test_what_a_refresh_builds_passes_every_gate(built):
    planned, division, shards = built
    gates = {gate.name: gate for gate in check_quality(planned, division, shards)}
    assert len(gates) == 8 and all(gate.passed for gate in gates.values())
    assert gates["share of tokens masked"].value == pytest.approx(0.15, abs=0.02)


@pytest.mark.parametrize(
    "cities, most, share", [(1, None, None), (len(CITIES), 2, 0.02)], ids=["short", "few"]
)
def test_short_texts_may_have_more_masks_and_few_predictions_fewer(tea, cities, most, share):
    """Of eight characters one is to be masked, and with it the rest of its word."""
    days = [f"{one}{half}" for one in ("昨天", "今天", "明天", "周五", "周六") for half in ("上午", "下午")]
    texts = [
        "，".join(f"{day}{city}{sky}" for city in CITIES[at : at + cities])
        for day in days
        for sky in ("下雨", "晴朗", "刮风", "多云", "降温", "闷热")
        for at in range(0, len(CITIES), cities)
    ]
    tea.put("days", *texts)
    made = tea.refresh(duplicates={"near": None}, masking={"max_predictions": most})
    measured = {gate.name: gate.value for gate in made.gates}
    assert measured.get("share of tokens masked") == (share and pytest.approx(share, abs=0.005))


@pytest.mark.parametrize(
    "change, gate",
    [
        (lambda table: table.slice(0, len(table) - 1), "rows that a shard lacks"),
        (with_column("doc_id", lambda t: pa.array([None, *t["doc_id"].to_pylist()[1:]])), "nulls where none"),
        # one row on: the labels are another instance's
        (
            with_column("masked_labels", lambda t: t["masked_labels"].take([1, 0, *range(2, len(t))])),
            "labels that are not the token",
        ),
        (with_column("masked_input_ids", lambda t: t["masked_labels"]), "share of .MASK. among masks is 0"),
        (with_column("input_ids", unknown_alone), "max_unknown_share. is 1"),
    ],
)
def test_a_spoilt_shard_is_not_let_through(built, change, gate):
    planned, division, shards = built
    with pytest.raises(InputError, match=f"tea was not committed.*{gate}"):
        check_quality(planned, division, [spoilt(shards[0], planned, change)])


OLD = [f"绿茶不发酵，泡茶的水温要低。第{n}种茶叶的做法不同。" for n in "一二三四五六七八"]
LIKE_OLD = [f"绿茶不发酵，泡茶的水温要低。第{n}种茶叶的做法不同。" for n in "九十"]
COURT = "法院审理后判决合同无效。原告不服提起上诉。被告请求驳回诉讼。证人出庭作证陈述。律师提交新的证据。"
UNLIKE = [COURT + "仲裁庭裁定赔偿损失。", COURT + "检察机关提出抗诉意见。", COURT + "双方达成和解撤回起诉。"]


def test_a_refresh_that_loses_most_documents_leaves_the_old_version_and_no_files_until_it_is_allowed(tea):
    tea = tea.changed(duplicates={"near": None})  # the documents are alike
    tea.put("old", *OLD)
    tea.put("more", *LIKE_OLD)
    tea.refresh()
    (tea.raw / "old.jsonl").unlink()
    before = {*tea.root.rglob("*.parquet")}
    tea.put("more", *LIKE_OLD, "短")
    with pytest.raises(InputError, match=r"\(max_lost_documents\) is 0.8.* out 1 too_short;"):
        tea.refresh()
    assert tea.ask("select max(version) from versions") == [(1,)]
    assert {*tea.root.rglob("*.parquet")} == before  # nor is a full disk left so
    allowed = tea.refresh(gates={"max_lost_documents": 1.0})
    assert allowed.version == 2 and allowed.documents == 2


@pytest.mark.parametrize("objective", ["albert", "roberta"])
def test_drift_is_small_for_more_of_the_same_and_large_for_another_field(tea, objective):
    tea, drifts = tea.changed(duplicates={"near": None}, objective=objective), []
    for number, texts in enumerate((OLD, LIKE_OLD, UNLIKE)):
        tea.put(str(number), *texts)
        tea.refresh()
        with open_workspace(tea.root) as statistics:
            drifts.append(measure_drift(statistics, "tea"))
    first, same, other = drifts
    assert first is None and (same.added, same.older) == (2, 8) and same.drift < 0.2
    assert other.new_words > 0.6 and other.lengths > 0.6 and other.unknown > same.unknown
    assert other.new_words == pytest.approx(_new_words_beyond_chance(tea))
    shares = """
        select avg((id = 1)::integer) from (
            select first_version = 3 as added, unnest(input_ids) as id
            from instances join documents using (doc_id)) where id not in (2, 3) group by added order by added
        """
    (older,), (added,) = tea.ask(shares)
    assert other.unknown == pytest.approx(added - older)
    assert Condition("drift", 0.5).holds(other) and not Condition("drift", 0.5).holds(same)


def _new_words_beyond_chance(tea):
    """The share of new words in the third version's documents, less that of every draw of as many."""
    documents = tea.ask("""
        select flatten(t.words), first_version = 3 from document_texts t join documents using (doc_id)
        """)
    added = tuple(at for at, (_, is_added) in enumerate(documents) if is_added)
    counts = {}
    for draw in combinations(range(len(documents)), len(added)):
        known = {word for at, (words, _) in enumerate(documents) if at not in draw for word in words}
        drawn = [word for at in draw for word in documents[at][0]]
        counts[draw] = sum(word not in known for word in drawn), len(drawn)
    new, words = counts[added]
    return new / words - sum(new for new, _ in counts.values()) / sum(words for _, words in counts.values())


def test_a_condition_is_a_measure_and_a_bound():
    assert parse_condition("drift>0.2") == Condition("drift", 0.2)
    assert parse_condition(" new_words > .5 ") == Condition("new_words", 0.5)
    # a model may find new documents easier
    assert parse_condition("mlm_loss>-0.1") == Condition("mlm_loss", -0.1)
    for wrong in ("drift", "drift<1", "loss>2", "drift>0.2; drop", "drift>--1"):
        with pytest.raises(InputError, match="write MEASURE>NUMBER"):
            parse_condition(wrong)
