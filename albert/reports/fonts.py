"""Chinese in the plots of notebooks; reports need no font, as their reader's browser has one."""

from __future__ import annotations

import warnings

from matplotlib import font_manager, rcParams

FONTS = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Noto Sans SC",
    "Source Han Sans SC",
    "WenQuanYi Zen Hei",
    "WenQuanYi Micro Hei",
    "PingFang SC",
    "Hiragino Sans GB",
    "Microsoft YaHei",
    "SimHei",
)


def use_chinese_fonts() -> None:
    """Have matplotlib write Chinese; warn, once and not for each character, if no font is installed."""
    installed = [name for name in FONTS if name in font_manager.get_font_names()]
    rcParams["font.sans-serif"] = [*installed, "DejaVu Sans"]
    if not installed:
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        warnings.warn(
            "no font for Chinese is installed, plots show boxes: install one such as fonts-noto-cjk",
            stacklevel=2,
        )
