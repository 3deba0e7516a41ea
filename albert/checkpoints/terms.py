"""Add domain terms to a model: a term's embedding starts as the mean of the pieces it was split into."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from albert.model import PretrainingModel
from data.errors import InputError
from data.tokenization import AddedTerm, Tokenizer, WordPieceTokenizer, add_terms_to_vocabulary


@torch.no_grad()
def add_terms(
    model: PretrainingModel, tokenizer: Tokenizer, terms: Sequence[str]
) -> tuple[WordPieceTokenizer, list[AddedTerm]]:
    """Put terms into free slots of a WordPiece vocabulary and of the model's tables, in place.

    The decoder is the word table, so it changes too; a term's MLM bias is the mean of its pieces' biases.
    """
    if not isinstance(tokenizer, WordPieceTokenizer):
        raise InputError("terms can be added to a vocab.txt only: a SentencePiece model has no free slots")
    grown, added = add_terms_to_vocabulary(tokenizer, terms)
    table, bias = model.encoder.embedding.word, model.mlm.bias
    rows = [(one.token_id, table[list(one.pieces)].mean(0), bias[list(one.pieces)].mean()) for one in added]
    for token_id, row, value in rows:
        table[token_id], bias[token_id] = row, value
    return grown, added
