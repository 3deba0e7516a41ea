import warnings

import matplotlib
import pytest

from albert.reports import use_chinese_fonts


def test_without_a_font_for_chinese_there_is_one_warning_and_with_one_there_is_none(monkeypatch):
    with matplotlib.rc_context(), warnings.catch_warnings():
        monkeypatch.setattr("albert.reports.fonts.FONTS", ("no such font",))
        with pytest.warns(UserWarning, match="no font for Chinese is installed") as told:
            use_chinese_fonts()
            warnings.warn("Glyph 33590 missing from font", stacklevel=1)
        assert len(told) == 1
        monkeypatch.setattr("albert.reports.fonts.FONTS", ("DejaVu Serif",))
        warnings.simplefilter("error")
        use_chinese_fonts()
        assert matplotlib.rcParams["font.sans-serif"][0] == "DejaVu Serif"
