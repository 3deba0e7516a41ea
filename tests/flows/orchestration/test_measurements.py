"""Whether a corpus holds a task's texts, and what of a corpus a model is asked about."""

import pytest

from albert.batching import is_held_out
from albert.evaluation import HeldOut
from data.catalog import open_workspace
from data.cleaning import CleaningRules, GuardRules, clean_text, sides_of
from data.tokenization import WordPieceTokenizer
from data.workspace import Workspace
from flows.orchestration import domain_words
from flows.orchestration.measurements import contamination, find_cloze, find_held_out
from tests.conftest import SAMPLES, save_small_model
from tests.corpora import ask, make_corpus

TEXT = "第１２３号茶室和第４５６号茶室的ＷＩＦＩ密码都在门后"
OTHER = "第７号仓库和第８９号仓库的钥匙都交给了值班的人"


@pytest.mark.parametrize("share, found", [(0.0, 1), (0.5, 0)])
def test_texts_are_looked_for_as_cleaning_left_them_by_the_share_that_a_guard_asks_for(
    tea, write, share, found
):
    tea.put("rooms", f"{TEXT}。")
    tea.refresh(guard=GuardRules(files=write("dev.txt", OTHER), share=share))
    assert clean_text(TEXT, CleaningRules()) != TEXT
    whole = contamination(((TEXT, OTHER),), tea.place, "tea", "test")
    assert (whole.texts, whole.found, whole.documents) == (2, 1, 1)
    begins_alike = f"{TEXT[:14]}{OTHER}"
    leak = contamination(((begins_alike,),), tea.place, "tea", "test")
    assert (leak.found, leak.share) == (found, share)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory, samples, vocabulary_file):
    root = tmp_path_factory.mktemp("tea")
    make_corpus(root, "tea", samples / "tea.jsonl", vocabulary_file)
    return Workspace(root)


def test_words_of_the_field_are_asked_in_sentences_that_were_not_trained_on(workspace):
    with open_workspace(workspace.root) as statistics:
        documents = list(statistics.texts("tea"))
    ((share,),) = ask(workspace.root, "select held_out_share from corpora where corpus = 'tea'")
    held_out, trained = set(), set()
    for text in documents:
        side = held_out if is_held_out(sides_of([text]), share)[0] else trained
        side.update(text.split("\n"))
    asked = find_cloze(workspace, "tea")
    assert asked and trained
    words = domain_words(workspace, "tea")
    assert {one.sentence for one in asked} <= held_out - trained
    assert all(one.word in words and one.word in one.sentence for one in asked)


def test_a_corpus_of_other_words_is_not_asked_about(workspace, tokenizer, tmp_path):
    same = save_small_model(tmp_path / "same", tokenizer)
    held_out = find_held_out(workspace, "tea", same)
    assert isinstance(held_out, HeldOut) and all(path.is_file() for path in held_out.shards)
    terms = ["龙井茶" if word == "[unused1]" else word for word in tokenizer.vocabulary]
    with_term = save_small_model(tmp_path / "with a term", WordPieceTokenizer(terms))
    assert find_held_out(workspace, "tea", with_term) == held_out
    # and in the slot of a character that no text is encoded as
    WordPieceTokenizer([*tokenizer.vocabulary, "##茶"]).save(tmp_path / "twin")
    in_twin = save_small_model(tmp_path / "in twin", WordPieceTokenizer([*tokenizer.vocabulary, "毛尖"]))
    make_corpus(workspace.root, "twin", SAMPLES / "tea.jsonl", tmp_path / "twin" / "vocab.txt")
    assert find_held_out(workspace, "twin", in_twin)
    # as many words, in another order
    *others, last = tokenizer.vocabulary
    swapped = WordPieceTokenizer([*others[:-1], last, others[-1]])
    assert find_held_out(workspace, "tea", save_small_model(tmp_path / "swapped", swapped)) is None
