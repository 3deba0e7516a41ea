"""Training objectives: which tokens are masked, in what units, and what replaces them.

albert    1 to 3 words, p(n) ~ 1/n; sentence order (Lan et al. 2020, sections 3.1 and 4.1)
roberta   one word; full sentences across documents, no sentence order (Liu et al. 2019, section 4.2, with the
          whole words of Cui et al. 2021)
macbert   1 to 4 words, 40/30/20/10%, replaced by similar words instead of [MASK]; sentence order (Cui et al.
          2020, section 3.2)
spanbert  geometric(0.2) words, at most 10; one draw of 80/10/10 a span, no sentence order (Joshi et al. 2020,
          sections 3.1 and 3.3)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_SPANBERT = 0.2 * 0.8 ** np.arange(10)


@dataclass(frozen=True, slots=True)
class Objective:
    """The rules of an objective that do not depend on settings."""

    lengths: tuple[float, ...] = ()  # shares of masking 1, 2, .. words together; () if settings decide
    sentence_order: bool = False  # SOP is part of it
    packs: bool = False  # an instance may run from one document into the next
    whole_spans: bool = False  # one draw of 80/10/10 decides for all tokens masked together
    similar_words: bool = False  # a masked word is replaced by a similar one


OBJECTIVES = {
    "albert": Objective(sentence_order=True),
    "roberta": Objective((1.0,), packs=True),
    "macbert": Objective((0.4, 0.3, 0.2, 0.1), sentence_order=True, similar_words=True),
    "spanbert": Objective(tuple(_SPANBERT.tolist()), whole_spans=True),
}


def length_probabilities(objective: str, max_ngram: int) -> np.ndarray:
    """Return p(n) of masking n = 1, 2, .. words together; only "albert" uses `max_ngram`.

    >>> length_probabilities("albert", 3).round(3).tolist()
    [0.545, 0.273, 0.182]
    """
    weights = np.array(OBJECTIVES[objective].lengths or 1.0 / np.arange(1, max_ngram + 1))
    return weights / weights.sum()
