"""Explorers as a student uses them: a slider under the arrow keys, in both themes, and a page without a kernel."""

import json
import os
import re
import statistics
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import Locator, expect

pytestmark = pytest.mark.browser
EXPLORERS = sorted((Path(__file__).parent / "explorers").glob("*.py"))
NUM_MOVES = int(os.environ.get("WORLDSIZE_MOVES", "3"))  # `make bench` asks for more
FORMULA = """
from worldsize.explore import explore

def step_time_s(num_ranks=4, size_bytes=1_000_000, is_overlapped=False):
    print("called once more")
    if num_ranks == 6:
        raise ValueError("Six ranks do not fit on this board: take five or seven.")
    return {"compute": 0.012 / num_ranks, "communication": 0 if is_overlapped else size_bytes / 1e9}

explore(step_time_s, num_ranks=(1, 8), size_bytes=(1_000, 10**9), is_overlapped=False)
"""
WATCH = """box => {
    window.moves = [];
    box.addEventListener("keydown", () => moves.push({pressed: performance.now()}), true);
    new MutationObserver(changes => {
        const status = changes.some(one => one.target.parentElement.querySelector("[role=status]"));
        const last = moves.at(-1);
        if (status && last && !last.changed) last.changed = performance.now();
    }).observe(box, {childList: true, subtree: true});
}"""


@pytest.fixture
def scratch(open_notebook, lab):
    """An empty notebook, open, with a whole window for it."""
    empty = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# Explorers")])
    empty.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(empty, lab.course / "explorers.ipynb")
    return open_notebook("explorers.ipynb")


def test_a_slider_under_the_arrow_keys_changes_the_numbers_tells_what_is_impossible_and_recovers(scratch, screenshots):
    out = explored(scratch, FORMULA)
    ranks = slider(out, "num_ranks")
    shown, status = out.locator(".worldsize-explorer table"), out.get_by_role("status")
    expect(shown).to_contain_text("3 ms")
    expect(out.get_by_text("1 MB", exact=True)).to_be_visible()
    ranks.press("ArrowRight")
    expect(shown).to_contain_text("2.4 ms")
    expect(status).to_contain_text("num_ranks = 5, size_bytes = 1 MB, is_overlapped = no: compute 2.4 ms")

    ranks.press("ArrowRight")
    sentence = out.get_by_text("Six ranks do not fit on this board: take five or seven.", exact=True)
    expect(sentence).to_be_visible()
    assert "Traceback" not in out.inner_text() and "ValueError" not in out.inner_text()
    scratch.page.screenshot(path=screenshots / "explore_impossible.png")
    ranks.press("ArrowRight")
    expect(sentence).to_have_count(0)
    expect(shown).to_contain_text("1.71 ms")
    out.get_by_label("is_overlapped").check()
    expect(shown.get_by_role("row", name="communication")).to_contain_text("0 s")
    expect(out.locator(".worldsize-explorer pre")).to_have_text("called once more\n")


@pytest.mark.nightly("a minute, and exported pages are looked at by day")
def test_without_its_kernel_a_page_shows_the_picture_and_the_sentence(scratch, screenshots):
    scratch.add_and_run(EXPLORERS[-1].read_text())
    out = scratch.code_cells.last.locator(".jp-OutputArea").first
    expect(out.locator(".worldsize-explorer img")).to_be_visible()
    still, sentence = out.locator(".worldsize-still img"), out.get_by_text("Run this cell in JupyterLab")
    expect(still).to_be_hidden()
    expect(sentence).to_be_hidden()
    saved = scratch.save()
    assert saved.count('"image/png":') == 1
    scratch.shut_down_kernel()
    scratch.page.reload()
    scratch.wait_for_kernel()  # a new one, which knows nothing of the panel
    lost = out.get_by_text("Error displaying widget: model not found")
    expect(lost).to_be_attached()
    expect(lost).to_be_hidden()
    expect(still).to_be_visible()
    expect(sentence).to_be_visible()
    sentence.scroll_into_view_if_needed()
    scratch.page.screenshot(path=screenshots / "explore_without_kernel.png")


def test_every_explorer_redraws_when_a_slider_moves(scratch, screenshots, root):
    """All in one notebook, because JupyterLab takes most of the time; writes how long moves took to build/."""
    times_ms = {}
    for path in EXPLORERS:
        out = explored(scratch, path.read_text())
        if path.stem == "pipeline":
            enlarge(out)
        first = out.get_by_role("slider").last
        times_ms[path.stem] = sorted(move(first, number) for number in range(NUM_MOVES))
        look_at_both_themes(scratch, out, screenshots / f"explore_{path.stem}")
    found = {name: round(statistics.median(times)) for name, times in times_ms.items()}
    print("\nmedian of a slider's moves in ms:", found)
    (root / "build" / "exploring.json").write_text(json.dumps(times_ms))


def test_a_key_held_down_leaves_no_queue_behind(scratch):
    out = explored(scratch, "import time\n" + SLOW)
    num = slider(out, "num")
    for _ in range(40):
        num.press("ArrowRight")
    expect(out.get_by_role("status")).to_contain_text("num = 40: 40 after")
    num_calls = int(re.search(r"40 after (\d+) calls", out.inner_text())[1])
    assert num_calls < 30


SLOW = """
from worldsize.explore import explore
calls = []
def slow(num=0):
    calls.append(num)
    time.sleep(0.25)
    return f"{num} after {len(calls)} calls"
explore(slow, num=(0, 40))
"""


def explored(notebook, source: str) -> Locator:
    """The live output of a new cell with this source."""
    notebook.wait_for(notebook.add_and_start(source.strip()))
    out = notebook.code_cells.last.locator(".jp-OutputArea").first
    expect(out.locator(".worldsize-explorer").first).to_be_visible()
    return out


def slider(out: Locator, name: str) -> Locator:
    """The handle of the slider with this name."""
    return out.locator(".widget-slider", has_text=name).get_by_role("slider")


def enlarge(out: Locator) -> None:
    """Make the pipeline as large as it goes."""
    slider(out, "num_stages").press("End")
    slider(out, "num_pieces").press("End")
    expect(out.get_by_role("status")).to_contain_text("num_stages = 32, num_pieces = 64", timeout=120_000)


def move(handle: Locator, number: int) -> float:
    """Milliseconds from the press of an arrow key to the changed result, which is waited for."""
    if number == 0:
        handle.evaluate(f"handle => ({WATCH})(handle.closest('.worldsize-explorer'))")
    is_at_end = handle.get_attribute("aria-valuenow") == handle.get_attribute("aria-valuemax")
    handle.press("ArrowLeft" if is_at_end or number % 2 else "ArrowRight")
    taken = "() => moves.length && moves.at(-1).changed && moves.at(-1).changed - moves.at(-1).pressed"
    return handle.page.wait_for_function(taken).json_value()


def look_at_both_themes(notebook, out: Locator, stem: Path) -> None:
    for theme in ("Dark", "Light"):
        notebook.choose("Settings", "Theme", f"JupyterLab {theme}")
        expect(notebook.page.locator("body")).to_have_attribute("data-jp-theme-name", f"JupyterLab {theme}")
        out.get_by_role("slider").first.scroll_into_view_if_needed()
        notebook.page.screenshot(path=f"{stem}_{theme.lower()}.png")
