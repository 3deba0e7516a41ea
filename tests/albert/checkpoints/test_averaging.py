import torch

from albert.__main__ import checkpoint
from albert.checkpoints import load_pretrained, save_model
from data.terminal import run_app
from data.tokenization import WordPieceTokenizer
from tests.conftest import save_small_model, small_model


def run(*arguments):
    return run_app(checkpoint, ["average", *map(str, arguments)])


def saved(folder, tokenizer, value):
    model = small_model(tokenizer)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
    save_model(model, folder, tokenizer)
    return folder


def values(folder):
    model, _ = load_pretrained(folder)
    return {round(value, 5) for parameter in model.parameters() for value in parameter.unique().tolist()}


def test_an_average_holds_each_checkpoint_by_its_share(tmp_path, tokenizer, capsys):
    a, b, c = (saved(tmp_path / name, tokenizer, value) for name, value in (("a", 0.0), ("b", 1.0), ("c", 5)))
    assert run(a, b, c, tmp_path / "mean") == run(a, b, tmp_path / "quarter", "--weight", 0.75) == 0
    assert run(a, b, c, tmp_path / "rest", "--weight", 0.5) == 0
    assert [values(tmp_path / name) for name in ("mean", "quarter", "rest")] == [{2.0}, {0.25}, {1.5}]
    assert load_pretrained(tmp_path / "mean")[1].vocabulary == tokenizer.vocabulary


def test_what_has_no_average_is_refused(tmp_path, tokenizer, capsys):
    a, b = (save_small_model(tmp_path / name, tokenizer) for name in "ab")
    wide = save_small_model(tmp_path / "wide", tokenizer, hidden_size=32)
    other = WordPieceTokenizer([*tokenizer.vocabulary[:-2], *tokenizer.vocabulary[:-3:-1]])
    words = save_small_model(tmp_path / "words", other)
    for arguments, message in (
        ((a, tmp_path / "out"), "two checkpoints or more"),
        ((a, b, tmp_path / "out", "--weight", 1.5), "lies between 0 and 1"),
        ((a, wide, tmp_path / "out"), "other configurations"),
        ((a, words, tmp_path / "out"), "other vocabularies"),
        ((a, words, b), "is already there"),
    ):
        assert run(*arguments) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
