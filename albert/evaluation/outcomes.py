"""The outcome of every run and example as text, so that a verdict can be computed again from metrics.json.

R = fine-tuning runs, n = examples, k = statistics of an example (see `albert.evaluation.metrics`).
"""

from __future__ import annotations

import binascii
import io
import zlib
from base64 import b64decode, b64encode

import numpy as np

from data.errors import InputError


def pack(statistics: np.ndarray) -> str:
    """Statistics [R, n, k] as base64 of a zlib stream of a NumPy .npy file; whole numbers as small integers.

    >>> unpack(pack(np.array([[[1.0, 1.0], [0.0, 1.0]]]))).tolist()
    [[[1.0, 1.0], [0.0, 1.0]]]
    """
    whole = statistics.astype(np.int32)
    sink = io.BytesIO()
    np.save(
        sink, whole.astype(np.min_scalar_type(whole.max())) if (whole == statistics).all() else statistics
    )
    return b64encode(zlib.compress(sink.getvalue(), 9)).decode()


def unpack(text: str) -> np.ndarray:
    """The statistics [R, n, k] of a text. Raises InputError if it is damaged."""
    try:
        content = np.load(io.BytesIO(zlib.decompress(b64decode(text, validate=True))), allow_pickle=False)
    except (binascii.Error, zlib.error, ValueError, EOFError) as error:
        raise InputError(f"the outcomes in metrics.json are damaged: {error}") from None
    return np.asarray(content, dtype=np.float64)
