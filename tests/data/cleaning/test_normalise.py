import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.cleaning import CleaningRules, clean_text
from data.cleaning.privacy import PLACEHOLDERS
from tests.conftest import sample_sentences

# what real pages put between and around sentences
MARKUP = (
    "<br/> <b> </b> &nbsp; &amp; &lt;p&gt; https://a.cn/x?y=1 ![图](a.png) [链接](b.html) ＡＢ１２ < > & ﹗"
)
NOISE = MARKUP.split()
NOISE += ["\n```\n", "\u200b", "\ufeff", " ", "　", "\r\n", "\n\n", "\t", "\x00", "\u202e", "\u3164\u0301"]
pieces = st.sampled_from(sample_sentences()[:300]) | st.sampled_from(NOISE)
noisy_text = st.lists(pieces, max_size=12).map("".join)
any_text = st.text(max_size=60) | st.text(alphabet="<>&;#x41apbr/ 。，\u0301\u200b\n![]()：ａ", max_size=40)
OPTIONS = CleaningRules(simplify=True, max_repeats=2, scrub=tuple(PLACEHOLDERS))


@settings(max_examples=200)
@given(noisy_text | any_text, st.sampled_from([CleaningRules(), OPTIONS]))
def test_cleaning_is_idempotent(text, rules):
    assert clean_text(clean_text(text, rules), rules) == clean_text(text, rules)


@given(st.sampled_from(sample_sentences()))
def test_a_clean_sentence_stays_as_it_is(sentence):
    assert clean_text(sentence) == sentence


@pytest.mark.parametrize(
    "raw, clean, rules",
    [
        ("他说：“好，走吧！”；（笑）", "他说：“好，走吧！”；（笑）", {}),
        ("ＡＬＢＥＲＴ　模型，１２３", "ALBERT 模型，123", {}),
        ("①甲㉑乙㊱，2½杯，３×10⁻⁹/L，a²b，90㎡，H₂Ｏ", "①甲㉑乙㊱，2½杯，3×10⁻⁹/L，a²b，90㎡，H2O", {}),
        ("零\u200b宽\u200d字\ufeff符\u2060\u202a\ufe0f\U000e0001\ue000\x7f\x9f\xad", "零宽字符", {}),
        ("<!DOCTYPE html><style>a</style>你好<script>a=1;</script><p>世界&#33;</p>", "你好\n世界!", {}),
        ("见https://a.cn/b?c=d，谢谢", "见，谢谢", {}),
        *((f"见{www}.a.cn，谢谢", "见，谢谢", {}) for www in ("www", "WWW")),
        (
            "见https://a.cn/b_(c), 又(http://d.cn)[见](http://x.y/z)（ftp://e.cn/f ）(www.g.cn. 下同)",
            "见, 又见(. 下同)",
            {},
        ),
        # a pattern that tried every way to divide the address would not end
        (f"见（https://www.example.com/{'path/' * 20}index.html 的说明）", "见（ 的说明）", {}),
        ("参看[文档](z_(a).html)与![图](a(1).png)图", "参看文档与图", {}),
        ("a < b 且 List<String> 还在", "a < b 且 List<String> 还在", {}),
        ("若 a<b，c>d，则 A<B 与 C>D，取 x<q, y>0。", "若 a<b，c>d，则 A<B 与 C>D，取 x<q, y>0。", {}),
        ("<div>甲<li>乙<tr>丙<h1>丁<title>戊<section>己<table>庚<ul>辛", "\n".join("甲乙丙丁戊己庚辛"), {}),
        ("<option selected>甲</option ><BR/><a\n href='x' title=乙>丙</a>", "甲\n丙", {}),
        ("见 https://a.cn/x?id=1&timestamp=1699&region=cn&amp;copy=2 的说明。", "见 的说明。", {}),
        (
            "在HTML里，&lt;script&gt;元素用来写脚本。写完用&lt;/script&gt;结束。&lt;!--注释。--&gt;",
            "在HTML里，元素用来写脚本。写完用结束。注释。",
            {},
        ),
        ("甲&lt;script&gt;var a=1;&lt;/script&gt;<!-- 隐藏。 -->乙", "甲\n乙", {}),
        ("一 \r\n 二\r三\u2028四\n\n\n五", "一\n二\n三\n四\n五", {}),
        ("　　首行缩进\t　两格", "首行缩进 两格", {}),
        ("前文。\n ```py\nx = 1\n ```` \n后文。", "前文。\n后文。", {}),
        ("前面。" + "a" * 200_000 + "后面。", "前面。后面。", {}),
        ("前" + "a" * 100 + "后" + "a" * 101, "前" + "a" * 100 + "后", {}),
        ("今天真开心😀👍🏽。", "今天真开心😀👍🏽。", {}),
        ("圖書館", "圖書館", {}),
        ("太好了！！！！！！10000000元……——————", "太好了！！！10000000元……———", {}),
        ("圖書館在二樓，乾隆年間的乾淨書。", "图书馆在二楼，乾隆年间的干净书。", {"simplify": True}),
        ("！！！！", "！！！！", {"max_repeats": 0}),
        ("！！", "！", {"max_repeats": 1}),
        ("ＡＢＣ", "ＡＢＣ", {"fold_width": False}),
    ],
)
def test_cleaning_by_its_rules_gives(raw, clean, rules):
    assert clean_text(raw, CleaningRules(**rules)) == clean


@given(st.lists(pieces, max_size=120).map("".join))
def test_the_steps_that_a_plain_text_skips_would_not_change_it(text):
    cleaned = clean_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("data.cleaning.normalise._plain", re.compile("(?!)"))
        assert clean_text(text) == cleaned
