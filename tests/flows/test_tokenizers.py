"""A vocabulary that corpora were made with stays what it was."""

import json

import pytest

from data.errors import InputError
from data.sources import SourceRules
from data.tokenization import load_tokenizer, train_tokenizer
from flows.end_to_end import vocabulary
from flows.orchestration.plans import plan_tokenizer
from flows.orchestration.settings import EndToEndOptions, TextOptions, TokenizerOptions
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
    options = TokenizerOptions(workspace=str(tmp_path / "w"))
    lines = list(iterate_sentences(version, options, shares.append))
    assert ask(tmp_path / "w", "select sum(chars) from documents") == [(sum(map(len, lines)),)]
    assert len(shares) == version.documents and shares[-1] == 1


def test_raw_text_is_read_by_the_rules_and_what_is_left_out_is_said(write, capsys):
    rows = [{"题": "茶", "文": TEXTS["tea"]}, {"题": TEXTS["law"]}]
    source = write("rows.jsonl", "\n".join(json.dumps(row) for row in rows))
    options = TokenizerOptions(source=(str(source),), reading=SourceRules(text_field="题,文"))
    assert list(iterate_sentences([str(source)], options, print)) == ["茶", "绿茶不发酵。", "红茶全发酵。"]
    assert "left out 1 document(s): 1 no_text_field\nno_text_field: name the" in capsys.readouterr().err


@pytest.mark.slow
def test_an_end_to_end_run_on_other_text_learns_a_vocabulary_of_its_own(tmp_path, prefect_server):
    for name, text in TEXTS.items():
        (tmp_path / f"{name}.txt").write_text(f"{text}\n\n" * 2, encoding="utf-8")
    given = [["tea"], ["law"], ["tea"], ["law", "tea"], ["tea", "law"]]
    sources = [tuple(str(tmp_path / f"{name}.txt") for name in names) for names in given]
    text = TextOptions(vocab_size=100)
    options = [
        EndToEndOptions(general=paths[:1], domain=paths[1:], text=text, workspace=str(tmp_path / "w"))
        for paths in sources
    ]
    made = [vocabulary(one) for one in options]
    assert made[0] == made[2] != made[1] and made[3] == made[4] and len(set(made)) == 3
    folders = [tmp_path / "w" / "tokenizers" / name for name in made]
    known = [load_tokenizer(folder / "vocab.txt") for folder in folders]
    assert ["法" in one.vocabulary for one in known] == [False, True, False, True, True]
    for path in folders[0].iterdir():  # as a run leaves it that is killed when it begins to write
        path.unlink()
    vocabulary(options[0])
    assert load_tokenizer(folders[0] / "vocab.txt").vocabulary == known[0].vocabulary
