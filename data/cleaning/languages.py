"""The language of a document, by py3langid (langid.py: Lui and Baldwin 2012), which is optional."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from data.errors import InputError

_CHARACTERS = 1000  # of a document; all of a long one would take longer than the rest of a refresh


@cache
def _identifier() -> Any:
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError:
        raise InputError("quality.languages needs py3langid: pip install 'jixu[language]'") from None
    return LanguageIdentifier.from_model_file(MODEL_FILE)


def check_languages(codes: Sequence[str]) -> None:
    """Raise InputError if a language is not known, or the library is missing."""
    if unknown := sorted(set(codes) - set(_identifier().nb_classes)):
        raise InputError(
            f"quality.languages: py3langid knows no {', '.join(unknown)}; its codes are those of ISO 639, "
            "such as zh, wuu and yue for Chinese, en or ja"
        )


def languages_of(texts: Sequence[str]) -> list[str | None]:
    """Identify the language of each text's beginning, as a code such as zh; None for an empty text."""
    return [_identifier().classify(text[:_CHARACTERS])[0] if text else None for text in texts]
