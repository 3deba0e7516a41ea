"""Real text as the stages hand it on, and files as they come."""

import io
import random
import tarfile
import zipfile
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data.cleaning import split_sentences
from data.instances import tokenize_documents
from data.instances.cutting import TokenizedDocuments
from data.refresh.build import segmenter

SEGMENTER = segmenter(())


def random_text(count: int, seed: object = 0) -> str:
    rng = random.Random(seed)
    return "".join(chr(rng.randrange(0x4E00, 0x9F00)) for _ in range(count))


def tokenize_texts(texts: Sequence[str], tokenizer, max_piece: int) -> TokenizedDocuments:
    """Cleaned texts, split into sentences and words, tokenised."""
    documents = [split_sentences(text) for text in texts]
    joined = "".join(f"{sentence}\n" for sentences in documents for sentence in sentences)
    counts = np.array([len(sentences) for sentences in documents])
    return tokenize_documents(joined, SEGMENTER.lengths(joined), counts, tokenizer, max_piece)


def zip_of(files: Mapping[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return packed.getvalue()


def tar_of(files: Mapping[str, bytes], mode: str = "w") -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=mode, errors="surrogateescape") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.type = tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def parquet_of(**columns: object) -> bytes:
    table = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), table)
    return table.getvalue().to_pybytes()
