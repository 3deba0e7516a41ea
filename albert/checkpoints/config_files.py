"""Config files: of transformers' ALBERT, BERT and ERNIE, of jixu, and of TensorFlow checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from albert.model import AlbertConfig, Layout
from data.errors import ConfigError
from data.files import read_json

# transformers leaves out of a file what equals its own defaults, those of BERT-base and ALBERT-xxlarge; here
# are those that are not AlbertConfig's too
_BERT_DEFAULTS: dict[str, object] = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
}
_ALBERT_DEFAULTS: dict[str, object] = {
    "vocab_size": 30000,
    "hidden_size": 4096,
    "num_attention_heads": 64,
    "intermediate_size": 16384,
}
MODEL_TYPES = ("albert", "bert", "ernie", "jixu")
_TENSORFLOW_NEEDED = (
    "vocab_size", "embedding_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
    "intermediate_size", "hidden_act",
)  # fmt: skip


def read_config(path: Path) -> AlbertConfig:
    """Read a config.json. Raises ConfigError for a model that AlbertConfig cannot express, InputError for a
    broken file.
    """
    content = read_json(path)
    # a bert_config.json, as published before transformers had model types, says it by its name
    kind = content.get("model_type") or path.name.partition("_")[0]
    if kind not in MODEL_TYPES:
        raise ConfigError(
            f"{path} is of model_type {content.get('model_type')!r}: only 'albert', 'bert' and 'ernie' can "
            "be loaded (add it to a file that has none); jixu fine-tune compares others as they are"
        )
    if kind == "albert":
        return _build(path, {**_ALBERT_DEFAULTS, **_of_groups(content)})
    if kind == "jixu":
        return _build(path, content)
    if content.get("position_embedding_type", "absolute") != "absolute" or content.get("is_decoder"):
        raise ConfigError(f"{path} asks for relative positions or a decoder: only plain BERT can be loaded")
    values = {**_BERT_DEFAULTS, **content}
    values |= {"embedding_size": values["hidden_size"], "layout": "bert", "share": "none"}
    dropout = content.get("classifier_dropout")
    values["classifier_dropout_prob"] = values["hidden_dropout_prob"] if dropout is None else dropout
    return _build(path, values)


def read_tensorflow_config(path: Path, layout: Layout) -> AlbertConfig:
    """The config beside a TensorFlow checkpoint of albert_zh (bright), google-research/albert (google) or
    google-research/bert (bert).

    Their "gelu" is the tanh approximation, which transformers calls gelu_new. Nothing is inferred: a missing
    size, head count or activation is an error. A BERT may have a narrower embedding, as SimBERT's small ones.
    """
    content = read_json(path)
    if layout == "bert":
        content = {"embedding_size": content.get("hidden_size"), **content}
    missing = [name for name in _TENSORFLOW_NEEDED if content.get(name) is None]
    if missing:
        raise ConfigError(f"{path} does not say {', '.join(missing)}: they cannot be told from the weights")
    values = {**_ALBERT_DEFAULTS, **_of_groups(content), "layout": layout}
    if values["hidden_act"] == "gelu":
        values["hidden_act"] = "gelu_new"
    if layout == "bert":
        is_narrow = values["embedding_size"] != values["hidden_size"]
        values |= {"share": "none", "layout": "google" if is_narrow else "bert"}
    elif layout == "bright":
        norm = "pre" if content.get("ln_type") == "preln" else "post"
        values |= {"norm": norm, "num_hidden_groups": 1}
    return _build(path, values)


def _of_groups(content: dict[str, object]) -> dict[str, object]:
    """The content with at most as many groups as layers, as a file may leave some unused, and one group if
    nothing is shared.
    """
    layers, groups = content.get("num_hidden_layers", 12), content.get("num_hidden_groups")
    if content.get("share") == "none":
        return {**content, "num_hidden_groups": 1}
    if isinstance(layers, int) and isinstance(groups, int) and groups > layers:
        return {**content, "num_hidden_groups": layers}
    return content


def _build(path: Path, values: Mapping[str, object]) -> AlbertConfig:
    known: dict[str, Any] = {
        field.name: values[field.name] for field in fields(AlbertConfig) if field.name in values
    }
    if known.get("pad_token_id", 0) is None:  # is common, and ignored here
        del known["pad_token_id"]
    if known.get("hidden_act") == "gelu_pytorch_tanh":  # another name of it in transformers
        known["hidden_act"] = "gelu_new"
    try:
        return AlbertConfig(**known)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def own_format(config: AlbertConfig) -> dict[str, object]:
    """The content of config.json in jixu's own format, which no class of transformers opens."""
    return {"model_type": "jixu", **asdict(config)}


def to_file(config: AlbertConfig) -> dict[str, object]:
    """The content of config.json, in transformers' format if it can express the model."""
    if config.file_format == "jixu":
        return own_format(config)
    own = asdict(config)
    for name in ("share", "layout", "norm"):
        del own[name]
    if config.file_format == "bert":
        for name in ("embedding_size", "classifier_dropout_prob", "num_hidden_groups", "inner_group_num"):
            del own[name]
        own["classifier_dropout"] = config.classifier_dropout_prob
        return {"architectures": ["BertForPreTraining"], "model_type": "bert", **own}
    if config.share == "none":
        # as many groups as layers for transformers, which ignores "share"
        own |= {"share": "none", "num_hidden_groups": config.num_hidden_layers}
    return {"architectures": ["AlbertForPreTraining"], "model_type": "albert", **own}
