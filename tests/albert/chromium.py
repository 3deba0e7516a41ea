"""The Chromium of this machine, driven through Playwright.

Makes the picture of a report too: `python -m tests.albert.chromium REPORT/index.html PICTURE.png`
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

PICTURE = {"width": 1180, "height": 1180}  # pixels: the top of a page, which is what the README shows


def find_chromium() -> str | None:
    """Path of a Chromium: the one `playwright install chromium` brings, or the system's; None without any, or
    where Playwright's driver does not start, as on a system without libatomic.
    """
    try:
        with sync_playwright() as playwright:
            own = playwright.chromium.executable_path
    except Exception:  # Playwright gives it no type of its own
        return None
    if Path(own).is_file():
        return own
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next(filter(None, map(shutil.which, names)), None)


@contextmanager
def launch(executable: str) -> Iterator[Browser]:
    """A headless browser that ends with the block."""
    with sync_playwright() as playwright, playwright.chromium.launch(executable_path=executable) as browser:
        yield browser


def take_picture(page: Path, picture: Path) -> None:
    """The top of a page as PNG. Raises SystemExit where there is no Chromium."""
    executable = find_chromium()
    if executable is None:
        raise SystemExit("no Chromium: run `playwright install chromium`, or install the system's")
    with launch(executable) as browser:
        tab = browser.new_page(viewport=PICTURE)
        tab.goto(page.resolve().as_uri())
        tab.screenshot(path=picture)


if __name__ == "__main__":
    take_picture(*map(Path, sys.argv[1:3]))
