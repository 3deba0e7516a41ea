import pytest

from data.cleaning import CleaningRules, clean_and_count
from data.cleaning.privacy import PLACEHOLDERS, scrub


@pytest.mark.parametrize(
    "text, kind",
    [
        ("电话+86 138 0013 8000。", "phone"),
        ("总机010-62771234。", "phone"),
        ("客服400-800-1234。", "phone"),
        ("客服400-8888-888。", "phone"),
        ("座机0755-88888888-801。", "phone"),
        ("座机(010)62771234-8。", "phone"),
        ("联系人：张三-13812345678-李四", "phone"),
        ("卡号-4111111111111111", "bank_card"),
        ("写信到zhang.san+tea@mail.example.com吧", "email"),
        ("身份证11010519491231002X号", "id_card"),
        ("卡号5555 5555 5555 4444转账", "bank_card"),
    ],
)
def test_each_kind_is_found_and_counted(text, kind):
    clean, counts = scrub(text, PLACEHOLDERS)
    assert counts == {kind: 1} and "〔" in clean and not any(map(str.isdigit, clean))
    assert scrub(clean, PLACEHOLDERS) == (clean, {})


# each is one but for a digit, a letter or a sum
NUMBERS = """
913812345678 138123456789 13812345678-1 1.5-13812345678 12812345678 1381234567 110-62771234 010-627712
110101199001010000 110105184912310020 110105194913310021 A11010519491231002X 11010519491231002XA
4111-1111-1111-1112 41111111111111111107 4111111111111111.5 0.4111111111111111 41111111111114
"""


@pytest.mark.parametrize("text", NUMBERS.split())
def test_numbers_that_are_none_of_them_stay(text):
    assert scrub(text, PLACEHOLDERS) == (text, {})


def test_only_what_is_asked_for_is_replaced():
    text = "电话13800138000，信箱a@b.cn"
    assert scrub(text, ["email"]) == ("电话13800138000，信箱〔邮箱〕", {"email": 1})


@pytest.mark.parametrize(
    "raw, clean, counts",
    [
        ("见 https://a.cn ，电话13800138000。", "见 〔网址〕 ，电话〔电话〕。", {"url": 1, "phone": 1}),
        ("<p>电话13800138000</p> a&#64;b.cn", "电话〔电话〕\n〔邮箱〕", {"phone": 1, "email": 1}),
    ],
)
def test_cleaning_counts_what_it_replaced_inside_markup_too(raw, clean, counts):
    assert clean_and_count(raw, CleaningRules(scrub=tuple(PLACEHOLDERS))) == (clean, counts)
