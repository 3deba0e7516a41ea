"""Add domain terms as tokens in unused slots of a vocabulary.

Unused are the [unused] slots and, as every Han character is a token by itself, the `##` twins of single Han
characters: no text is ever encoded as one. The vocabulary keeps its size, so the model keeps its shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from data.errors import InputError
from data.files import read_lines
from data.tokenization.wordpiece import WordPieceTokenizer, is_han

LONGEST_TERM = 32  # characters


@dataclass(frozen=True, slots=True)
class AddedTerm:
    term: str
    token_id: int  # its slot
    pieces: tuple[int, ...]  # the ids that encoded it before


def read_terms(path: Path) -> list[str]:
    """Read terms of a UTF-8 file, one a line, without repetitions. Raises InputError for any other file."""
    terms = list(dict.fromkeys(read_lines(path, "file of terms")))
    wrong = [term for term in terms if len(term) > LONGEST_TERM or len(term.split()) > 1]
    if wrong:
        raise InputError(
            f"{len(wrong)} term(s) in {path} are longer than {LONGEST_TERM} characters or have spaces, first "
            f"{wrong[0][:40]!r}"
        )
    if not terms:
        raise InputError(f"{path} holds no term")
    return terms


def free_slots(vocabulary: Sequence[str]) -> list[int]:
    """List the ids that no text is encoded as, [unused] ones first."""
    unused = [i for i, token in enumerate(vocabulary) if token.startswith("[unused")]
    twins = [
        i for i, token in enumerate(vocabulary) if len(token) == 3 and token[:2] == "##" and is_han(token[2])
    ]
    return unused + twins


def add_terms_to_vocabulary(
    tokenizer: WordPieceTokenizer, terms: Sequence[str]
) -> tuple[WordPieceTokenizer, list[AddedTerm]]:
    """Put terms into the free slots of a tokenizer; return the new tokenizer and the added terms.

    A term that already is a token, is repeated, or whose pieces include [UNK], is skipped. Raises InputError
    if there are more terms than free slots.
    """
    slots = [i for i in free_slots(tokenizer.vocabulary) if tokenizer.vocabulary[i] not in tokenizer.terms]
    known = set(tokenizer.vocabulary)
    added: list[AddedTerm] = []
    for term in dict.fromkeys(terms):
        pieces = tokenizer.encode(term)[0].tolist()
        if len(pieces) > 1 and tokenizer.unknown_id not in pieces and term not in known:
            if len(added) == len(slots):
                raise InputError(
                    f"{len(terms):,} terms, but only {len(slots):,} free slots in the vocabulary"
                )
            added.append(AddedTerm(term, slots[len(added)], tuple(pieces)))
    vocabulary = list(tokenizer.vocabulary)
    for addition in added:
        vocabulary[addition.token_id] = addition.term
    grown = WordPieceTokenizer(
        vocabulary,
        lower_case=tokenizer.lower_case,
        strip_accents=tokenizer.strip_accents,
        terms=[*tokenizer.terms, *(addition.term for addition in added)],
    )
    return grown, added
