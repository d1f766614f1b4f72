"""The animation of messages: stepped, played and read in both themes; without a kernel, motion or scripts."""

import re

import nbformat
import pytest
from playwright.sync_api import Page, expect

import worldsize as ws
from worldsize import draw

pytestmark = pytest.mark.browser
RING = """
import torch, torch.distributed as dist
import worldsize as ws
from worldsize import draw, hardware

def ring():
    rank, size = dist.get_rank(), dist.get_world_size()
    for _ in range(size - 1):
        inbox, outbox = torch.empty(16_000), torch.ones(16_000)
        works = dist.isend(outbox, (rank + 1) % size), dist.irecv(inbox, (rank - 1) % size)
        for work in works:
            work.wait()

run = ws.run(ring, world_size=4, cluster=hardware.DGX_H100, compute="none", echo=False)
draw.messages(run.timeline, title="A <ring> of 4")
"""
WATCH = """() => {
    window.hasMoved = false;
    const look = changes => changes.forEach(one => window.hasMoved ||= one.target.style.visibility === "visible");
    const options = { subtree: true, attributeFilter: ["style"] };
    new MutationObserver(look).observe(document.querySelector(".worldsize-player"), options);
}"""
AGAIN = 'draw.messages(run.timeline, title="Once more")'


@pytest.fixture
def notebook(open_notebook, lab):
    """An empty notebook, open."""
    empty = nbformat.v4.new_notebook(metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}})
    nbformat.write(empty, lab.course / "messages.ipynb")
    return open_notebook("messages.ipynb")


def there_and_back():
    """Rank 0 sends 8 bytes to rank 1 for a second, and rank 1 back for another."""
    return ws.Timeline.of_events(
        ws.Event(rank, "communication", "communication", name, start_s, start_s + 1, 8, peers=(peer,))
        for source, target, start_s in [(0, 1, 0.0), (1, 0, 1.0)]
        for rank, name, peer in ((source, "send", target), (target, "recv", source))
    )


def players(page: Page):
    return page.locator(".worldsize-player")


def test_the_animation_steps_by_hand_and_plays_in_both_themes(notebook, screenshots):
    page = notebook.page
    notebook.wait_for(notebook.add_and_start(RING))
    notebook.wait_for(notebook.add_and_start(AGAIN))
    expect(players(page)).to_have_count(2)
    first, second = players(page).first, players(page).last
    says = first.locator("[aria-live=polite]")
    expect(first.get_by_text("A <ring> of 4")).to_be_visible()
    expect(says).to_contain_text(re.compile(r"^Step 1 of 3, 0 s to .*: rank 0 sends 64.0 kB to rank 1; rank 1 sends"))

    for theme in ("Dark", "Light"):
        notebook.choose("Settings", "Theme", f"JupyterLab {theme}")
        expect(page.locator("body")).to_have_attribute("data-jp-theme-name", f"JupyterLab {theme}")
        first.get_by_role("button", name="Step forward").click()
        expect(says).to_contain_text("Step 2 of 3")
        first.hover()
        page.screenshot(path=screenshots / f"messages_{theme.lower()}.png")
        first.get_by_role("button", name="Step back").click()
        expect(says).to_contain_text("Step 1 of 3")

    first.get_by_role("slider", name="Step").press("End")
    expect(says).to_contain_text("Step 3 of 3")
    expect(first.get_by_role("button", name="Step forward")).to_be_disabled()
    expect(second.locator("[aria-live=polite]")).to_contain_text("Step 1 of 3")

    play = second.get_by_role("button", name=re.compile("Play|Pause"))
    play.press("Enter")
    expect(play).to_have_text("Pause")
    expect(second.locator(".worldsize-packet").first).to_be_visible()
    expect(second.locator("[aria-live=polite]")).to_contain_text("Step 3 of 3")
    expect(play).to_have_text("Play")


def test_it_needs_no_kernel_no_network_and_no_motion(browser):
    """In a page of its own, as an exported notebook is, for a reader who asked for less motion."""
    context = browser.new_context(reduced_motion="reduce")
    asked, broken = [], []
    context.on("request", lambda request: asked.append(request.url))
    page = context.new_page()
    page.on("pageerror", lambda error: broken.append(error))
    page.set_content(draw.messages(there_and_back())._repr_mimebundle_()["text/html"])
    says = page.locator("[aria-live=polite]")
    expect(says).to_have_text("Step 1 of 2, 0 s to 1.00 s: rank 0 sends 8 B to rank 1.")
    assert says.bounding_box()["height"] < 30  # one line: no room is left for longer texts that never come
    page.evaluate(WATCH)
    page.get_by_role("button", name="Play").click()
    expect(says).to_have_text("Step 2 of 2, 1.00 s to 2.00 s: rank 1 sends 8 B to rank 0.")
    expect(page.get_by_role("button", name="Play")).to_be_visible()
    assert page.evaluate("window.hasMoved") is False
    assert broken == [] and [url for url in asked if not url.startswith("data:")] == []
    context.close()


def test_a_page_without_scripts_keeps_the_picture(browser):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.set_content(draw.messages(there_and_back())._repr_mimebundle_()["text/html"])
    expect(page.get_by_role("img")).to_have_attribute("alt", re.compile("Step 1: rank 0 sends 8 B to rank 1"))
    expect(page.get_by_role("button")).to_have_count(0)
    context.close()
