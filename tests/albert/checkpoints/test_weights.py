"""Files of weights: every kind gives the same model, every damaged one is one line, no pickle is run."""

import json
import os
import pickle
import shutil
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from albert.checkpoints import load_model, load_pretrained, read_checkpoint
from data.errors import ConfigError, InputError
from tests.albert.model.test_oracle import Case, theirs
from tests.conftest import change_json, change_tensors, save_small_model


@pytest.fixture
def oracle():
    return theirs(Case("albert", 2, 12, "gelu", 2, 1))


@pytest.fixture
def folder(oracle, tmp_path):
    oracle.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_the_index_of_shards_and_weights_under_old_names_are_the_model(oracle, folder):
    oracle.save_pretrained(folder / "shards", max_shard_size="20KB")
    index, shards = folder / "shards" / f"{WEIGHTS}.index.json", (folder / "shards").glob("*.safetensors")
    # all of them are the checkpoint, and its checksum
    assert len(files := read_checkpoint(index).source.files) > 3 and set(files) == {index, *shards}

    def old(name, tensor):
        name = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        return {f"module.{name}": tensor}

    expected, _ = load_model(folder)
    change_tensors(folder, old)
    for found, report in map(load_model, (index, folder)):
        assert not report.new
        torch.testing.assert_close(found.state_dict(), expected.state_dict(), rtol=0, atol=0)


def test_the_table_names_every_tensor(folder):
    change_tensors(folder, lambda name, one: {name.replace("albert.pooler.bias", "classifier.weight"): one})
    report = read_checkpoint(folder).report
    assert report.unused == ("classifier.weight",) and report.new == ("encoder.pooler.bias",)
    table = report.table()
    for name in [*load_file(folder / "model.safetensors"), "encoder.pooler.bias"]:
        assert f"  {name}" in table or "decoder" in name, name
    assert f"matched: {len(report.matched)}\n" in table and "unused: 1\n" in table


def set_config(**changes):
    return lambda folder: change_json(folder / "config.json", **changes)


def config_of(content):
    return lambda folder: (folder / "config.json").write_text(content)


def tensors(change):
    return lambda folder: change_tensors(folder, change)


def spoil(name, tensor):
    if name == "albert.pooler.bias":
        tensor[0] = float("nan")
    return {name: tensor}


def as_bin(content):
    """Bytes, or what torch is to save, in place of the weights."""

    def change(folder):
        (folder / "model.safetensors").unlink()
        path = folder / "pytorch_model.bin"
        path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)

    return change


def truncated_bin(folder):
    as_bin(load_file(folder / WEIGHTS))(folder)
    path = folder / "pytorch_model.bin"
    assert zipfile.is_zipfile(path)
    path.write_bytes(path.read_bytes()[:-3000])


def index_of(shard):
    def change(folder):
        (folder / "model.safetensors").unlink()
        content = {"weight_map": {"albert.pooler.weight": shard}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(content))

    return change


WEIGHTS = "model.safetensors"
HUGE = {"vocab_size": 10**7, "hidden_size": 10**6, "num_attention_heads": 1000, "intermediate_size": 10**7}
DAMAGES = {
    "truncated": (lambda f: (f / WEIGHTS).write_bytes((f / WEIGHTS).read_bytes()[:5000]), "not a whole"),
    "long header": (lambda f: (f / WEIGHTS).write_bytes(bytes(7) + b"\x40{}"), "not a whole"),  # 2**62
    "other tensors": (lambda f: save_file({"x": torch.ones(2)}, f / WEIGHTS), "does not hold the encoder"),
    "another prefix": (
        tensors(lambda name, tensor: {f"net.{name}": tensor}),
        "first albert.embeddings.word_embeddings.weight; it holds net.albert.embeddings",
    ),
    "queries missing": (
        tensors(lambda name, tensor: {} if "query" in name else {name: tensor}),
        "does not hold the encoder: .* missing, first",
    ),
    "nan": (tensors(spoil), "NaN or infinity"),
    "two files": (
        lambda f: shutil.copy(f / WEIGHTS, f / "old.safetensors"),
        "holds 2 sets of weights .model.safetensors, old.safetensors.: pass the one that is meant",
    ),
    "no file": (lambda f: (f / WEIGHTS).unlink(), "no model.safetensors in"),
    "another vocabulary": (
        set_config(vocab_size=300),
        r"has shape \(211, \d+\), not \(300, \d+\).*do not belong together",
    ),
    "missing shard": (
        index_of("model-00002-of-00002.safetensors"),
        "names model-00002-of-00002.safetensors, which",
    ),
    "outside shard": (index_of("../../../etc/hostname"), "outside its folder and not to be trusted"),
    "not an index": (
        lambda f: index_of("x")(f) or (f / f"{WEIGHTS}.index.json").write_text("[1]"),
        "no index of shards",
    ),
    "empty .bin": (as_bin(b""), "pytorch_model.bin"),
    "truncated .bin": (truncated_bin, "not a whole file of torch"),
    "something else": (
        as_bin({"epoch": 3, "state_dict": {"x": torch.ones(1)}}),
        "does not hold tensors by name: save the model's state_dict",
    ),
    "huge config": (set_config(**HUGE), "do not belong together"),  # and nothing is allocated
    "endless number": (set_config(hidden_size=10**400), "hidden_size=1000.* it must be less than 10"),
    "a billion layers": (set_config(num_hidden_layers=10**9), "layers=10+: it must be less than 1000"),
    "eight bits": (tensors(lambda n, t: {n: t.to(torch.float8_e4m3fn)}), "of a kind that is not read"),
    "quantised": (tensors(lambda n, t: {n: t.to(torch.int8)}), "not read: .* is torch.int8"),
    "sparse .bin": (as_bin({"x": torch.eye(2).to_sparse()}), "of a kind that is not read"),
    "commented config": (config_of('{"a": 1, // comment\n "b": 1,}'), "as JSON: .*line 1 column 10"),
    "nested config": (config_of("[" * 100_000), "as JSON: .*(recursion|Stack overflow)"),
    "another model": (set_config(model_type="gpt2"), "model_type 'gpt2': only 'albert', 'bert' and 'ernie'"),
    "relative": (set_config(model_type="bert", position_embedding_type="relative_key"), "relative positions"),
    "decoder": (set_config(model_type="bert", is_decoder=True), "a decoder"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_one_line_and_nothing_is_written(folder, damage):
    change, message = DAMAGES[damage]
    change(folder)
    before = sorted(folder.rglob("*"))
    with pytest.raises((ConfigError, InputError), match=message) as error:
        load_model(folder)
    assert "\n" not in str(error.value) and sorted(folder.rglob("*")) == before
    if damage == "two files":
        assert not load_model(folder / WEIGHTS)[1].new
        with pytest.raises(InputError, match="no weights file"):
            load_model(folder / "config.json")
        with pytest.raises(InputError, match="no checkpoint at"):
            load_model(folder / "nothing.safetensors")


class Bomb:
    """Runs a command when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


BOMBS = {
    "plain pickle": lambda bomb, path: path.write_bytes(pickle.dumps(bomb, protocol=2)),
    "torch archive": lambda bomb, path: torch.save({"x": torch.ones(1), "y": bomb}, path),
    "old torch file": lambda bomb, path: torch.save({"y": bomb}, path, _use_new_zipfile_serialization=False),
}


@pytest.mark.parametrize("kind", BOMBS)
def test_a_pickle_is_refused_and_never_run(folder, tmp_path, kind):
    pwned = str(tmp_path / "PWNED")
    weights = folder / "pytorch_model.bin"
    for name in ("model.safetensors", "config.json"):  # it may come alone
        (folder / name).unlink()
    BOMBS[kind](Bomb(pwned), weights)
    with pytest.raises(InputError, match="not executed|not a whole file of torch") as error:
        load_model(folder)
    assert "\n" not in str(error.value) and not Path(pwned).exists()
    # and the bomb is a bomb: what reads it carelessly is hit
    if kind == "plain pickle":
        pickle.loads(weights.read_bytes())
    else:
        torch.load(weights, weights_only=False)
    assert Path(pwned).exists()


def test_a_vocabulary_of_another_size_is_refused_both_ways(tmp_path, tokenizer):
    for name, size in (("small", tokenizer.vocab_size - 1), ("large", tokenizer.vocab_size + 128)):
        save_small_model(tmp_path / name, tokenizer, vocab_size=size)
        with pytest.raises(InputError, match="do not belong together"):
            load_pretrained(tmp_path / name)
    save_small_model(tmp_path / "padded", tokenizer, vocab_size=tokenizer.vocab_size + 7)
    assert load_pretrained(tmp_path / "padded")[1].vocab_size == tokenizer.vocab_size
