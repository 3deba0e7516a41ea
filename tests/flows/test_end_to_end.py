"""What an end-to-end run keeps out of its corpora."""

from data.cleaning import CleaningRules, count_hits, make_guard
from flows.end_to_end import write_guard


def test_a_document_with_both_short_sentences_of_a_pair_is_kept_out_and_shorter_texts_are_let_be(
    write, tmp_path
):
    dev = write("dev.tsv", "sentence1\tsentence2\tlabel\n泡绿茶吧\t绿茶要泡\t1\n")
    file = write_guard("lcqmc", str(dev), tmp_path / "dev.jsonl")
    guard = make_guard((str(file),), 13, CleaningRules())
    both, one = count_hits(guard, [["泡绿茶吧。", "绿茶要泡。"], ["泡绿茶吧。"]])
    assert both and not one
    dev = write("dev.tsv", "text\tlabel\n好\t1\n真难吃\t0\n")
    assert write_guard("online_shopping", str(dev), tmp_path / "dev.jsonl") is None
