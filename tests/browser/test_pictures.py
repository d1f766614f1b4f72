"""Pictures where no kernel runs: an HTML page in both themes that loads nothing, and a PDF without LaTeX."""

import re
import subprocess

import pytest
from drawings import DRAWINGS, gallery
from playwright.sync_api import expect

from worldsize.pages import OfflineHTMLExporter

pytestmark = pytest.mark.browser


@pytest.fixture
def open_page(browser, tmp_path):
    """Opens the notebook with all drawings as an HTML page in a theme; gives the page and what it asked the network."""
    contexts = []

    def open_it(theme: str):
        path = tmp_path / f"{theme}.html"
        path.write_text(OfflineHTMLExporter(theme=theme).from_notebook_node(gallery())[0], encoding="utf-8")
        contexts.append(browser.new_context(viewport={"width": 1366, "height": 768}))
        page, asked = contexts[-1].new_page(), []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri())
        return page, [url for url in asked if not url.startswith(("file:", "data:"))]

    yield open_it
    for context in contexts:
        context.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_picture_is_seen_in_both_themes_without_a_network(open_page, theme, screenshots):
    page, asked = open_page(theme)
    assert asked == []
    figures = page.locator(".jp-OutputArea-output").locator("img:visible, .worldsize-player")
    expect(figures).to_have_count(len(DRAWINGS))
    for name, figure in zip(DRAWINGS, figures.all(), strict=True):
        figure.scroll_into_view_if_needed()
        is_image = figure.evaluate("figure => figure.tagName") == "IMG"  # else an animation, in the theme's own colours
        assert figure.evaluate("figure => figure.naturalWidth ?? figure.clientWidth") > 400
        box = figure.bounding_box()
        assert box["x"] + box["width"] <= 1366 and box["height"] <= 768
        is_inverted = figure.evaluate("figure => getComputedStyle(figure).filter") != "none"
        assert is_inverted == (is_image and theme == "dark")
        figure.screenshot(path=screenshots / f"picture_{name}_{theme}.png")


def test_a_pdf_without_latex_has_every_picture_with_its_words(chromium, tmp_path):
    page = tmp_path / "page.html"
    page.write_text(OfflineHTMLExporter().from_notebook_node(gallery())[0], encoding="utf-8")
    pdf = tmp_path / "page.pdf"
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    command = [chromium, *options, f"--print-to-pdf={pdf}", page.as_uri()]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    content = pdf.read_bytes()
    # screens show 864 pixels, of the circle 441; the file has more, for paper
    widths = [int(width) for width in re.findall(rb"/Subtype /Image\s+/Width (\d+)", content)]
    assert len(widths) == len(DRAWINGS) and [one > 1200 for one in sorted(widths)] == [False] + [True] * (
        len(widths) - 1
    )
    assert min(widths) > 700
    for cell in gallery().cells:
        assert is_in_pdf(cell.outputs[0].data["text/plain"][:30], content)


def is_in_pdf(text: str, content: bytes) -> bool:
    """Whether an alternative text begins so, as PDF writes it: Latin with escapes, or UTF-16."""
    latin = re.sub(r"([()\\])", r"\\\1", text).encode("latin-1", errors="replace")
    wide = "".join(f"{byte:02X}" for byte in text.encode("utf-16-be")).encode()
    return b"/Alt (" + latin in content or b"/Alt <FEFF" + wide in content
