"""Folders as people have them: made with transformers, small, saved or published in one way each."""

import json
import shutil

import torch
import transformers
from safetensors.torch import load_file

from data.tokenization import WordPieceTokenizer, train_tokenizer
from tests.conftest import change_json, sample_sentences

SHAPE = {"hidden_size": 48, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 64}
SHAPE["max_position_embeddings"] = 128
PUBLISHED = {"directionality": "bidi", "pooler_fc_size": 768, "pooler_type": "first_token_transform"}


def save(folder, tokenizer, kind="BertForMaskedLM", untie=False, max_shard_size="1GB", **options):
    """Random weights, biases and LayerNorms too, and a vocabulary, as transformers 5 saves them."""
    torch.manual_seed(0)
    model_class = getattr(transformers, kind)
    options = {**SHAPE, "vocab_size": tokenizer.vocab_size, "tie_word_embeddings": not untie, **options}
    model = model_class(model_class.config_class(**options))
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, mean=float("orm.weight" in name), std=0.1)
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    tokenizer.save(folder)
    if tokenizer.kind == "wordpiece":
        (folder / "vocab.txt").unlink()
    else:
        transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
        (folder / "spiece.model").unlink()


def publish(folder, tokenizer, kind="BertForMaskedLM", **options):
    """The same as older folders of the Hub: pytorch_model.bin with copies and buffers, and vocab.txt."""
    save(folder, tokenizer, kind, **options)
    tensors = load_file(folder / "model.safetensors")
    prefix = kind.lower().partition("for")[0]
    head = "predictions" if prefix == "albert" else "cls.predictions"
    tensors[f"{prefix}.embeddings.position_ids"] = torch.arange(128)[None]
    tensors.setdefault(f"{head}.decoder.weight", tensors[f"{prefix}.embeddings.word_embeddings.weight"])
    tensors.setdefault(f"{head}.decoder.bias", tensors[f"{head}.bias"])
    torch.save(tensors, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    change_json(folder / "config.json", **PUBLISHED)
    tokenizer.save(folder)
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "special_tokens_map.json").write_text('{"mask_token": "[MASK]"}')
    (folder / "added_tokens.json").write_text("{}")


def save_of_trainer(folder, tokenizer):
    save(folder, tokenizer, "BertForSequenceClassification", num_labels=3)
    for name in ("training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth"):
        (folder / name).write_bytes(b"a pickle")
    (folder / "trainer_state.json").write_text("{}")


def permuted(tokenizer):
    """The same entries, the characters in another order."""
    first = tokenizer.vocabulary.index("一")
    return WordPieceTokenizer([*tokenizer.vocabulary[:first], *reversed(tokenizer.vocabulary[first:])])


def save_permuted(folder, tokenizer):
    save(folder, permuted(tokenizer))


def save_two_vocabularies(folder, tokenizer):
    save(folder, tokenizer)
    permuted(tokenizer).save(folder.parent / "other")
    shutil.move(folder.parent / "other" / "vocab.txt", folder)


def change_tokenizer(change):
    def make(folder, tokenizer):
        save(folder, tokenizer)
        path = folder / "tokenizer.json"
        path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")

    return make


def with_entry(entry, number=None):
    """Replace a vocabulary entry's text, or give it another id."""

    def change(content):
        tokenizer = json.loads(content)
        vocabulary = tokenizer["model"]["vocab"]
        vocabulary[entry] = vocabulary.pop("茶") if number is None else number
        return json.dumps(tokenizer)

    return change


def save_unigram(folder, tokenizer, publishes=False):
    unigram = train_tokenizer(sample_sentences(), kind="sentencepiece", vocab_size=2000)
    (publish if publishes else save)(folder, unigram, "AlbertForPreTraining", embedding_size=32)


ALBERT = {"kind": "AlbertForMaskedLM", "embedding_size": 32}
ERNIE = {"kind": "ErnieForMaskedLM", "type_vocab_size": 4, "use_task_id": True}


def variant(make, **options):
    return lambda folder, tokenizer: make(folder, tokenizer, **options)


# how a folder is made, and the message it is refused with
FOLDERS = {
    "BERT, saved": (variant(save, kind="BertForPreTraining"), None),
    "BERT, bare": (variant(save, kind="BertModel"), None),
    "BERT, shards": (variant(save, max_shard_size="40KB"), None),
    "BERT, Trainer": (save_of_trainer, None),
    "BERT, untied": (variant(save, kind="BertForPreTraining", untie=True), None),
    "BERT, untied .bin": (variant(publish, untie=True), None),
    "RoBERTa-wwm": (variant(publish), None),
    "MacBERT": (variant(publish, kind="BertForMaskedLM", layer_norm_eps=1e-5), None),
    "ALBERT, spiece.model": (variant(save_unigram, publishes=True), None),
    "ALBERT, unigram": (save_unigram, None),
    "ALBERT, vocab.txt": (variant(publish, **ALBERT), None),
    "ALBERT, untied": (variant(save, **ALBERT, untie=True), None),
    "ERNIE 3.0": (variant(publish, **ERNIE), None),
    "ERNIE 1.0": (variant(publish, kind="ErnieForMaskedLM", hidden_act="relu"), None),
    "ERNIE, saved": (variant(save, **ERNIE), None),
    "permuted": (save_permuted, "is not the vocabulary of"),
    "two vocabularies": (save_two_vocabularies, "have other ids in"),
    "cut off": (change_tokenizer(lambda content: content[:-900]), "is not a tokenizer.json"),
    "far id": (change_tokenizer(with_entry("茶", 4_000_000_000)), "its ids are not 0 to"),
    "line break": (change_tokenizer(with_entry("茶\n水")), "a line break, which no"),
}
