"""Each filter with the smallest text that trips it, and the measures against their definitions."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.cleaning import (
    CleaningRules,
    QualityRules,
    clean_text,
    drop_reasons,
    measure,
    read_blocklist,
    split_sentences,
)
from data.errors import InputError
from tests.conftest import sample_texts
from tests.data.helpers import random_text


def reason(text, **rules):
    return drop_reasons([text], measure([split_sentences(text)]), QualityRules(**rules))[0]


PAGE = "".join(f"第{i}种茶要用不同的水温来泡，泡的时间也不一样。" for i in range(10))
PAGE += "关注我的公众号「茶话」。"
HALF_REPEATED = "今天喝茶。" * 6 + "".join(f"第{i}种茶。" for i in range(4))
UNENDED = "\n".join(f"第{i}种茶的名字" for i in range(12))


@pytest.mark.parametrize(
    "text, expected, rules",
    [
        *((text, None, {}) for text in (*sample_texts()[:20], random_text(1000))),
        ("", "empty", {}),
        ("茶很好。。。", "too_short", {}),
        ("Tea is a drink 茶。", "too_little_chinese", {}),
        ("東京都は日本の首都であり、世界最大級の都市である。", "too_little_chinese", {}),
        # a number counts as one character
        ("电话13800000000，证件11010519491231002X。", None, {}),
        ("电话a3b0c0d0e0f，证件1a0b0c1d4e1f3g0h2X。", "too_little_chinese", {}),
        (HALF_REPEATED, None, {}),
        (f"{HALF_REPEATED}今天喝茶。", "repeated_sentences", {}),
        ("今天喝茶。" * 3, "repeated_sentences", {}),
        (random_text(100) * 10, "repeated_ngrams", {}),
        ("啊" * 1000, "repeated_ngrams", {}),
        ("不错，还可以，" * 8, "repeated_ngrams", {}),
        ("好" * 12, "repeated_ngrams", {}),  # the least that can pass 0.6: two of three sequences
        (PAGE, None, {}),  # a call at the end of a page
        (PAGE, "advertising", {"max_advertising": 0.1}),
        (UNENDED, None, {}),
        (UNENDED, "unended_lines", {"max_unended_lines": 0.9}),
        (UNENDED.replace("名字", "。”"), None, {"max_unended_lines": 0.1}),
        (UNENDED.replace("名字", "："), None, {"max_unended_lines": 0.1}),
        (UNENDED[:50], None, {"max_unended_lines": 0.9}),
    ],
)
def test_good_text_stays_and_useless_text_is_dropped_with_its_reason(text, expected, rules):
    assert reason(text, **rules) == expected


CALLS = """
联系微信abcde 咨询公众号：tea-01 预约QQ群12345 转让qq号12345 卖〔电话〕 卖茶4008001234 联系010-62771234
有意的联系13800138000 关注本店微信 加我个人微信 加入公众号 扫码看公众号 知识星球 扫码关注 扫码加好友 扫码进群
扫码领取 扫码咨询 扫码购买 扫码报名 欢迎致电 立即来电 立即抢购 欢迎购买 立即报名 欢迎领取 立即咨询
"""
NO_CALLS = "外卖13800138000 联系113800138000 联系138001380001 扫码。购买 关注。微信"


@pytest.mark.parametrize("words", [*CALLS.split(), *NO_CALLS.split()])
def test_a_call_to_get_in_touch_or_to_buy_is_advertising(words):
    assert reason(f"今年的新茶已经上市，{words}。") == ("advertising" if words in CALLS else None)


def test_blocked_words_are_a_reason_and_found_as_cleaning_writes_them(write):
    path = write("words.txt", "点击领取\n加微信\n")
    text = "好茶。加微信，点击领取。点击领取。"
    assert reason(text, blocklist=str(path)) == "blocked_words"
    assert reason(text, blocklist=str(path), max_blocked=3) is None
    write("words.txt", "加微信\n")  # between two jobs of a process
    assert reason(text, blocklist=str(path), max_blocked=1) is None
    with pytest.raises(InputError, match="holds no word"):
        read_blocklist(write("empty.txt", "\n"))
    path = write("words.txt", "ＶＸ号\n賭博\n")
    cleaning = CleaningRules(simplify=True)
    text = clean_text("好茶。加ＶＸ号，不要賭博。", cleaning)
    measures = measure([split_sentences(text)])
    rules = QualityRules(blocklist=path, max_blocked=1)
    assert drop_reasons([text], measures, rules, (), cleaning) == ["blocked_words"]
    assert drop_reasons([text], measures, rules) == [None]


documents = st.lists(
    st.lists(st.text(alphabet="茶水好の 。aB12，\U00020bb7", min_size=1, max_size=12), max_size=6), max_size=5
)


@given(documents)
def test_measures_follow_their_definitions(documents):
    measures = measure(documents)
    for number, sentences in enumerate(documents):
        text = "".join(sentences)
        # a number counts as one character; it ends with its sentence
        shown = "".join(re.sub(r"\d+", "0", sentence) for sentence in sentences)
        seen = [c for c in shown if not c.isspace()]
        han = [c for c in seen if "\u4e00" <= c <= "\u9fff" or c == "\U00020bb7"]
        assert measures.characters[number] == len(text)
        chinese = max(len(han) - seen.count("の"), 0)
        assert measures.han_share[number] == pytest.approx(chinese / max(len(seen), 1))
        assert measures.letters_and_digits[number] == sum(map(str.isalnum, text))
        repeated = 1 - sum(map(len, set(sentences))) / max(len(text), 1) if text else 0
        assert measures.repeated_sentences[number] == pytest.approx(repeated)
        letters = "".join(c for c in text.lower() if c.isalnum())
        for n in (1, 3, 13):
            hashes, first = measures.letters.ngrams(n)
            own = hashes[first[number] : first[number + 1]]
            grams = [letters[i : i + n] for i in range(max(len(letters) - n + 1, min(len(letters), 1)))]
            assert len(own) == len(grams)
            assert len(set(own.tolist())) == len(set(grams))
