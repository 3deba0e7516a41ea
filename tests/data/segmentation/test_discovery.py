import json
import random
import re
from collections import Counter

import jieba
import numpy as np
import pytest

from data.catalog import open_workspace
from data.segmentation import Segmenter, discover_words, write_dictionary
from flows.__main__ import main
from tests.conftest import sample_texts
from tests.data.helpers import SEGMENTER

HAN = "[\u4e00-\u9fff]"
TERM = "鱘鱭鱮"  # three characters that meet nowhere else


def corpus(count=60, seed=0):
    """Sample sentences with a made-up word put between words of some."""
    rng = random.Random(seed)
    texts = []
    for text in sample_texts():
        words = jieba.lcut(text)
        for _ in range(count // len(sample_texts()) + 1):
            words.insert(rng.randrange(len(words)), TERM)
        texts.append("".join(words))
    return texts


def test_all_parts_of_a_large_corpus_are_sampled(monkeypatch, caplog):
    texts = [*sample_texts() * 6, *corpus(800)]
    characters = sum(map(len, texts))
    monkeypatch.setattr("data.segmentation.discovery.MAX_CHARACTERS", characters // 3)
    found = {word.word: word.count for word in discover_words(texts, min_count=10)}
    assert found[TERM] == sum(text.count(TERM) for text in texts[::4])
    assert f"one text of 4, {sum(map(len, texts[::4])):,} of {characters:,} characters" in caplog.text
    caplog.clear()
    monkeypatch.setattr("data.segmentation.discovery.MAX_CHARACTERS", characters)
    discover_words(texts, min_count=10)
    assert not caplog.text
    monkeypatch.setattr("data.segmentation.discovery.MAX_CHARACTERS", 1)
    assert discover_words([TERM]) == []  # the last text is read whole


def test_new_words_are_found_by_measures_that_follow_their_definitions_and_no_phrases():
    parts = "\n".join(corpus()).split(TERM)
    # a piece that stands alone in a third of the places is no word of its own
    text = "".join(part + (TERM if number % 4 else TERM[:2]) for number, part in enumerate(parts))
    total = len(places_of(HAN, text))
    found = discover_words([text], min_count=10)
    assert discover_words([text], min_count=10, limit=3) == found[:3] and len(found) > 3
    words = {word.word: word for word in found}
    assert words[TERM].cohesion > 3 and not any(word != TERM and word in TERM for word in words)
    assert {len(word) for word in words} >= {2, 3}
    assert all(len(SEGMENTER.split(word)) > 1 for word in words)  # jieba knows none of them
    assert not {"就会", "并不", "个月"} & set(words)
    assert found == sorted(found, key=lambda word: -word.score)
    for word in found[:20]:
        freedom = min(word.left_entropy, word.right_entropy)
        assert word.cohesion >= 3 and freedom >= 1.2
        assert word.score == pytest.approx(word.cohesion * freedom * np.log2(word.count))
        assert word.word in word.example and "\n" not in word.example  # it is a field of a table
        halves = [(word.word[:at], word.word[at:]) for at in range(1, len(word.word))]
        at = places_of(word.word, text)
        assert word.count == len(at)
        most = max(len(places_of(one, text)) * len(places_of(other, text)) for one, other in halves)
        assert word.cohesion == pytest.approx(np.log2(word.count * total / most))
        for entropy, offset in ((word.left_entropy, -1), (word.right_entropy, len(word.word))):
            sides = (text[n + offset : n + offset + 1] for n in at)
            kinds = Counter(side if re.fullmatch(HAN, side) else n for n, side in enumerate(sides))
            # each boundary is a neighbour of its own
            shares = np.array([*kinds.values()]) / word.count
            assert entropy == pytest.approx(-(shares * np.log2(shares)).sum())
    texts = corpus()
    for phrase in ("很好喝", "价格很公道", "冲泡和贮藏", "养生的妙方"):
        texts = [text.replace(TERM, f"{TERM}，{phrase}，") for text in texts]
        found = {word.word for word in discover_words(texts, min_count=10)}
        assert TERM in found and phrase not in found


def places_of(part, text):
    return [match.start() for match in re.finditer(f"(?={part})", text)]


def test_words_are_found_in_a_corpus_that_has_not_changed_and_the_next_refresh_uses_them(tea):
    tea.put("raw", *corpus(400))
    assert tea.refresh().version == 1
    again = tea.refresh(discover_words=50)
    assert again.version == 1 and not again.is_new and TERM in [word.word for word in again.new_words]
    dictionary = tea.root / "lexicons/tea/version-1.txt"
    assert TERM in dictionary.read_text(encoding="utf-8").split()
    assert TERM in dictionary.with_suffix(".tsv").read_text(encoding="utf-8")

    def count():
        with open_workspace(tea.root) as statistics:
            return dict(statistics.words("tea", 100_000).fetchall()).get(TERM, 0)

    before = count()
    known = tea.refresh(dictionary=(str(dictionary),), discover_words=50)
    assert known.version == 2 and count() > before and TERM not in [word.word for word in known.new_words]


def test_the_command_writes_a_dictionary_and_no_words_make_an_empty_one(tmp_path, write, capsys):
    source = write("raw.txt", "\n\n".join(corpus(400)))
    output = tmp_path / "words.txt"
    assert main(["corpus", "words", "--source", str(source), "--output", str(output)]) == 0
    assert TERM in output.read_text(encoding="utf-8") and TERM in capsys.readouterr().out
    unread = write("rows.jsonl", '{"题": "茶"}')
    assert main(["corpus", "words", "--source", str(unread), "--output", str(output)]) == 0
    assert capsys.readouterr().out.startswith("left out 1 document(s): 1 no_text_field\n0 words in")
    unread.write_text("\n".join(json.dumps({"题": text}) for text in corpus(400)), encoding="utf-8")
    named = ["--source", str(unread), "--reading.text-field", "题", "--output", str(output)]
    assert main(["corpus", "words", *named]) == 0 and TERM in output.read_text(encoding="utf-8")
    assert main(["corpus", "words", "--output", str(output)]) == 2 and "either" in capsys.readouterr().err
    for no_text in (output.with_suffix(".tsv"), tmp_path):
        assert main(["corpus", "words", "--source", str(source), "--output", str(no_text)]) == 2
        assert "name a .txt file" in capsys.readouterr().err
    # before the words are sought
    for command in (["corpus", "words", "--source"], ["predict", "--model", "gone", "--input"]):
        assert main([*command, str(source), "--output", str(source / "words.txt")]) == 2
        assert "words.txt cannot be written (Not a directory): name another file" in capsys.readouterr().err
    assert main([*command, str(source), "--output", str(tmp_path / "new" / "words.txt")]) == 2
    assert "gone" in capsys.readouterr().err and not (tmp_path / "new").exists()
    assert discover_words([""]) == discover_words(["茶"]) == []
    for name in ("words.txt", "words.tsv"):
        write_dictionary([], tmp_path / name)
        assert Segmenter([tmp_path / name]).split("茶水") == ["茶水"]
