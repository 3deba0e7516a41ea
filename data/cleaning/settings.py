"""How text is cleaned, filtered, compared and guarded: the options of a recipe's groups, hashed into it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from data.options import Commas, Listed, OnOff, Words, options

Kind = Literal["url", "email", "id_card", "bank_card", "phone"]


@options
class CleaningRules:
    """What cleaning does beside what it always does."""

    fold_width: bool = True
    """Full-width Latin letters and digits become plain ones (NFKC)."""
    simplify: bool = False
    """Traditional to simplified characters, by OpenCC's t2s (繁体转简体)."""
    max_repeats: Annotated[int, Field(ge=0, le=1000)] = 3
    """Maximum repeats of a punctuation mark in a row; 0: unlimited."""
    scrub: Annotated[tuple[Kind, ...], Commas] = ()
    """Personal data to replace by placeholders (脱敏); card numbers only if their check digit is right."""


@options
class QualityRules:
    """Documents beyond these bounds are dropped; each keeps a row with its reason."""

    # C4: lines of five words, which short Chinese sentences do not have
    min_characters: Annotated[int, Field(ge=1, le=1_000_000)] = 5
    """Documents with fewer letters and digits are dropped (最短字数)."""
    # of the characters that are not spaces, a number of any length being one: a telephone number is no more
    # foreign than a year; kana count against it, for Japanese has many Han; Gopher: 0.8 of the words with a
    # letter, but names and code in Chinese text have many letters
    min_han_share: Annotated[float, Field(ge=0, le=1)] = 0.25
    """Documents with less Chinese are dropped (汉字占比)."""
    # Gopher: 0.2 of the characters in repeated lines; headings and cells are sentences too
    max_repeated_sentences: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Largest share of characters in sentences that repeat another."""
    # Gopher: 0.1 for 10 words, but statutes repeat themselves for good reason
    max_repeated_ngrams: Annotated[float, Field(ge=0, le=1)] = 0.6
    """Largest share of repeated sequences of 10 characters."""
    # C4 drops such lines
    max_unended_lines: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Largest share of lines without a sentence end; 1: any."""
    # C4: three times
    boilerplate_documents: Annotated[int, Field(ge=0, le=10**9)] = 50
    """A sentence in this many documents is boilerplate; 0: off."""
    max_boilerplate: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Largest share of a document's characters in boilerplate."""
    # like Gopher's share of symbols: of a page only a line, of a notice nearly all of it
    max_advertising: Annotated[float, Field(ge=0, le=100)] = 1.0
    """Maximum calls to follow, buy or get in touch per 100 characters; 100: unlimited (广告)."""
    blocklist: str | None = None
    """File of words, one a line (屏蔽词)."""
    # C4 drops at the first, but two Chinese characters also meet by chance
    max_blocked: Annotated[int, Field(ge=0, le=10**6)] = 2
    """Maximum number of blocklisted words in a document."""
    languages: Words = ()
    """Languages to keep, such as zh,wuu,yue; by default all (语种). Needs jixu[language]."""
    # CCNet (Wenzek et al. 2020) orders documents by it, but good ones of a rare kind are unlikely too
    max_perplexity: Annotated[float, Field(ge=0, le=1_000_000)] = 0.0
    """Largest perplexity under the corpus's own pairs of characters; 0: not measured (困惑度)."""


def _off(value: object) -> object:
    return None if value in ("off", "none") else value


@options
class DuplicateRules:
    """Which documents are nearly the same."""

    # below 0.6 the bands miss too many pairs
    near: Annotated[float | None, Field(ge=0.6, le=1), BeforeValidator(_off), OnOff] = 0.8
    """Jaccard similarity from which the later one is dropped, or off."""
    ngram: Annotated[int, Field(ge=2, le=50)] = 5
    """Characters that are compared together."""


@options
class GuardRules:
    """Evaluation sets to keep out of the corpus; the recipe is hashed with their content."""

    files: Annotated[tuple[str, ...], Listed] = ()
    """Evaluation sets (评测集防泄漏)."""
    ngram: Annotated[int, Field(ge=8, le=100)] = 13
    """Characters in common that are a hit."""
    # 0 as in Brown et al.; fields with set phrases, such as law, need more
    share: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Smallest share of an evaluation text's sequences that a document must hold; 0: one of them."""
    action: Literal["drop", "report"] = "drop"
    """What to do with a document that has a hit."""
