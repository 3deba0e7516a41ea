"""Baselines on a task's own lines: simple methods, and the model from random weights.

Texts are compared by their characters, alone and in pairs: TF-IDF with logistic regression (Wang and Manning
2012 found it hard to beat on short texts), Jaccard's coefficient, and overlap as in the sliding window of
Richardson et al. (2013).
"""

from __future__ import annotations

import re
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
from scipy.sparse import csr_array, csr_matrix, hstack
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.multiclass import OneVsRestClassifier

from albert.finetuning.training import UNTRAINED, Candidate, SeedRun, scored_run
from albert.model import IGNORED
from albert.tasks import Kind, SpanExample

RANDOM_WEIGHTS = "random weights"
_STRENGTHS = (1, 10, 100)  # inverse regularization to choose from on dev
_COSINE = "cosine of character TF-IDF"
_RUN = re.compile(r"\w+")
_SENTENCE = re.compile(r"[^。！？!?\n]+")

Features = Callable[[str], csr_matrix]  # of a split
Score = Callable[[str], np.ndarray]  # a split's scores, as the task's learner reads those of a model
Rules = Iterator[tuple[str, Score]]  # by name


def rule_runs(candidate: Candidate) -> list[tuple[Candidate, SeedRun]]:
    """Predict with each rule for the task's kind; each candidate has the rule's name."""
    runs, began = [], time.perf_counter()
    for name, score in _RULES[candidate.data.task.kind or Kind.SINGLE](candidate):
        runs.append((replace(candidate, name=name), scored_run(candidate, UNTRAINED, score, began)))
        began = time.perf_counter()
    return runs


def with_random_weights(candidate: Candidate) -> Candidate:
    """Keep architecture, tokenizer and examples, but draw the weights from each seed."""
    return replace(candidate, name=RANDOM_WEIGHTS, checksum=RANDOM_WEIGHTS, is_pretrained=False)


def _labels(candidate: Candidate) -> Rules:
    """TF-IDF with logistic regression, and for pairs a threshold on Jaccard's coefficient."""
    methods: dict[str, Features] = {"character TF-IDF, logistic regression": _features(candidate)}
    if _are_pairs(candidate):
        methods["threshold on common characters"] = partial(_jaccard, candidate)
    for name, features in methods.items():
        classifiers = (LogisticRegression(C=strength, max_iter=1000) for strength in _STRENGTHS)
        yield name, _best(candidate, (_fitted(one, candidate, features) for one in classifiers))


def _numbers(candidate: Candidate) -> Rules:
    """TF-IDF with ridge regression, and for pairs the cosine of their vectors."""
    features, gold = _features(candidate), candidate.encoded["train"].targets
    in_deviations = (gold - gold.mean()) / (gold.std() or 1)  # as a model's scores are

    def fitted(strength: float) -> Score:
        ridge = Ridge(alpha=1 / strength).fit(features("train"), in_deviations)
        return lambda split: ridge.predict(features(split))[:, None]

    yield "character TF-IDF, ridge regression", _best(candidate, map(fitted, _STRENGTHS))
    if _are_pairs(candidate):
        width = features("train").shape[1] // 4
        yield _COSINE, lambda split: np.asarray(features(split)[:, 2 * width : 3 * width].sum(1))


def _similarities(candidate: Candidate) -> Rules:
    """TF-IDF vectors, which the learner compares itself; without training texts, of those of dev."""
    vectorizer = _vectorizer(_texts(candidate, next(iter(candidate.data.splits))))
    yield _COSINE, lambda split: csr_array(vectorizer.transform(_texts(candidate, split)))


def _best(candidate: Candidate, scores: Iterable[Score]) -> Score:
    """The scores that are best on dev, the first of equal ones."""
    metric = candidate.data.task.metrics[0]
    return max(scores, key=lambda one: candidate.scores(candidate.read(one("dev"), "dev"))[metric])


def _features(candidate: Candidate) -> Features:
    """TF-IDF of a text; of a pair, that of both, their product and their difference."""
    vectorizer = _vectorizer(_texts(candidate, "train"))

    @cache
    def features(split: str) -> csr_matrix:
        texts = zip(*(one.texts() for one in _examples(candidate, split)), strict=True)
        parts = [vectorizer.transform(one) for one in texts]
        if len(parts) == 2:
            parts += [parts[0].multiply(parts[1]), abs(parts[0] - parts[1])]
        return hstack(parts, format="csr")

    return features


def _fitted(classifier: LogisticRegression, candidate: Candidate, features: Features) -> Score:
    """Log probabilities [n, C] from the features of a split; of several labels, each fitted against the rest,
    the logits.
    """
    several = candidate.data.task.kind is Kind.MULTILABEL
    fitted = OneVsRestClassifier(classifier) if several else classifier
    with warnings.catch_warnings(action="ignore"):  # of a label that all texts have, or none
        fitted.fit(features("train"), candidate.encoded["train"].targets)

    def score(split: str) -> np.ndarray:
        found = features(split)
        shares = np.zeros((found.shape[0], len(candidate.data.labels)))
        shares[:, fitted.classes_] = fitted.predict_proba(found)
        shares = np.clip(shares, 1e-12, 1 - 1e-12)
        return np.log(shares / (1 - shares)) if several else np.log(shares)

    return score


def _vectorizer(texts: Sequence[str]) -> TfidfVectorizer:
    return TfidfVectorizer(analyzer="char", ngram_range=(1, 2), sublinear_tf=True).fit(texts)


def _jaccard(candidate: Candidate, split: str) -> csr_matrix:
    """Return Jaccard's coefficient of the letters of two texts, [n, 1]."""
    pairs = (one.texts() for one in _examples(candidate, split))
    sets = ([set(filter(str.isalnum, text)) for text in pair] for pair in pairs)
    return csr_matrix([[len(a & b) / max(len(a | b), 1)] for a, b in sets])


def _choices(candidate: Candidate) -> Rules:
    """Choose the answer with the largest share of pairs of characters from passage and question."""

    def score(split: str) -> np.ndarray:
        examples = _examples(candidate, split)
        return np.array([[_overlap(c, one.passage + one.question)] for one in examples for c in one.choices])

    yield "answer most like the passage", score


def _spans(candidate: Candidate) -> Rules:
    """Answer with the longest run of letters that the question lacks, in the sentence most like it."""

    def score(split: str) -> np.ndarray:
        encoded = candidate.encoded[split]
        assert encoded.characters is not None
        scores = np.zeros((len(encoded.input_ids), 2))
        for number, one in enumerate(_examples(candidate, split)):
            begin, end = _answer(one)
            first, last = encoded.offsets[encoded.first[number : number + 2]]
            starts, ends = encoded.characters[first:last].T
            inside = (starts >= begin) & (ends <= end)
            scores[first:last, 0] = inside & (starts == begin)
            scores[first:last, 1] = inside & (ends == end)
        return scores

    yield "rest of the sentence most like the question", score


def _answer(example: SpanExample) -> tuple[int, int]:
    """Return where the answer begins and ends."""
    sentences = [*_SENTENCE.finditer(example.passage)] or [*re.finditer("^", example.passage)]
    best = max(sentences, key=lambda one: _overlap(example.question, one.group()))
    question, text = _bigrams(example.question), best.group()
    rest = "".join(
        " " if text[at : at + 2] in question or text[max(at - 1, 0) : at + 1] in question else letter
        for at, letter in enumerate(text)
    )
    runs = list(_RUN.finditer(rest)) or list(_RUN.finditer(text))
    if not runs:
        return best.span()
    longest = max(runs, key=lambda run: len(run.group()))
    return best.start() + longest.start(), best.start() + longest.end()


def _overlap(text: str, other: str) -> float:
    """The share of the pairs of characters of a text that stand in another."""
    return len(_bigrams(text) & _bigrams(other)) / max(len(_bigrams(text)), 1)


def _bigrams(text: str) -> set[str]:
    return {text[at : at + 2] for at in range(len(text) - 1)}


def _tags(candidate: Candidate) -> Rules:
    """Predict the tag that a token has most often in training between the same neighbours, else after the
    same one, else anywhere; O for a new token.
    """
    counts: defaultdict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    for one in _examples(candidate, "train"):
        for contexts, tag in zip(_contexts(one.tokens), one.tags, strict=True):
            for context in contexts:
                counts[context][tag] += 1

    def tag_of(contexts: Sequence[tuple[str, ...]]) -> int:
        tags = next((counts[context] for context in contexts if context in counts), Counter(["O"]))
        return candidate.data.labels.index(tags.most_common(1)[0][0])

    def score(split: str) -> np.ndarray:
        examples = _examples(candidate, split)
        tags = [tag_of(contexts) for one in examples for contexts in _contexts(one.tokens)]
        targets = candidate.encoded[split].targets
        scores = np.zeros((len(targets), len(candidate.data.labels)))
        scores[np.flatnonzero(targets != IGNORED), tags] = 1
        return scores

    yield "most frequent tag in context", score


def _contexts(tokens: Sequence[str]) -> list[tuple[tuple[str, ...], ...]]:
    """Return the contexts to look each token up by, the narrowest first."""
    around = ["", *tokens, ""]
    return [((a, b, c), (a, b), (b,)) for a, b, c in zip(around, tokens, around[2:], strict=False)]


def _are_pairs(candidate: Candidate) -> bool:
    return _examples(candidate, "train")[0].pair is not None


def _texts(candidate: Candidate, split: str) -> list[str]:
    return [text for one in _examples(candidate, split) for text in one.texts()]


def _examples(candidate: Candidate, split: str) -> Sequence[Any]:
    return candidate.data.splits[split].examples


_RULES: dict[Kind, Callable[[Candidate], Rules]] = {
    Kind.SINGLE: _labels,
    Kind.PAIR: _labels,
    Kind.MULTILABEL: _labels,
    Kind.CHOICE: _choices,
    Kind.SPAN: _spans,
    Kind.TOKENS: _tags,
    Kind.REGRESSION: _numbers,
    Kind.SIMILARITY: _similarities,
}
