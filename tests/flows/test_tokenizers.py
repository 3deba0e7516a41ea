"""A vocabulary that corpora were made with stays what it was."""

import pytest

from data.errors import InputError
from data.tokenization import load_tokenizer, train_tokenizer
from flows.end_to_end import vocabulary
from flows.orchestration.plans import plan_tokenizer
from flows.orchestration.settings import TokenizerOptions
from flows.train_tokenizer import iterate_sentences, refuse_another
from tests.corpora import ask, make_corpus

TEXTS = {"tea": "绿茶不发酵。红茶全发酵。", "law": "本法自公布之日起施行。"}


@pytest.mark.parametrize("kind", ["wordpiece", "sentencepiece"])
def test_another_vocabulary_does_not_take_the_place_of_one_that_is_there(tmp_path, kind):
    tea, law = (train_tokenizer([TEXTS[name]] * 9, kind=kind, vocab_size=100) for name in ("tea", "law"))
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    (folder / "vocab.txt.0123abcd.tmp").touch()  # of a killed run
    refuse_another(folder, tea)
    tea.save(folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    refuse_another(folder, tea)  # the same again
    with pytest.raises(InputError, match="holds another vocabulary, .*: pass another --name"):
        refuse_another(folder, law)
    assert before == {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_vocabulary_is_learnt_from_all_texts_of_a_corpus(tmp_path, samples, vocabulary_file):
    make_corpus(tmp_path / "w", "tea", samples / "tea.jsonl", vocabulary_file)
    version = plan_tokenizer(TokenizerOptions(corpus="tea", workspace=str(tmp_path / "w")))
    shares = []
    lines = list(iterate_sentences(version, str(tmp_path / "w"), shares.append))
    assert ask(tmp_path / "w", "select sum(chars) from documents") == [(sum(map(len, lines)),)]
    assert len(shares) == version.documents and shares[-1] == 1


@pytest.mark.slow
def test_an_end_to_end_run_on_other_text_learns_a_vocabulary_of_its_own(tmp_path, prefect_server):
    for name, text in TEXTS.items():
        (tmp_path / f"{name}.txt").write_text(f"{text}\n\n" * 2, encoding="utf-8")
    given = [["tea"], ["law"], ["tea"], ["law", "tea"], ["tea", "law"]]
    sources = [[str(tmp_path / f"{name}.txt") for name in names] for names in given]
    made = [vocabulary("tiny", paths, 100, str(tmp_path / "w")) for paths in sources]
    assert made[0] == made[2] != made[1] and made[3] == made[4] and len(set(made)) == 3
    folders = [tmp_path / "w" / "tokenizers" / name for name in made]
    known = [load_tokenizer(folder / "vocab.txt") for folder in folders]
    assert ["法" in one.vocabulary for one in known] == [False, True, False, True, True]
    for path in folders[0].iterdir():  # as a run leaves it that is killed when it begins to write
        path.unlink()
    vocabulary("tiny", sources[0], 100, str(tmp_path / "w"))
    assert load_tokenizer(folders[0] / "vocab.txt").vocabulary == known[0].vocabulary
