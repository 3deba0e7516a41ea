"""Names of a checkpoint's tensors in each format, defined only here.

Ours -> theirs. {l} stands for a layer's number, {g} and {i} for its group's and its own in the group, {part}
for query, key and value, which are one matrix here and three tensors there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from albert.model import AlbertConfig

WeightsFormat = Literal["albert", "bert", "jixu", "tensorflow-google", "tensorflow-bright", "tensorflow-bert"]

_ALBERT_LAYER = "albert.encoder.albert_layer_groups.{g}.albert_layers.{i}."
_ALBERT = {
    "encoder.embedding.word": "albert.embeddings.word_embeddings.weight",
    "encoder.embedding.token_type": "albert.embeddings.token_type_embeddings.weight",
    "encoder.embedding.position": "albert.embeddings.position_embeddings.weight",
    "encoder.embedding.norm": "albert.embeddings.LayerNorm",
    "encoder.embedding.projection": "albert.encoder.embedding_hidden_mapping_in",
    "encoder.attentions.{l}.query_key_value": _ALBERT_LAYER + "attention.{part}",
    "encoder.attentions.{l}.output": _ALBERT_LAYER + "attention.dense",
    "encoder.attentions.{l}.norm": _ALBERT_LAYER + "attention.LayerNorm",
    "encoder.feed_forwards.{l}.inner": _ALBERT_LAYER + "ffn",
    "encoder.feed_forwards.{l}.output": _ALBERT_LAYER + "ffn_output",
    "encoder.feed_forwards.{l}.norm": _ALBERT_LAYER + "full_layer_layer_norm",
    "encoder.pooler": "albert.pooler",
    "mlm.transform": "predictions.dense",
    "mlm.norm": "predictions.LayerNorm",
    "mlm.bias": "predictions.bias",
    "mlm.decoder": "predictions.decoder.weight",
    "sop": "sop_classifier.classifier",
}
_BERT_LAYER = "bert.encoder.layer.{l}."
_BERT = {
    "encoder.embedding.word": "bert.embeddings.word_embeddings.weight",
    "encoder.embedding.token_type": "bert.embeddings.token_type_embeddings.weight",
    "encoder.embedding.position": "bert.embeddings.position_embeddings.weight",
    "encoder.embedding.norm": "bert.embeddings.LayerNorm",
    "encoder.attentions.{l}.query_key_value": _BERT_LAYER + "attention.self.{part}",
    "encoder.attentions.{l}.output": _BERT_LAYER + "attention.output.dense",
    "encoder.attentions.{l}.norm": _BERT_LAYER + "attention.output.LayerNorm",
    "encoder.feed_forwards.{l}.inner": _BERT_LAYER + "intermediate.dense",
    "encoder.feed_forwards.{l}.output": _BERT_LAYER + "output.dense",
    "encoder.feed_forwards.{l}.norm": _BERT_LAYER + "output.LayerNorm",
    "encoder.pooler": "bert.pooler.dense",
    "mlm.transform": "cls.predictions.transform.dense",
    "mlm.norm": "cls.predictions.transform.LayerNorm",
    "mlm.bias": "cls.predictions.bias",
    "mlm.decoder": "cls.predictions.decoder.weight",
    "sop": "cls.seq_relationship",
}
# google-research's names, which transformers' BERT took over with dots; a table has no leaf
_TENSORFLOW_BERT = {
    ours: theirs.removesuffix(".weight").replace("layer.", "layer_").replace(".", "/")
    for ours, theirs in _BERT.items()
} | {
    "encoder.embedding.projection": "bert/encoder/embedding_hidden_mapping_in",
    "mlm.bias": "cls/predictions/output_bias",
    "sop.weight": "cls/seq_relationship/output_weights",
    "sop.bias": "cls/seq_relationship/output_bias",
}
_BRIGHT = {ours: theirs.replace("layer_{l}", "layer_shared") for ours, theirs in _TENSORFLOW_BERT.items()} | {
    "encoder.embedding.projection.weight": "bert/embeddings/word_embeddings_2"
}
_GOOGLE_LAYER = "bert/encoder/transformer/group_{g}/inner_group_{i}/"
_GOOGLE = _TENSORFLOW_BERT | {
    "encoder.attentions.{l}.query_key_value": _GOOGLE_LAYER + "attention_1/self/{part}",
    "encoder.attentions.{l}.output": _GOOGLE_LAYER + "attention_1/output/dense",
    "encoder.attentions.{l}.norm": _GOOGLE_LAYER + "LayerNorm",
    "encoder.feed_forwards.{l}.inner": _GOOGLE_LAYER + "ffn_1/intermediate/dense",
    "encoder.feed_forwards.{l}.output": _GOOGLE_LAYER + "ffn_1/intermediate/output/dense",
    "encoder.feed_forwards.{l}.norm": _GOOGLE_LAYER + "LayerNorm_1",
}
_LEAVES, _NORM_LEAVES = {"weight": "kernel", "bias": "bias"}, {"weight": "gamma", "bias": "beta"}
_NAMES = {
    "albert": _ALBERT,
    "bert": _BERT,
    "tensorflow-google": _GOOGLE,
    "tensorflow-bright": _BRIGHT,
    "tensorflow-bert": _TENSORFLOW_BERT,
}
# the decoder's own copies of the word table and of the bias
COPIES = {
    kind: {
        names["mlm.decoder"]: names["encoder.embedding.word"],
        names["mlm.decoder"].replace("weight", "bias"): names["mlm.bias"],
    }
    for kind, names in (("albert", _ALBERT), ("bert", _BERT))
}
# ERNIE's further table (Sun et al. 2020, section 4.1), and the one that jixu adds it to
TASK_TYPES = "bert.embeddings.task_type_embeddings.weight"
TOKEN_TYPES = _BERT["encoder.embedding.token_type"]
BUFFERS = {"albert.embeddings.position_ids", "bert.embeddings.position_ids"}  # of older versions
_MODULES = ("embeddings.", "encoder.", "pooler.")  # how a bare encoder's names begin


@dataclass(frozen=True, slots=True)
class Naming:
    """The names of a model's tensors in a file."""

    config: AlbertConfig
    weights_format: WeightsFormat
    file_groups: int = 1  # num_hidden_groups in the file, possibly more than the layers

    def of(self, ours: str) -> list[str]:
        """Names of the file's tensors that make up one parameter of ours."""
        if self.weights_format == "jixu":
            return [ours]
        names = _NAMES[self.weights_format]
        number = next((part for part in ours.split(".") if part.isdigit()), "")
        pattern = ours.replace(f".{number}.", ".{l}.") if number else ours
        stem, _, leaf = pattern.rpartition(".")
        if pattern in names:
            theirs = names[pattern]
        elif "/" in names[stem]:
            leaves = _NORM_LEAVES if "LayerNorm" in names[stem].rpartition("/")[2] else _LEAVES
            theirs = f"{names[stem]}/{leaves[leaf]}"
        else:
            theirs = f"{names[stem]}.{leaf}"
        group, inner = divmod(int(number or 0), self.config.inner_group_num)
        layers = self.config.num_hidden_layers
        if self.file_groups > layers:  # each layer uses one, with gaps
            group = group * self.file_groups // layers
        parts = ("query", "key", "value") if "{part}" in theirs else ("",)
        return [theirs.format(l=number, g=group, i=inner, part=part) for part in parts]


def current_names(names: Iterable[str], prefix: str) -> dict[str, str]:
    """What transformers calls a file's tensors now, by their names there.

    LayerNorms once had gamma and beta, data-parallel models have the prefix "module.", bare encoders none.
    ERNIE has BERT's names but for the prefix.

    >>> current_names(["embeddings.LayerNorm.gamma"], "bert")
    {'embeddings.LayerNorm.gamma': 'bert.embeddings.LayerNorm.weight'}
    """
    current = {}
    for name in names:
        plain = re.sub(r"^(module\.)?(ernie\.)?", lambda match: "bert." if match[2] else "", name)
        current[name] = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", plain))
    if not any(name.startswith(f"{prefix}.") for name in current.values()):
        for name, plain in current.items():
            if plain.startswith(_MODULES):
                current[name] = f"{prefix}.{plain}"
    return current
