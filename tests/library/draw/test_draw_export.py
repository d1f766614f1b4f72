"""Pictures without a live kernel: what a notebook file holds of them, and what nbconvert makes of it."""

import base64
import re
from html.parser import HTMLParser

import pytest
from drawings import DRAWINGS, gallery
from nbconvert.exporters import HTMLExporter, MarkdownExporter

from worldsize.pages import OfflineHTMLExporter

FROM_ELSEWHERE = re.compile(
    r"""(?:src|href)\s*=\s*["']?\s*(?:https?:)?//|@import|url\(\s*["']?https?:""", re.IGNORECASE
)


def bundles():
    """What each drawing's output holds, by type."""
    return [cell.outputs[0].data for cell in gallery().cells]


class Images(HTMLParser):
    """The images of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[dict[str, str]] = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        if tag == "img":
            self.found.append(dict(attrs))


def test_a_notebook_file_has_a_png_and_a_sentence_of_each():
    # GitHub shows the png; who reads the text alone gets the sentence
    for data in bundles():
        assert set(data) == {"image/png", "text/html", "text/plain"}
        assert base64.b64decode(data["image/png"]).startswith(b"\x89PNG\r\n\x1a\n")
        assert len(data["text/plain"]) > 80


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_html_has_every_picture_with_its_words_and_loads_nothing(theme):
    html, _ = OfflineHTMLExporter(theme=theme).from_notebook_node(gallery())
    images = Images(html).found
    assert [image["alt"] for image in images] == [data["text/plain"] for data in bundles()]
    assert all(image["src"].startswith("data:image/png;base64,") for image in images)
    assert FROM_ELSEWHERE.findall(html) == []


def test_plain_nbconvert_shows_each_picture_once_and_the_picture_itself_loads_nothing():
    html, _ = HTMLExporter().from_notebook_node(gallery())
    assert len(Images(html).found) == len(DRAWINGS)
    assert [found for data in bundles() for found in FROM_ELSEWHERE.findall(data["text/html"])] == []


def test_markdown_has_every_picture():
    text, _ = MarkdownExporter().from_notebook_node(gallery())
    assert len(re.findall(r"!\[png\]|<img ", text)) == len(DRAWINGS)
