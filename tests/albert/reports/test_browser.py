"""The report as a real Chromium sees it; where there is none, there is nothing to see it with."""

import pytest

pytest.importorskip("playwright", reason="no playwright: pip install 'jixu[test]'")

from tests.albert.chromium import find_chromium, launch

CHROMIUM = find_chromium()
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium: `playwright install chromium`, or the system's package"
)

# what a plot must have to be seen: a size, and marks of more than the page's own colour
DRAWN = """() => [...document.querySelectorAll('svg')].map(svg => {
    const box = svg.getBoundingClientRect();
    const marks = [...svg.querySelectorAll('path, use, text')].filter(mark => {
        const {width, height} = mark.getBoundingClientRect();
        return width + height > 0;
    });
    return {name: svg.querySelector('title').textContent, width: box.width, height: box.height,
            right: box.right, marks: marks.length};
})"""
# text that is cut off or runs out of its plot
SPILLED = """() => [...document.querySelectorAll('svg text')].filter(text => {
    const inner = text.getBoundingClientRect(), outer = text.ownerSVGElement.getBoundingClientRect();
    return inner.left < outer.left - 2 || inner.right > outer.right + 2
        || inner.top < outer.top - 2 || inner.bottom > outer.bottom + 2;
}).map(text => text.ownerSVGElement.querySelector('title').textContent + ': ' + text.textContent)"""
# of the page's texts the smallest size, in pixels on the screen
SMALLEST = """() => Math.min(...[...document.querySelectorAll('svg text, p, td, th, span')].map(text => {
    const scale = text.getScreenCTM ? Math.hypot(text.getScreenCTM().a, text.getScreenCTM().b) : 1;
    return scale * parseFloat(getComputedStyle(text).fontSize);
}))"""
# WCAG 2.1, relative luminance and contrast of every colour of the page with its background
CONTRASTS = """() => {
    const luminance = color => {
        const [r, g, b] = color.match(/[\\d.]+/g).slice(0, 3).map(Number).map(
            c => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const ground = luminance(getComputedStyle(document.body).backgroundColor);
    const sample = document.body.appendChild(document.createElement('span'));
    const found = {};
    for (const name of ['ink', 'soft', 'accent', 'bad']) {
        sample.style.color = `var(--${name})`;
        const own = luminance(getComputedStyle(sample).color);
        found[name] = (Math.max(own, ground) + 0.05) / (Math.min(own, ground) + 0.05);
    }
    sample.remove();
    return found;
}"""


@pytest.fixture(scope="module")
def browser():
    with launch(CHROMIUM) as browser:
        yield browser


@pytest.fixture
def open_page(browser, page):
    """Opens the report in a window of a width and a colour scheme, everything unfolded."""
    said, asked, tabs = [], [], []

    def opened(width=1280, scheme="light"):
        tab = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        tabs.append(tab)
        tab.on("console", lambda message: said.append(message.text))
        tab.on("pageerror", lambda error: said.append(str(error)))
        tab.on("request", lambda request: asked.append(request.url))
        tab.goto(page.as_uri())
        tab.wait_for_load_state("networkidle")  # which may come before the whole page is read
        tab.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
        return tab

    yield opened
    for tab in tabs:
        tab.close()
    assert not said
    assert set(asked) <= {page.as_uri()}


@pytest.mark.parametrize("width", [380, 1280])
def test_the_page_fits_its_window_and_can_be_read(open_page, width):
    tab = open_page(width)
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    assert tab.evaluate(SMALLEST) >= 9.5
    plots = tab.evaluate(DRAWN)
    assert len(plots) > 20
    for plot in plots:
        assert plot["width"] > 250 and plot["height"] > 80 and plot["right"] <= width, plot
        assert plot["marks"] > 5, plot
    assert not tab.evaluate(SPILLED)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_follow_the_readers_choice(open_page, scheme):
    tab = open_page(scheme=scheme)
    contrasts = tab.evaluate(CONTRASTS)
    assert all(contrast >= 4.5 for contrast in contrasts.values()), contrasts
    ground = tab.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert (sum(ground) > 600) is (scheme == "light")
    ink = tab.evaluate("getComputedStyle(document.body).color")
    label = "[...document.querySelectorAll('svg text')].find(text => text.textContent == '继续')"
    assert tab.evaluate(f"getComputedStyle({label}).fill") == ink


def test_folded_parts_are_printed(open_page):
    tab = open_page()
    tab.evaluate("document.querySelectorAll('details').forEach(part => part.open = false)")
    tab.emulate_media(media="print")
    height = "document.querySelector('details table').getBoundingClientRect().height"
    assert tab.evaluate(height) > 20
    assert tab.pdf(format="A4").startswith(b"%PDF")
