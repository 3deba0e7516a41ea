"""Any encoder that transformers opens, to be fine-tuned beside jixu's own under the same seeds and order.

RoFormer, ELECTRA, ModernBERT and the like are only compared: nothing here trains them further or writes them.
T = packed tokens, S = sequences, H = hidden size.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from albert.checkpoints.config_files import MODEL_TYPES
from albert.checkpoints.loading import load_pretrained
from albert.checkpoints.source import Source, find_source
from albert.model import AlbertConfig, Batch, Encoder
from data.errors import InputError
from data.files import read_json
from data.tokenization import Tokenizer


@dataclass(frozen=True, slots=True)
class Start:
    """What a fine-tuning starts from."""

    encoder: Encoder
    tokenizer: Tokenizer
    source: Source
    is_own: bool  # False: it is transformers' model


def load_start(path: Path | str) -> Start:
    """Load an encoder and its tokenizer. Raises as `load_pretrained`, and InputError for an architecture that
    needs transformers, if it is not installed, cannot open it, or finds no value for a weight.
    """
    source = find_source(path, any_model=True)
    kind = read_json(source.config).get("model_type") if source.config.is_file() else None
    if source.is_tensorflow or not isinstance(kind, str) or kind in MODEL_TYPES:
        model, tokenizer = load_pretrained(path)
        return Start(model.encoder, tokenizer, source, is_own=True)
    try:
        import transformers
    except ImportError:
        raise InputError(
            f"{path} is of model_type {kind!r}, which transformers has: install jixu[compare] to compare it"
        ) from None
    transformers.utils.logging.disable_progress_bar()
    # by default transformers asks on the terminal whether to run a checkpoint's own code
    given: dict[str, Any] = {"trust_remote_code": False}
    wanted = {"dtype": torch.float32, "output_loading_info": True, "ignore_mismatched_sizes": True}
    try:
        theirs, loaded = transformers.AutoModel.from_pretrained(source.folder, **wanted, **given)
        _check(theirs, loaded, source)
        words = AutoTokens(transformers.AutoTokenizer.from_pretrained(source.folder, **given), source.folder)
        encoder = AutoEncoder(theirs, _nearest(theirs.config))
    except InputError:
        raise
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, AttributeError) as error:
        raise InputError(f"transformers cannot open {path}: {' '.join(str(error).split())[:200]}") from None
    return Start(cast(Encoder, encoder), cast(Tokenizer, words), source, is_own=False)


def _check(theirs: nn.Module, loaded: Mapping[str, Any], source: Source) -> None:
    """Raise InputError unless every weight that is learnt and used came from the files.

    transformers draws the others at random, without a seed.
    """
    used = [n for n, p in theirs.named_parameters() if p.requires_grad and "pooler" not in n.split(".")]
    faults = {
        "missing": {*loaded["missing_keys"]},
        "of another shape than config.json says": {name for name, *_ in loaded["mismatched_keys"]},
    }
    for fault, names in faults.items():
        if found := [name for name in used if name in names]:
            shown = ", ".join(found[:3]) + (", ..." if len(found) > 3 else "")
            raise InputError(
                f"{source.weights}: {len(found)} of {len(used)} tensors of the encoder are {fault}: {shown}; "
                "save the model again with save_pretrained, or pass another checkpoint"
            )


def _nearest(theirs: Any) -> AlbertConfig:
    """BERT's config of the same sizes, for costs and heads."""
    return AlbertConfig(
        layout="bert",
        share="none",
        vocab_size=theirs.vocab_size,
        embedding_size=theirs.hidden_size,
        hidden_size=theirs.hidden_size,
        num_hidden_layers=theirs.num_hidden_layers,
        num_attention_heads=theirs.num_attention_heads,
        # DistilBERT has another name for it
        intermediate_size=getattr(theirs, "intermediate_size", None) or theirs.hidden_dim,
        # RoBERTa's positions begin at 2
        max_position_embeddings=getattr(theirs, "max_position_embeddings", 514) - 2,
    )


class AutoEncoder(nn.Module):
    """transformers' model with the interface of `Encoder`: packed batches in, packed states out."""

    def __init__(self, model: nn.Module, config: AlbertConfig):
        super().__init__()
        self.model, self.config = model, config
        types = getattr(model.config, "type_vocab_size", None) or 0
        self.has_types = types > 1 and "token_type_ids" in inspect.signature(model.forward).parameters
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size)
        nn.init.eye_(self.pooler.weight)  # no seed may decide it
        nn.init.zeros_(self.pooler.bias)

    def forward(self, batch: Batch, rows: Tensor | None = None) -> Tensor:
        """Hidden states [T, H], or those of some rows."""
        lengths = batch.cu_seqlens.diff().tolist()

        def padded(values: Tensor) -> Tensor:  # [S, longest]
            return nn.utils.rnn.pad_sequence(values.split(lengths), batch_first=True)

        mask = padded(torch.ones_like(batch.input_ids))
        given = {"input_ids": padded(batch.input_ids), "attention_mask": mask}
        if self.has_types:
            given["token_type_ids"] = padded(batch.token_type_ids)
        hidden = self.model(**given).last_hidden_state[mask.bool()]
        return hidden if rows is None else hidden.index_select(0, rows)

    pool = Encoder.pool  # which reads `pooler` alone

    def draw_weights(self) -> None:
        """Set random weights as transformers does for this architecture."""
        import transformers

        self.model = transformers.AutoModel.from_config(self.model.config, dtype=torch.float32)


class AutoTokens:
    """transformers' fast tokenizer with the interface of `Tokenizer`, as fine-tuning uses it."""

    def __init__(self, tokenizer: Any, folder: Path):
        ids = tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.unk_token_id
        if not tokenizer.is_fast or None in ids[:2]:
            raise InputError(
                f"the tokenizer in {folder} has no [CLS] and [SEP], or no offsets: not supported"
            )
        self.tokenizer = tokenizer
        self.cls_id, self.sep_id = ids[:2]
        self.unknown_id = self.sep_id if ids[2] is None else ids[2]
        # RoBERTa's have two
        self.separators = max(1, tokenizer("a", "b")["input_ids"][:-1].count(self.sep_id))

    def encode(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Token ids [n] and where each begins in the text [n]."""
        found = self.tokenizer(
            text, add_special_tokens=False, return_offsets_mapping=True, truncation=False, verbose=False
        )
        starts = [begin for begin, _ in found["offset_mapping"]]
        return np.array(found["input_ids"], dtype=np.int64), np.array(starts, dtype=np.int64)
