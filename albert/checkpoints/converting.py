"""Convert a checkpoint and its vocabulary into another format; written completely or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch

from albert.checkpoints.loading import read_checkpoint
from albert.checkpoints.saving import check_new, check_transformers, save_new
from albert.model import PretrainingModel
from data.errors import InputError
from data.tokenization import (
    AddedTerm,
    Tokenizer,
    WordPieceTokenizer,
    add_terms_to_vocabulary,
    find_tokenizer,
    read_terms,
)


def convert(
    source: Path | str,
    target: Path,
    /,
    *,
    format: Literal["transformers", "jixu"] = "transformers",
    dtype: Literal["fp32", "bf16"] = "fp32",
    tokenizer: str | None = None,
    terms: Path | None = None,
) -> list[str]:
    """Write a checkpoint that transformers opens; return lines for the user.

    Raises InputError or ConfigError before anything is written.

    Args:
        source: Folder, weights file, TensorFlow prefix, or hf:REPO.
        target: A folder that does not exist yet.
        format: Library that opens it; jixu's own format can hold models that transformers cannot express.
        dtype: Number format of the weights; bf16 halves the file and rounds.
        tokenizer: vocab.txt, spiece.model or folder; by default the checkpoint's own.
        terms: File of domain terms, one per line, that become tokens.
    """
    check_new(target)
    checkpoint = read_checkpoint(source)
    if format == "transformers":
        check_transformers(checkpoint.config)
    vocabulary = checkpoint.tokenizer(find_tokenizer(tokenizer) if tokenizer else None)
    new_terms = read_terms(terms) if terms else []
    torch.manual_seed(0)  # for a head that the checkpoint lacks
    model = checkpoint.build()
    notices = checkpoint.report.notices()
    if new_terms:
        vocabulary, added = _add_terms(model, vocabulary, new_terms)
        notices.append(f"{len(added):,} of {len(new_terms):,} terms added as tokens in free slots")
        if len(added) < len(new_terms):
            notices.append("a term is not added if it is a token already, or has a character without one")
    stored = torch.bfloat16 if dtype == "bf16" else torch.float32
    save_new(model, target, vocabulary, stored, made_from=[source])
    return [*notices, f"wrote {target}"]


@torch.no_grad()
def _add_terms(
    model: PretrainingModel, tokenizer: Tokenizer, terms: Sequence[str]
) -> tuple[WordPieceTokenizer, list[AddedTerm]]:
    """Put terms into free slots of a WordPiece vocabulary and of the model's tables, in place.

    A term's embedding, and its rows in the decoder and the MLM bias, start as the mean of the pieces it was
    split into.
    """
    if not isinstance(tokenizer, WordPieceTokenizer):
        raise InputError("terms can be added to a vocab.txt only: a SentencePiece model has no free slots")
    grown, added = add_terms_to_vocabulary(tokenizer, terms)
    for table in {model.encoder.embedding.word, model.decoder, model.mlm.bias}:  # the first two may be one
        rows = [(one.token_id, table[list(one.pieces)].mean(0)) for one in added]
        for token_id, row in rows:
            table[token_id] = row
    return grown, added
