"""Other architectures in a comparison, through transformers."""

import numpy as np
import pytest
import tokenizers
import torch
import transformers

from albert.checkpoints import load_start
from albert.finetuning import fine_tune, fine_tune_one
from albert.finetuning.encoding import encode_texts
from albert.finetuning.span import Span
from albert.model import pack
from albert.tasks import SpanExample
from data.errors import InputError
from tests.albert.checkpoints.test_weights import set_config, tensors
from tests.albert.finetuning.examples import prepared, settings_of, table
from tests.conftest import change_json

SIZES = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 128}
OTHERS = {
    "roformer": {"embedding_size": 64},
    "electra": {"embedding_size": 32},
    "distilbert": {"hidden_dim": 128},
    "deberta": {"relative_attention": True},
    "deberta-v2": {"relative_attention": True, "pos_att_type": "p2c|c2p"},
    "modernbert": {"pad_token_id": 0},
}


def save_other(name, folder, tokenizer):
    torch.manual_seed(0)
    sizes = {"vocab_size": tokenizer.vocab_size, **SIZES, **OTHERS[name]}
    config = transformers.AutoConfig.for_model(name, **sizes)
    transformers.AutoModel.from_config(config).save_pretrained(folder)
    tokenizer.save(folder)
    transformers.BertTokenizer.from_pretrained(folder).save_pretrained(folder)  # names the special tokens
    return folder


@pytest.mark.parametrize("name", OTHERS)
def test_packed_states_are_those_of_each_sequence_alone(name, tmp_path, tokenizer):
    other = save_other(name, tmp_path / name, tokenizer)
    start = load_start(other)
    text = "采茶要早，model水"
    for found, wanted in zip(start.tokenizer.encode(text), tokenizer.encode(text), strict=True):
        assert found.tolist() == wanted.tolist()
    sequences = [[2, *range(20, 20 + n), 3] for n in (5, 1, 9)]
    theirs = transformers.AutoModel.from_pretrained(other).eval()
    with torch.no_grad():
        ours = start.encoder.eval()(pack(sequences))
        alone = [theirs(input_ids=torch.tensor([one])).last_hidden_state[0] for one in sequences]
    torch.testing.assert_close(ours, torch.cat(alone), atol=2e-5, rtol=1e-5)


def test_a_pair_is_separated_as_the_models_own_tokenizer_does_and_cut_at_its_longer_side(tmp_path, tokenizer):
    config = transformers.XLMRobertaConfig(vocab_size=tokenizer.vocab_size, **SIZES)
    transformers.AutoModel.from_config(config).save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    sep, cls = ("[SEP]", tokenizer.sep_id), ("[CLS]", tokenizer.cls_id)
    library.post_processor = tokenizers.processors.RobertaProcessing(sep, cls)  # two [SEP]s between them
    names = {"unk_token": "[UNK]", "sep_token": "[SEP]", "cls_token": "[CLS]"}
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=library, **names)
    theirs.save_pretrained(tmp_path)
    found = load_start(tmp_path).tokenizer

    def encode(length, *texts):
        return encode_texts([[texts]], found, length, np.zeros(1))

    first, second = "采茶要早炒锅", "水"
    pair, cut, other = encode(128, first, second), encode(8, first, second), encode(8, second, first)
    assert pair.input_ids.tolist() == theirs(first, second)["input_ids"] and not pair.cut
    assert pair.segment_b_start.tolist() == [len(first) + 3]
    types = pair.choose(np.array([0])).batch.token_type_ids.tolist()
    assert types == [0] * (len(first) + 3) + [1] * (len(second) + 1)
    assert cut.input_ids.tolist() == theirs(first[:3], second)["input_ids"] and cut.cut
    assert other.input_ids.tolist() == theirs(second, first[:3])["input_ids"] and other.cut
    assert encode(128, first).input_ids.tolist() == theirs(first)["input_ids"]
    question = SpanExample(id="0", passage=first, question=second, answers=("茶",), starts=(1,))
    asked = Span("cmrc", has_unanswerable=False).encode([question], found, 128)
    assert asked.input_ids.tolist() == theirs(second, first)["input_ids"]


def test_another_architecture_stands_beside_ours_in_a_comparison(tmp_path, tokenizer, model_folder):
    other = save_other("electra", tmp_path / "electra", tokenizer)
    rows = [(f"{'采茶要早炒锅'[i % 6]}{'苦香'[i % 2]}{i}", i % 2) for i in range(24)]
    path = table(tmp_path / "t.tsv", "text label", rows)
    options = {"epochs": 6, "batch_size": 8, "learning_rate": 3e-3, "running": {"precision": "fp32"}}
    settings = settings_of("t", path, model_folder, other, seeds=(0,), **options)
    ours, theirs = fine_tune(settings).models
    (run,) = theirs.seeds
    assert theirs.name == other.name and run.curve[-1].train_loss < 0.9 * run.curve[0].train_loss
    torch.manual_seed(99)  # nothing of it reaches a run
    again = fine_tune_one(prepared(settings, 1), 0, 3e-3, tmp_path / "kept")
    assert again.result.curve == run.curve
    assert not (tmp_path / "kept").exists()  # it is only compared


def test_code_that_comes_with_a_checkpoint_is_not_run_whatever_is_answered(tmp_path, tokenizer, monkeypatch):
    folder, ran = save_other("electra", tmp_path / "electra", tokenizer), tmp_path / "ran"
    (folder / "own.py").write_text(f"from pathlib import Path; Path({str(ran)!r}).touch()")
    classes = {"AutoConfig": "own.C", "AutoModel": "own.M"}
    change_json(folder / "config.json", model_type="own", auto_map=classes)
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    with pytest.raises(InputError, match="transformers cannot open .* contains custom code"):
        load_start(folder)
    assert not ran.exists()


@pytest.mark.parametrize(
    "change, message",
    [
        (set_config(model_type="no-such-model"), "transformers cannot open .*no-such-model"),
        (tensors(lambda name, value: {f"net.{name}": value}), "missing: embeddings.word_embeddings.weight, "),
        (tensors(lambda name, value: {} if "dense" in name else {name: value}), "6 of .* missing: .*dense"),
        (tensors(lambda name, value: {name: value[:-1]}), "of another shape than config.json says: "),
    ],
    ids=["another model", "other names", "a part missing", "other shapes"],
)
def test_what_transformers_cannot_open_whole_is_refused(change, message, tmp_path, tokenizer):
    folder = save_other("electra", tmp_path / "electra", tokenizer)
    change(folder)
    with pytest.raises(InputError, match=message):
        load_start(folder)
