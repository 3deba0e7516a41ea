"""jixu checkpoint: what it writes opens in transformers' Auto classes, what it cannot do it refuses."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers

from albert.checkpoints import load_model, load_pretrained, read_checkpoint, save_pretrained
from albert.finetuning import fine_tune_one, predict_file
from albert.model import pack
from albert.pretraining import PretrainSettings, check_start, pretrain
from data.errors import ConfigError, InputError
from data.tokenization import find_tokenizer, train_tokenizer
from tests.albert.checkpoints.arriving import FOLDERS
from tests.albert.finetuning.examples import prepared, settings_of
from tests.commands import refused, run_here
from tests.conftest import (
    change_json,
    change_tensors,
    copy_tensorflow_checkpoint,
    few_examples,
    few_texts,
    sample_sentences,
    save_small_model,
)
from tests.corpora import make_corpus
from tests.pages import DOCS, blocks

TENSORFLOW = Path(__file__).parent.parent / "tensorflow"
TEXT = "采茶要早，炒锅要热。"


def run(*arguments):
    return run_here("checkpoint", *arguments)


def opens_in_transformers(folder, tokenizer):
    """AutoTokenizer and AutoModelForMaskedLM give our ids and our logits."""
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ids = theirs(TEXT)["input_ids"]
    assert ids == [tokenizer.cls_id, *tokenizer.encode(TEXT)[0].tolist(), tokenizer.sep_id]
    assert theirs.mask_token_id == tokenizer.mask_id and theirs.pad_token_id == tokenizer.pad_id
    if (folder / "vocab.txt").is_file():  # transformers 5.0 to 5.5 find an ALBERT's [MASK] by its name alone
        assert json.loads((folder / "tokenizer_config.json").read_text())["mask_token"] == "[MASK]"
    oracle, info = transformers.AutoModelForMaskedLM.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"] and not info["mismatched_keys"]
    model, _ = load_model(folder)
    with torch.no_grad():
        want = oracle.eval()(torch.tensor([ids])).logits[0]
        got = model.mlm_logits(model.eval().encoder(pack([ids])))
    assert (got - want).abs().max() < 1e-5
    return model


@pytest.fixture(scope="module")
def shards_of(tmp_path_factory):
    """Makes shards of a few documents with a folder's vocabulary, once for each kind of it and its file."""
    root, made = tmp_path_factory.mktemp("workspace"), {}

    def shards_of(folder, vocabulary):
        name = f"{vocabulary.kind}-{find_tokenizer(str(folder)).stem}"
        if name not in made:
            made[name] = make_corpus(root, name, few_texts(root)[1], folder, max_seq_length=64)
        return made[name]

    return shards_of


@pytest.fixture
def settings(tmp_path, shards_of, vocabulary_file, tokenizer):
    """Two steps on documents that were made with the tests' vocabulary."""
    options = {"batch_tokens": 256, "evaluation": {"held_out_tokens": 200, "full_tokens": 0}}
    folders = {"run_folder": tmp_path / "models" / "run", "tokenizer_folder": vocabulary_file.parent}
    folders["shards"] = shards_of(vocabulary_file.parent, tokenizer)
    return PretrainSettings(**folders, steps=2, held_out_share=0.1, resume="never", **options)


def same_in_transformers(first, second):
    """Both folders' models give the same states, and the same logits where the first has an MLM head."""
    inputs = {"input_ids": torch.arange(5, 35)[None], "token_type_ids": torch.arange(30)[None] // 20}
    for kind in (transformers.AutoModel, transformers.AutoModelForMaskedLM):
        model, info = kind.from_pretrained(first, output_loading_info=True)
        if not any("predictions" in name for name in info["missing_keys"]):
            with torch.no_grad():
                want, got = (m.eval()(**inputs)[0] for m in (model, kind.from_pretrained(second)))
            assert (got - want).abs().max() < 1e-5, kind


def happened(name):
    """What the table of the docs says of a folder."""
    page = (DOCS / "checkpoint.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| .+ \| (.+) \|$", page.partition("| what happened |")[2], re.M)
    assert len(rows) == len(FOLDERS) == 20
    return rows[list(FOLDERS).index(name)]


@pytest.mark.parametrize("name", [name for name, (_, message) in FOLDERS.items() if message is None])
def test_a_folder_as_people_have_it_is_trained_and_converted(name, tmp_path, tokenizer, settings, shards_of):
    source, target, again = (tmp_path / name for name in "abc")
    FOLDERS[name][0](source, tokenizer)
    inspected = run("inspect", source, "--probe", TEXT)
    for done in (inspected, run("convert", source, target), run("convert", source, again)):
        assert done.returncode == 0, done.stderr
    assert run("diff", target, again).returncode == 0  # a new head's weights too
    model, vocabulary = load_pretrained(source)
    same_in_transformers(source, target)
    opens_in_transformers(target, vocabulary)
    # safetensors' own is its owner's alone
    assert len({path.stat().st_mode for path in target.iterdir()}) == 1
    assert model.config.tie_word_embeddings == ("untied" not in name)
    said, notices = happened(name), " ".join(load_model(source)[1].notices())
    assert said.startswith("trained") and ("still untied" in said) == ("untied" in name)
    assert ("not probed" in inspected.stdout) == ("no MLM head" in notices)
    for ours, notice in (("MLM", "no MLM head"), ("sentence-order", "no SOP head"), ("pooler", "no pooler")):
        assert (ours in said) == (notice in notices), ours
    own = {"init": str(source), "tokenizer_folder": source, "shards": shards_of(source, vocabulary)}
    goes_the_whole_way(replace(settings, **own), vocabulary, is_tied="untied" not in name)


def goes_the_whole_way(settings, vocabulary, is_tied):
    """A corpus of the folder's own vocabulary, pretraining, fine-tuning, and back to transformers."""
    result, folder = pretrain(settings), settings.run_folder.parent
    trained = opens_in_transformers(result.checkpoint, vocabulary)
    assert torch.equal(trained.decoder, trained.encoder.embedding.word) == is_tied
    train, dev, _ = map(Path, few_examples(folder, 12, 6, 1).values())
    running = {"pooling": "cls", "precision": "fp32"}
    options = settings_of("t", train, result.checkpoint, dev=dev, epochs=1, running=running)
    fine_tune_one(prepared(options), 0, 1e-3, folder / "kept")
    found = predict_file(folder / "kept", dev)
    theirs = transformers.pipeline("text-classification", str(folder / "kept"), top_k=None)
    texts = [one.text for one in found.examples]
    for shares, scores in zip(found.predictions.probabilities, theirs(texts), strict=True):
        wanted = dict(zip(found.record.labels, shares, strict=True))
        assert {one["label"]: one["score"] for one in scores} == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("name", [name for name, (_, message) in FOLDERS.items() if message])
def test_a_folder_with_a_wrong_vocabulary_is_refused(name, tmp_path, tokenizer, settings):
    make, message = FOLDERS[name]
    make(tmp_path / "a", tokenizer)
    assert happened(name).startswith("refused")
    with pytest.raises((ConfigError, InputError), match=message):
        check_start(replace(settings, init=str(tmp_path / "a")))
    if name != "permuted":  # is a model of its own, and whole
        refused(run("convert", tmp_path / "a", tmp_path / "b"), message, tmp_path / "b")


def test_a_tensorflow_checkpoint_converts_and_opens(tmp_path):
    google = copy_tensorflow_checkpoint("google", tmp_path / "google")
    done = run("convert", google, tmp_path / "b")
    assert done.returncode == 0 and "newly" not in done.stdout
    model, tokenizer = load_pretrained(tmp_path / "b")
    original, _ = load_model(google)
    assert model.config == original.config and tokenizer.vocab_size == 31
    opens_in_transformers(tmp_path / "b", tokenizer)


def test_what_transformers_cannot_express_is_refused_but_our_own_format_holds_it(tmp_path, tokenizer):
    folder = save_small_model(tmp_path / "a", tokenizer, norm="pre")
    for source, reason in ((TENSORFLOW / "bright", "layout 'bright'"), (folder, "norm 'pre'")):
        refused(run("convert", source, tmp_path / "b"), reason, tmp_path / "b")
    assert run("convert", folder, tmp_path / "b", "--format", "jixu").returncode == 0
    assert run("diff", folder, tmp_path / "b").returncode == 0


def test_refusals_write_nothing(tmp_path, tokenizer):
    source = save_small_model(tmp_path / "a", tokenizer)
    (tmp_path / "there").mkdir()
    refused(run("convert", source, tmp_path / "there"), "is already there")
    for name in ("vocab.txt", "tokenizer.json"):
        (source / name).unlink()
    refused(run("convert", source, tmp_path / "b"), "no vocab.txt, spiece.model or tokenizer.json in")
    for command, *further in (("convert", tmp_path / "b"), ("diff", source), ("inspect",)):
        refused(run(command, tmp_path / "none", *further), "no checkpoint at")
    unigram = train_tokenizer(sample_sentences(), kind="sentencepiece", vocab_size=2000)
    terms = tmp_path / "terms.txt"
    terms.write_text("采茶\n", encoding="utf-8")
    source = save_small_model(tmp_path / "unigram", unigram)
    refused(run("convert", source, tmp_path / "b", "--terms", terms), "has no free slots")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "terms.txt", "there", "unigram"]


def test_inspect_says_what_is_there_probes_and_shows_a_table_of_what_it_would_refuse(tmp_path, tokenizer):
    source = save_small_model(tmp_path / "a", tokenizer)
    done = run("inspect", source, "--probe", TEXT * 20)
    assert done.returncode == 0 and "the encoder and both heads are complete" in done.stdout
    total = sum(p.numel() for p in load_model(source)[0].parameters())
    shape = f"{total:,} parameters", "google layout, post-LN, share all, 1 layers"
    # the weights are random
    for part in (*shape, "  albert.embeddings.word_embeddings.weight", "hardly better than chance"):
        assert part in done.stdout
    for text in (" ", "𫝀"):  # nothing but an unknown token
        done = run("inspect", source, "--probe", text)
        assert done.returncode == 2 and "no word to mask" in done.stderr
    change_json(source / "config.json", intermediate_size=129)
    done = run("inspect", source)
    assert done.returncode == 2
    assert "wrong shape: 3" in done.stdout and "do not belong together" in done.stderr


def test_diff_is_silent_of_equal_ones_and_names_what_differs(tmp_path, tokenizer):
    source = save_small_model(tmp_path / "a", tokenizer)
    same = len(read_checkpoint(source).parts)
    done = run("diff", source, source)
    assert done.returncode == 0 and done.stdout.startswith(f"{same} parameter(s) the same to the bit")
    model, _ = load_model(source)
    with torch.no_grad():
        model.encoder.pooler.bias[3] += 0.5
        model.sop.weight *= 2
    save_pretrained(model, None, tmp_path / "b")
    done = run("diff", source, tmp_path / "b")
    assert done.returncode == 1 and len(done.stdout.splitlines()) == 3
    bias = "encoder.pooler.bias: largest difference 0.5, the first is 0"
    for part in (bias, "sop.weight: ", "100% by norm"):
        assert part in done.stdout
    cased = save_small_model(tmp_path / "cased", tokenizer)
    change_json(cased / "tokenizer_config.json", do_lower_case=False)
    further = {"classifier.bias": torch.ones(2)}
    change_tensors(cased, lambda name, one: {name: one, **further})
    *lines, summary = run("diff", source, cased).stdout.splitlines()
    assert len(lines) == 2 and "read case" in lines[0] and lines[1] == "only in the second: classifier.bias"
    assert summary == f"{same} parameter(s) the same to the bit, 0 with other values"
    save_small_model(tmp_path / "c", tokenizer, hidden_act="relu", layout="bright")
    done = run("diff", source, tmp_path / "c")
    assert done.returncode == 1
    changes = "config hidden_act: gelu_new -> relu", "config layout: google -> bright"
    only = "only in the first: encoder.embedding.projection.bias"
    for part in (*changes, only, "shape of encoder.embedding.norm"):
        assert part in done.stdout


def test_terms_begin_as_the_mean_of_their_pieces_and_open_in_transformers(tmp_path, tokenizer):
    source = save_small_model(tmp_path / "a", tokenizer, tie_word_embeddings=False)
    model, _ = load_model(source)
    with torch.no_grad():
        model.mlm.bias.normal_()
        model.decoder.normal_()
    save_pretrained(model, None, source)
    (tmp_path / "terms.txt").write_text("采茶\n茶\n", encoding="utf-8")
    done = run("convert", source, tmp_path / "b", "--terms", tmp_path / "terms.txt")
    assert done.returncode == 0 and "1 of 2 terms added" in done.stdout
    grown, vocabulary = load_pretrained(tmp_path / "b")
    pieces = tokenizer.encode("采茶")[0].tolist()
    (new,) = vocabulary.encode("采茶")[0].tolist()
    assert new == tokenizer.vocabulary.index("[unused1]") and len(pieces) == 2
    tables = [(one.encoder.embedding.word, one.decoder) for one in (model, grown)]
    for before, after in zip(*tables, strict=True):
        assert torch.allclose(after[new], before[pieces].mean(0))
    assert torch.allclose(grown.mlm.bias[new], model.mlm.bias[pieces].mean())
    rest = [i for i in range(tokenizer.vocab_size) if i != new]
    assert all(torch.equal(after[rest], before[rest]) for before, after in zip(*tables, strict=True))
    opens_in_transformers(tmp_path / "b", vocabulary)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the exporter's own
def test_the_export_of_the_docs_gives_the_same_logits(tmp_path, tokenizer):
    import onnxruntime

    FOLDERS["ALBERT, vocab.txt"][0](tmp_path / "a", tokenizer)
    _, (_, code) = blocks("checkpoint.md", "python")
    exec(code.replace("workspace/models/first/checkpoint-16", str(tmp_path / "a")), found := {})
    session = onnxruntime.InferenceSession(tmp_path / "a" / "model.onnx")
    for S, L in ((1, 5), (3, 128)):
        inputs = {"input_ids": torch.randint(5, 200, (S, L)), "attention_mask": torch.ones(S, L).long()}
        inputs |= {"token_type_ids": torch.arange(L).repeat(S, 1) // 64}
        inputs["attention_mask"][0, L // 2 :] = 0
        with torch.no_grad():
            want = found["model"](**inputs).logits
        (got,) = session.run(None, {key: value.numpy() for key, value in inputs.items()})
        assert (torch.from_numpy(got) - want).abs().max() < 1e-5
