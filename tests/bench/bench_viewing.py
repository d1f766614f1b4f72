"""How soon a page of the site shows something, read from a disk by a browser that has not seen it."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from chromium import ARGUMENTS, installed
from figures import Figure
from playwright.sync_api import Browser, sync_playwright
from repository import ROOT
from small_site import build_small_site

MOST_S = 1.0
SITE = ROOT / "build/site/html"
PATTERNS = ("index.html", "weeks/*.html", "labs/*/*.html", "docs/*.html")
# milliseconds from the start of the navigation to the first text or picture
FIRST_PAINT = """() => new Promise(resolve => new PerformanceObserver(list => list.getEntriesByName(
    "first-contentful-paint").forEach(one => resolve(one.startTime))).observe({type: "paint", buffered: true}))"""


def viewing(scale: float) -> Iterator[Figure]:
    """The first view of each page: of the whole site, which `make site` has built, or of a small course's."""
    if (chromium := installed()) is None:
        print("No browser: the first view of a page is not measured.", file=sys.stderr)
        return
    with TemporaryDirectory() as made, sync_playwright() as playwright:
        site = SITE if scale == 1 else _small(Path(made))
        if not site.is_dir():
            raise RuntimeError(f"{site} is missing: run `make site` first.")
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        pages = sorted(page for pattern in PATTERNS for page in site.glob(pattern))
        times_s = {str(page.relative_to(site)): first_view_s(browser, page) for page in pages}
        browser.close()
    slowest = max(times_s, key=lambda name: times_s[name])
    how = f"{len(times_s)} pages from disk, each in a new context; the slowest is {slowest}"
    yield Figure("first view of a page, median", statistics.median(times_s.values()), "s", "", None, how)
    is_met = times_s[slowest] < MOST_S
    yield Figure("first view of a page, slowest", times_s[slowest], "s", f"under {MOST_S:g}", is_met, how)


def _small(folder: Path) -> Path:
    course = folder / "course"
    course.mkdir()
    return build_small_site(course, folder / "site")


def first_view_s(browser: Browser, page: Path) -> float:
    """Seconds from asking for a page to its first text or picture."""
    context = browser.new_context(viewport={"width": 1366, "height": 800}, offline=True)
    tab = context.new_page()
    tab.goto(page.as_uri(), wait_until="commit")
    time_s = tab.evaluate(FIRST_PAINT) / 1000
    context.close()
    return time_s
