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
        ("J. Smith met F. 3. 好", ["J. Smith met F. 3. 好"]),
        ("没有标点", ["没有标点"]),
        ("12．结论", ["12．结论"]),
        ("红茶；绿茶;白茶!黑茶?完", ["红茶；", "绿茶;", "白茶!", "黑茶?", "完"]),
        *((f"「喝茶。{close}后来", [f"「喝茶。{close}", "后来"]) for close in "’」』》】〕〉\"')]}"),
        ("“好！”，他说。啊！！！”？后来", ["“好！”，他说。", "啊！！！”？", "后来"]),
        ("设x＝3．14．又因A＝B．证毕", ["设x＝3．14．", "又因A＝B．", "证毕"]),
        ("1．绪论 A．对 12．结论\n12．跋．，完", ["1．绪论 A．对 12．结论", "12．跋．，完"]),
        ("???\n， 其中。：三", ["其中。：三"]),
    ],
)
def test_a_sentence_keeps_its_enders_and_begins_with_no_comma(line, sentences):
    assert split_sentences(line) == sentences


@given(st.sampled_from(sample_texts()))
def test_sentences_join_to_the_text(text):
    assert "".join(split_sentences(text)) == text.replace("\n", "")


@given(st.text(alphabet="好。！”）a1．，. \n", max_size=40))
def test_no_word_is_lost_and_every_sentence_has_one(text):
    sentences = split_sentences(text)
    assert [c for c in "".join(sentences) if c.isalnum()] == [c for c in text if c.isalnum()]
    assert all(any(map(str.isalnum, sentence)) and sentence[0] not in "，、：," for sentence in sentences)
