import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.cleaning import split_sentences
from tests.conftest import sample_texts


@pytest.mark.parametrize(
    "line, sentences",
    [
        ("他问：“去吗？”我说：“去！”", ["他问：“去吗？”", "我说：“去！”"]),
        ("（第一步。）第二步……完了。", ["（第一步。）", "第二步……", "完了。"]),
        ("版本3.14不断开。It works. 好的", ["版本3.14不断开。", "It works.", "好的"]),
        ("没有标点", ["没有标点"]),
        ("！？", ["！？"]),
    ],
)
def test_enders_and_closing_marks_stay_with_their_sentence(line, sentences):
    assert split_sentences(line) == sentences


@given(st.sampled_from(sample_texts()))
def test_sentences_join_to_the_text(text):
    assert "".join(split_sentences(text)) == text.replace("\n", "")


@given(st.text(alphabet="好。！”）a. \n", max_size=40))
def test_no_visible_character_is_lost(text):
    assert "".join("".join(split_sentences(text)).split()) == "".join(text.split())
