import torch

from albert.checkpoints import load_model, load_pretrained, read_checkpoint, save_pretrained
from data.tokenization import WordPieceTokenizer
from tests.commands import refused, run_here
from tests.conftest import change_tensors, save_small_model, small_model


def average(*arguments):
    return run_here("checkpoint", "average", *arguments)


def saved(folder, tokenizer, value, **shape):
    model = small_model(tokenizer, **shape)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
    save_pretrained(model, tokenizer, folder)
    return folder


def without(folder, *parts):
    """Remove a model's tensors by how their names begin."""
    change_tensors(folder, lambda name, tensor: {} if name.startswith(parts) else {name: tensor})


def values(folder):
    model, _ = load_pretrained(folder)
    return {round(value, 5) for parameter in model.parameters() for value in parameter.unique().tolist()}


def test_an_average_holds_each_checkpoint_by_its_share_and_the_firsts_dropout(tmp_path, tokenizer):
    shares = {"hidden": 0.1, "attention_probs": 0.2, "classifier": 0.0}
    dropout = {f"{name}_dropout_prob": share for name, share in shares.items()}
    a = saved(tmp_path / "a", tokenizer, 0.0, **dropout)
    b, c = (saved(tmp_path / name, tokenizer, value) for name, value in (("b", 1.0), ("c", 5)))
    for mean, checkpoints, options in (
        (2.0, (a, b, c), ()),
        (0.25, (a, b), ("--weight", 0.75)),
        (1.5, (a, b, c), ("--weight", 0.5)),
    ):
        target = tmp_path / f"{mean}"
        assert average(*checkpoints, target, *options).returncode == 0
        assert values(target) == {mean}
        assert read_checkpoint(target).config == read_checkpoint(a).config
    assert load_pretrained(target)[1].vocabulary == tokenizer.vocabulary


def test_a_head_that_some_lack_is_that_of_the_others(tmp_path, tokenizer):
    base, run = (saved(tmp_path / name, tokenizer, value) for name, value in (("base", 0.0), ("run", 1.0)))
    without(base, "sop_classifier", "albert.pooler")
    for share in (0.25, 1):
        target = tmp_path / f"{share}"
        done = average(base, run, target, "--weight", share)
        assert done.returncode == 0 and done.stdout == f"wrote {target}\n"
        model, report = load_model(target)
        assert not report.new
        for name, parameter in model.named_parameters():
            expected = 1 if name.startswith(("sop.", "encoder.pooler.")) else 1 - share
            assert torch.allclose(parameter, torch.tensor(float(expected))), name


def test_what_no_checkpoint_has_is_said_and_no_mlm_head_refused(tmp_path, tokenizer):
    a, b = (saved(tmp_path / name, tokenizer, 1.0) for name in "ab")
    without(a, "sop_classifier")
    change_tensors(b, lambda name, one: {name.replace("sop_classifier.classifier", "classifier"): one})
    done = average(a, b, tmp_path / "mean")
    assert done.returncode == 0 and done.stdout.splitlines()[:-1] == [
        "the checkpoint has no SOP head: it starts from random weights",
        "2 tensor(s) of the checkpoint not used: classifier.bias, classifier.weight",
    ]
    average(a, b, tmp_path / "again")
    assert run_here("checkpoint", "diff", tmp_path / "mean", tmp_path / "again").returncode == 0
    for folder in (a, b):
        without(folder, "predictions.bias")
    done = average(a, b, tmp_path / "unbiased")
    assert "the checkpoint's MLM head has no bias (mlm.bias): it starts from 0\n" in done.stdout
    assert not load_model(tmp_path / "unbiased")[0].mlm.bias.any()
    for folder in (a, b):
        without(folder, "predictions")
    refused(average(a, b, tmp_path / "out"), "none of the checkpoints has an MLM head", tmp_path / "out")


def test_what_has_no_average_is_refused(tmp_path, tokenizer):
    a, b = (save_small_model(tmp_path / name, tokenizer) for name in "ab")
    wide = save_small_model(tmp_path / "wide", tokenizer, hidden_size=32)
    other = WordPieceTokenizer([*tokenizer.vocabulary[:-2], *tokenizer.vocabulary[:-3:-1]])
    words, out = save_small_model(tmp_path / "words", other), tmp_path / "out"
    without(broken := save_small_model(tmp_path / "broken", tokenizer), "albert.embeddings.LayerNorm")
    for arguments, message in (
        ((a, out), "two checkpoints or more"),
        ((a, b, out, "--weight", 1.5), "lies between 0 and 1"),
        ((a, wide, out), "other configurations"),
        ((a, words, out), "other vocabularies"),
        ((a, words, b), "is already there"),
        ((a, broken, out), "does not hold the encoder"),
    ):
        refused(average(*arguments), message, out)
