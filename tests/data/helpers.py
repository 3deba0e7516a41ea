"""Real text as the stages hand it on."""

from collections.abc import Sequence

import numpy as np

from data.cleaning import split_sentences
from data.instances import tokenize_documents
from data.instances.cutting import TokenizedDocuments
from data.segmentation import Segmenter
from data.sources import document_id

SEGMENTER = Segmenter()


def tokenize_texts(texts: Sequence[str], tokenizer, max_piece: int) -> TokenizedDocuments:
    """Cleaned texts, split into sentences and words, tokenised."""
    documents = [split_sentences(text) for text in texts]
    joined = "".join(f"{sentence}\n" for sentences in documents for sentence in sentences)
    counts = np.array([len(sentences) for sentences in documents])
    ids = [document_id(text) for text in texts]
    return tokenize_documents(ids, joined, SEGMENTER.lengths(joined), counts, tokenizer, max_piece)
