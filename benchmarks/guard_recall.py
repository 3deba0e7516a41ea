"""How many planted evaluation texts the guard finds, by their length and by what was changed in them.

Each text is put between two sentences of other text. The second table is what other documents a share of a
text's n-grams leaves, and what it finds of texts of 25 letters or more. Run:
python -m benchmarks.guard_recall [TEXT_FILE] [OTHER_FILE]
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import opencc

from benchmarks.support.corpora import SAMPLES
from benchmarks.support.results import command, markdown, write_result
from data.cleaning import CleaningRules, clean_text, count_hits, make_guard, split_sentences
from data.sources import read_documents, read_text_rows

BOUNDS = ((6, 7), (8, 12), (13, 24), (25, 10**6))
MOST = 3000  # texts of a length
SHARES = (0, 0.1, 0.25, 0.5, 0.75, 1)


def letters(text: str) -> int:
    return sum(map(str.isalnum, text))


def changes(rng: random.Random) -> dict[str, Callable[[str], str]]:
    """What may have happened to a text, by name."""
    traditional, wide = opencc.OpenCC("s2t"), {code: code + 0xFEE0 for code in range(33, 127)}

    def changed(text: str) -> str:
        at = rng.choice([n for n, mark in enumerate(text) if mark.isalnum()])
        return text[:at] + rng.choice("茶山水火土木金石") + text[at + 1 :]

    def cut(text: str) -> str:
        at = rng.randrange(len(text))
        return text[:at] + text[at + 1 :]

    return {
        "as it is": str,
        "inside a sentence": lambda text: f"请问{text}啊",
        "traditional": traditional.convert,
        "wide, other marks": lambda text: text.upper().translate(wide)[:3] + "、" + text[3:],
        "a character changed": changed,
        "a character left out": cut,
    }


def shares(texts: list[str], others: list[str], guard_file: Path) -> Iterator[tuple[str, str, int, float]]:
    rng = random.Random(0)
    guard = make_guard((str(guard_file),), 13, CleaningRules())
    for low, high in BOUNDS:
        few = [text for text in texts if low <= letters(text) <= high][:MOST]
        for name, change in changes(rng).items():
            planted = [[rng.choice(others), f"{change(text)}。", rng.choice(others)] for text in few]
            found = (count_hits(guard, planted) > 0).mean() if few else 0.0
            yield f"{low} to {high}" if high < 10**6 else f"{low} or more", name, len(few), float(found)


def by_share(texts: list[str], documents: list[list[str]], guard_file: Path) -> Iterator[list[str]]:
    """The rows of a table: the share, the documents left, and which texts are found by what was changed."""
    rng, long = random.Random(0), [text for text in texts if letters(text) >= 25][:MOST]
    others = [sentence for document in documents for sentence in document]

    def changed(text: str, every: int) -> str:
        return "".join("茶" if at % every == every // 2 else mark for at, mark in enumerate(text))

    planted = {
        "unchanged": long,
        "one character in 50 changed": [changed(text, 50) for text in long],
        "one in 25": [changed(text, 25) for text in long],
        "its first half alone": [text[: len(text) // 2] for text in long],
    }
    yield ["share", "documents left", *planted]
    for share in SHARES:
        guard = make_guard((str(guard_file),), 13, CleaningRules(), share)
        left = sum(int((count_hits(guard, [document]) == 0)[0]) for document in documents)
        # beside one other sentence, which may hold set phrases as well
        beside = [rng.choice(others) for _ in long]
        found = [
            sum(count_hits(guard, [[other, text] for other, text in zip(beside, of, strict=True)]) > 0)
            for of in planted.values()
        ]
        shares_found = (f"{n / max(1, len(long)):.1%}" for n in found)
        yield [f"{share}", f"{left:,} of {len(documents):,}", *shares_found]


def main(
    text_file: Path = SAMPLES / "tea_topics_test.tsv", other_file: Path = SAMPLES / "general.txt"
) -> None:
    texts = sorted({text for row in read_text_rows(str(text_file)) for text in row if "\t" not in text})
    documents = [split_sentences(clean_text(getattr(d, "text", ""))) for d in read_documents(str(other_file))]
    others = [sentence for document in documents for sentence in document][:20_000]
    guard = make_guard((str(text_file),), 13, CleaningRules())
    clean = [sentence for sentence in others if not count_hits(guard, [[sentence]])[0]]
    rows = list(shares(texts, clean, text_file))
    false = 1 - len(clean) / len(others)
    of_length = [list(group) for _, group in groupby(rows, key=itemgetter(0))]
    table = markdown(
        ["letters", "texts", *(name for _, name, _, _ in of_length[0])],
        [
            [group[0][0], f"{group[0][2]:,}", *(f"{100 * found:.1f}%" for *_, found in group)]
            for group in of_length
        ],
    )
    titles, *of_shares = by_share(texts, documents, text_file)
    held = f"Of other sentences {100 * false:.2f}% hold such a text."
    result = {"texts": text_file.name, "others": other_file.name, "sentences_dropped": false}
    tables = f"{table}\n\n{held}\n\n{markdown(titles, of_shares)}"
    write_result("guard_recall", tables, {**result, "rows": rows, "shares": of_shares})


if __name__ == "__main__":
    command(main)
