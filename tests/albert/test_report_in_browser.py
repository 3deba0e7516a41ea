"""The report as a browser sees it; where there is no Chromium there is nothing to see it with."""

import shutil
import subprocess

import pytest

from tests.albert.test_reports import page  # noqa: F401 (a fixture)

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")


def browse(path, tmp_path, *arguments):
    quiet = [
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--no-first-run",
    ]
    return subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", *quiet,
         f"--user-data-dir={tmp_path / 'profile'}",
         *arguments, path.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("width", [380, 1280])
def test_the_page_fits_its_window_and_says_nothing_to_the_console(page, tmp_path, width):  # noqa: F811
    probe = page.with_name("probe.html")
    script = (
        "<script>document.title = [document.documentElement.scrollWidth <= innerWidth, "
        "[...document.querySelectorAll('svg')].every(s => s.getBoundingClientRect().width > 200 && "
        "s.getBoundingClientRect().height > 100)].join()</script></body>"
    )
    probe.write_text(page.read_text(encoding="utf-8").replace("</body>", script), encoding="utf-8")
    # a headless window is never narrower than 500 pixels: the page is looked at through a frame
    frame = page.with_name("frame.html")
    frame.write_text(
        f"<iframe id=f src=probe.html style='width:{width}px;height:900px'></iframe><script>f.onload = () => "
        "document.title = f.contentDocument.title</script>",
        encoding="utf-8",
    )
    seen = browse(frame, tmp_path, "--enable-logging=stderr", "--allow-file-access-from-files",
                  "--virtual-time-budget=5000", "--dump-dom")  # fmt: skip
    assert "<title>true,true</title>" in seen.stdout, seen.stdout[:300]
    assert "CONSOLE" not in seen.stderr
