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

    A term's rows in the decoder and the MLM bias are the means of its pieces' too.
    """
    if not isinstance(tokenizer, WordPieceTokenizer):
        raise InputError("terms can be added to a vocab.txt only: a SentencePiece model has no free slots")
    grown, added = add_terms_to_vocabulary(tokenizer, terms)
    for table in {model.encoder.embedding.word, model.decoder, model.mlm.bias}:  # the first two may be one
        rows = [(one.token_id, table[list(one.pieces)].mean(0)) for one in added]
        for token_id, row in rows:
            table[token_id] = row
    return grown, added
