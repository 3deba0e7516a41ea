"""Every kind of task is learnt from a few examples that a small model can tell apart."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import rankdata, spearmanr
from seqeval.scheme import IOB2, Entities
from torch.nn import functional as F

from albert.checkpoints import load_pretrained
from albert.evaluation import retrieval_statistics, score
from albert.finetuning import fine_tune, fine_tune_one
from albert.finetuning.classification import Choice
from albert.finetuning.encoding import Encoded, Encoding
from albert.finetuning.regression import Similarity
from albert.finetuning.span import LONGEST_ANSWER, Span
from albert.finetuning.tagging import Tagging, well_formed
from albert.model import IGNORED, SequenceClassifier, pack
from albert.tasks import ChoiceExample, Example, SpanExample, TaggedExample, entities_of, load_task
from tests.albert.finetuning.examples import (
    FILLER,
    choices,
    numbers,
    prepared,
    settings_of,
    spans,
    table,
    tagged,
)
from tests.conftest import save_small_model


@pytest.mark.parametrize(
    "task, suffix, write, metric, least",
    [
        ("msra_ner", ".tsv", tagged, "entity_f1", 0.9),
        ("cmrc2018", ".json", spans, "exact_match", 0.9),
        ("c3", ".json", choices, "accuracy", 0.9),
        ("stsb", ".tsv", numbers, "pearson", 0.8),
    ],
)
def test_every_kind_is_learnt(task, suffix, write, metric, least, tmp_path, model_folder):
    rng, paths = np.random.default_rng(0), {}
    for name, n in (("train", 120), ("dev", 24), ("test", 24)):
        paths[name] = tmp_path / f"{name}{suffix}"
        paths[name].write_text(write(rng, n), encoding="utf-8")
    options = {"seeds": (0,), "epochs": 10, "batch_size": 12, "learning_rate": 3e-3}
    settings = settings_of(task, paths.pop("train"), model_folder, **paths, **options)
    result = fine_tune(settings)
    (model,) = result.models
    assert model.test[metric].mean > least
    assert result.chance == pytest.approx(1 / 3 if task == "c3" else 0)
    if task == "msra_ner":
        (location,) = model.classes
        assert location.label == "LOC" and location.support == 24
        assert location.f1 == pytest.approx(model.test["entity_f1"].mean)
    elif task == "stsb":  # similarity needs no training
        (model,) = fine_tune(replace(settings, task=load_task("stsb-probe"), train=None, seeds=(0, 1))).models
        assert len(model.seeds) == 1 and model.seeds[0].best_epoch == 0
        assert -1 <= model.test["spearman"].mean <= 1 and 0 < model.test["mrr"].mean <= 1


@pytest.mark.parametrize("values", [1, 2, 9], ids="{} values".format)  # of one all states are alike
def test_retrieval_ranks_each_pairs_own_sentence(values):
    rng = np.random.default_rng(0)
    states = rng.integers(1, values, size=(600, 2, 4), endpoint=True).astype(float)
    states /= np.linalg.norm(states, axis=-1, keepdims=True)
    states[300:, 1] = states[:300, 1]  # a text that occurs twice is one candidate
    is_query = rng.random(600) < 0.9
    found = retrieval_statistics(states.reshape(1200, 4), [str(n % 300) for n in range(600)], is_query)
    likeness = np.round(states[:, 0] @ states[:300, 1].T, 6)
    ranks = rankdata(-likeness, axis=1)[np.arange(600), np.arange(600) % 300]  # ties get their mean rank
    np.testing.assert_allclose(found, np.stack([is_query / ranks, is_query], axis=1))
    assert score("mrr", found.sum(0)) == pytest.approx((1 / ranks[is_query]).mean())


def test_cosines_that_are_equal_up_to_rounding_tie():
    rng = np.random.default_rng(0)
    states = rng.normal(size=(40, 2, 8))
    states[:30, 1] = states[:30, 0]  # the same text twice
    examples = [Example("茶", "水", str(number)) for number in range(40)]
    encoded = Encoded.of([[Encoding(np.array([0]))] * 2] * 40, np.arange(40.0))
    found = Similarity().predict(states.reshape(80, 8), examples, encoded)
    likeness = [1.0] * 30 + [F.cosine_similarity(*map(torch.tensor, pair), dim=0) for pair in states[30:]]
    expected = spearmanr(likeness, encoded.targets).statistic
    assert score("spearman", found.statistics["spearman"].sum(0)) == pytest.approx(expected)


def test_long_sentences_keep_every_tag(tokenizer):
    # a word of three pieces, and a space, which has none
    example = TaggedExample(("采", "abc", "\u3000") * 20, ("B-LOC", "I-LOC", "O") * 20)
    learner = Tagging(("O", "B-LOC", "I-LOC"))
    encoded = learner.encode([example], tokenizer, 16)
    assert len(encoded.offsets) - 1 == 8 and encoded.first.tolist() == [0, 8]
    assert np.diff(encoded.offsets).max() == 16
    # the gold tags come back; an I- without a B- begins an entity, for the metric and in what is written
    gold = np.where(encoded.targets == IGNORED, 0, encoded.targets)
    for said in (gold, np.where(gold == 1, 2, gold)):
        predictions = learner.predict(np.eye(3)[said], [example], encoded)
        assert predictions.tags == (example.tags,) and predictions.right.all()


@given(st.lists(st.sampled_from(["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]), min_size=1, max_size=8))
def test_predicted_tags_are_strict_bio_with_the_entities_that_the_metric_counts(tags):
    written = well_formed(tags)
    (strict,) = Entities([list(written)], IOB2).entities
    assert {(one.tag, one.start, one.end - 1) for one in strict} == entities_of(written) == entities_of(tags)


def encoded_spans(tokenizer, *examples, style="cmrc", has_unanswerable=False, length=128):
    """A learner, the examples as it encodes them, and where the passage begins in a sequence."""
    learner = Span(style, has_unanswerable)
    encoded = learner.encode(examples, tokenizer, length)
    return learner, encoded, int(encoded.segment_b_start[0])


def span_scores(encoded, *given):
    """Scores of (sequence, token of it, 0 for start or 1 for end, value); 0 elsewhere."""
    scores = np.zeros((encoded.offsets[-1], 2))
    for sequence, token, end, value in given:
        scores[encoded.offsets[sequence] + token, end] = value
    return scores


def test_an_answer_ends_after_it_begins_is_not_too_long_and_is_none_where_there_are_only_spaces(tokenizer):
    passage = "采茶要早炒锅热水泡香" * 8
    example = SpanExample("1", passage, "何？", ("茶要早",), (1,))
    learner, encoded, first = encoded_spans(tokenizer, example)
    assert encoded.targets.tolist() == [[first + 1, first + 3]]
    # its first token is the likeliest start; of the ends one is a token too far and one comes before
    start, before, right = (0, first + 1, 0, 9), (0, first, 1, 8), (0, first + 3, 1, 5)
    far = (0, first + 1 + LONGEST_ANSWER, 1, 9)
    found = learner.predict(span_scores(encoded, start, far, before, right), [example], encoded)
    assert found.answers == ("茶要早",) and found.right.all()
    longest = span_scores(encoded, start, (0, first + LONGEST_ANSWER, 1, 9), before, right)
    assert learner.predict(longest, [example], encoded).answers == (passage[1 : 1 + LONGEST_ANSWER],)
    example = SpanExample("1", "\u3000\n", "何处？", (), ())
    learner, encoded, _ = encoded_spans(tokenizer, example)
    assert learner.predict(span_scores(encoded), [example], encoded).answers == ("",)


def test_an_answer_of_any_window_is_weighed_against_none_in_all(tokenizer):
    example = SpanExample("1", "采茶要早。" * 40 + "香山", "何处？", ("没有", "香山"), (-1, 200))
    learner, encoded, _ = encoded_spans(tokenizer, example, style="squad", has_unanswerable=True)
    last = len(encoded.offsets) - 2
    assert last > 0 and encoded.targets[last].any() and not encoded.targets[0].any()
    start, end = encoded.targets[last].tolist()
    said = [(last, start, 0, 3), (last, end, 1, 3)]
    # no answer is sure in the other windows, and unlikely in the one that holds the answer
    others = [(window, 0, 0, 9) for window in range(last)]
    nothing = [*others, (last, 0, 0, 1)]
    assert learner.predict(span_scores(encoded, *said, *nothing), [example], encoded).answers == ("香山",)
    nothing = [*others, (last, 0, 0, 7)]
    scores = span_scores(encoded, *said, *nothing)
    assert learner.predict(scores, [example], encoded).answers == ("",)
    # the loss is the mean over windows, starts and ends, of which none has the others' length
    given = torch.from_numpy(scores)
    windows = zip(given.split(np.diff(encoded.offsets).tolist()), encoded.targets, strict=True)
    losses = [F.cross_entropy(window.T, torch.from_numpy(target)) for window, target in windows]
    loss = learner.loss(given, encoded.choose(np.array([0])), encoded)
    assert loss.item() == pytest.approx(np.mean(losses))
    # a model that has always seen an answer gives one
    always = Span("squad", has_unanswerable=False)
    assert always.predict(scores, [example], encoded).answers == ("香山",)


def test_a_choice_is_among_a_questions_own_answers(tokenizer):
    examples = [
        ChoiceExample("采茶", "何人？", ("香", "水", "锅"), 2),
        ChoiceExample("炒茶", "何物？", ("茶", "山"), 0),
    ]
    encoded = Choice("cls").encode(examples, tokenizer, 32)
    second = encoded.input_ids[encoded.offsets[1] : encoded.offsets[2]]
    passage, asked = (tokenizer.encode(text)[0].tolist() for text in ("采茶", "何人？水"))
    assert second.tolist() == [tokenizer.cls_id, *passage, tokenizer.sep_id, *asked, tokenizer.sep_id]
    chosen = encoded.choose(np.array([1, 0]))
    scores = torch.tensor([[1.0], [2.0], [0.5], [0.1], [0.3]])
    by_hand = [-(1.0 - np.log(np.exp([1.0, 2.0]).sum())), -(0.3 - np.log(np.exp([0.5, 0.1, 0.3]).sum()))]
    assert Choice("cls").loss(scores, chosen, encoded).item() == pytest.approx(np.mean(by_hand), rel=1e-5)
    found = Choice("cls").predict(np.array([[-5.0], [-4.0], [-6.0], [-2.0], [-3.0]]), examples, encoded)
    assert found.answers == ("水", "茶") and found.right.tolist() == [False, True]
    assert found.statistics["accuracy"].sum(0).tolist() == [1, 2]
    e = np.exp(-np.arange(3))
    assert found.probabilities[0].tolist() == pytest.approx((e[[1, 0, 2]] / e.sum()).tolist())
    assert found.probabilities[1].tolist() == pytest.approx([1 / (1 + e[1]), e[1] / (1 + e[1]), 0])
    # equal scores, as a model that diverged gives, are worth chance wherever the right answer stands
    equal = Choice("cls").predict(np.zeros((5, 1)), examples, encoded)
    assert equal.statistics["accuracy"][:, 0].tolist() == [1 / 3, 1 / 2] and not equal.right.any()


def test_encoding_is_cut_to_the_models_positions(tmp_path, tokenizer):
    short = save_small_model(tmp_path / "short", tokenizer, max_position_embeddings=16)
    path = table(tmp_path / "t.tsv", "text label", [(FILLER * 5, 1), ("茶", 0)])
    settings = settings_of("mine", path, short, seeds=(0,), epochs=1, learning_rate=1e-4)
    assert np.diff(prepared(settings).encoded["train"].offsets).max() == 16
    (note, _) = fine_tune(settings).notes
    assert note.startswith("1 of 2 texts of train are longer than 16 tokens and were cut")


def test_likeness_is_of_the_means_of_each_sequences_own_states(tmp_path, tokenizer, model_folder):
    pairs = [("采茶要早", "茶香"), ("炒锅", "热水泡茶要早"), ("香", "山高水热"), ("水泡", "水泡茶")]
    gold = [3, 1, 0, 2]
    rows = [(*pair, score) for pair, score in zip(pairs, gold, strict=True)]
    path = table(tmp_path / "t.tsv", "sentence1 sentence2 score", rows)
    settings = settings_of("stsb-probe", path, model_folder, running={"precision": "fp32"})
    candidate = prepared(replace(settings, train=None, dev=path))
    run = fine_tune_one(candidate, 0, 1e-4, tmp_path / "kept")
    assert not (tmp_path / "kept").exists()  # nothing was trained
    encoder, cosines, sequences = load_pretrained(model_folder)[0].encoder.eval(), [], []
    for pair in pairs:
        texts = [[tokenizer.cls_id, *tokenizer.encode(text)[0].tolist(), tokenizer.sep_id] for text in pair]
        with torch.no_grad():
            means = [encoder(pack([ids])).mean(0) for ids in texts]
        cosines.append(float(F.cosine_similarity(*means, dim=0)))
        sequences += texts
    # the first of a pair is what is searched with
    assert candidate.encoded["dev"].input_ids.tolist() == sum(sequences, [])
    assert [float(answer) for answer in run.dev.answers] == pytest.approx(cosines, abs=6e-4)
    assert run.result.dev["spearman"] == pytest.approx(spearmanr(cosines, gold).statistic)
    # only the pairs most alike are searched for
    assert run.dev.statistics["mrr"][:, 1].tolist() == [1, 0, 0, 0] and run.dev.statistics["mrr"][0, 0] > 0


def test_squad_2_is_scored_at_the_best_threshold_too(tokenizer):
    examples = [
        SpanExample("1", "香山产茶。", "何处？", ("香",), (0,)),
        SpanExample("2", "香山产茶。", "何时？", (), ()),
        SpanExample("3", "香山产茶。", "何物？", ("茶",), (3,)),
    ]
    options = {"style": "squad2", "has_unanswerable": True, "length": 32}
    learner, encoded, first = encoded_spans(tokenizer, *examples, **options)
    # no answer is a little too likely everywhere, and likeliest where there is none; the third span is wrong
    said = [(n, first, end, 1) for n in range(3) for end in (0, 1)]
    nothing = [(n, 0, 0, score) for n, score in enumerate((2.1, 5, 4))]
    found = learner.predict(span_scores(encoded, *said, *nothing), examples, encoded)
    assert found.answers == ("", "", "")
    assert found.statistics["answer_f1"][:, 0].tolist() == [0, 1, 0]
    assert found.statistics["best_f1"][:, 0].tolist() == [1, 1, 0]


@pytest.mark.parametrize("gold", ["model", "modeling 茶", "(茶", "3 . 5", "山)", "茶  香"])
def test_an_answer_is_cut_out_of_the_passage_as_it_stands_there(gold, tokenizer):
    passage = "采 modeling 茶  香，(茶 山)  model 3 . 5 元 "
    example = SpanExample("1", passage, "何？", (gold,), (passage.rfind(gold),))
    learner, encoded, _ = encoded_spans(tokenizer, example, length=64)
    start, end = encoded.targets[0].tolist()
    found = learner.predict(span_scores(encoded, (0, start, 0, 9), (0, end, 1, 9)), [example], encoded)
    assert found.answers == (gold,)


@pytest.mark.parametrize("length", [16, 64, 128, 256])
def test_an_answer_is_whole_in_some_window_wherever_it_stands(length, tokenizer):
    passage = "采茶要早炒锅热水泡香" * 30
    learner, size = Span("cmrc", has_unanswerable=False), length // 3
    begins = range(0, 300 - size, 7)
    examples = [SpanExample(str(at), passage, "何？", (passage[at : at + size],), (at,)) for at in begins]
    encoded = learner.encode(examples, tokenizer, length)
    assert np.diff(encoded.offsets).max() == length
    for number, at in enumerate(begins):
        windows = range(encoded.first[number], encoded.first[number + 1])
        found = [encoded.offsets[w] + encoded.targets[w] for w in windows if encoded.targets[w].any()]
        places = {(encoded.characters[start, 0], encoded.characters[end, 1]) for start, end in found}
        assert places == {(at, at + size)}


@pytest.mark.parametrize("pooling", ["cls", "mean", "cls+mean"])
def test_a_text_is_read_from_its_own_states_in_fp32(pooling, model_folder, tokenizer):
    encoder = load_pretrained(model_folder)[0].encoder.eval()
    model = SequenceClassifier(encoder, 3, pooling).eval()
    texts = (tokenizer.encode(text)[0] for text in ("采茶", "炒锅热水"))
    batch = pack([[tokenizer.cls_id, *text, tokenizer.sep_id] for text in texts])
    for enabled in (False, True):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            hidden, scores = encoder(batch).float(), model(batch)
        vectors = {
            "cls": encoder.pooler(hidden[batch.cu_seqlens[:-1]]).tanh(),
            "mean": torch.stack([part.mean(0) for part in hidden.split(batch.cu_seqlens.diff().tolist())]),
        }
        pooled = torch.cat([vectors[part] for part in pooling.split("+")], dim=-1)
        # with the last layer on the first tokens alone, bf16 sums in another order
        torch.testing.assert_close(scores, model.classifier(pooled), atol=1e-3 if enabled else 1e-6, rtol=0)
        assert (scores != scores.bfloat16()).any()
