"""The bank in a browser: filtered, rolled again, opened by keyboard, and drawn anew when its file changes."""

import re
from threading import Thread

import pytest
from playwright.sync_api import expect
from quiz_class import KINDS, bank_text, write_bank
from quiz_samples import NUMERIC
from test_feedback import CONTRASTS

from autograder.quiz import preview

pytestmark = pytest.mark.browser


@pytest.fixture
def bank(tmp_path):
    return write_bank(tmp_path / "quizzes")


@pytest.fixture
def address(bank):
    """The address of a running preview."""
    server = preview.open_server(bank, 0)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(params=["light", "dark"])
def opened(request, browser, address):
    """The page on a small laptop's screen, and what the browser complained about."""
    context = browser.new_context(viewport={"width": 1366, "height": 768}, color_scheme=request.param)
    page, said = context.new_page(), []
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
    page.goto(address)
    yield page, said, request.param
    context.close()


def test_it_reads_well_in_light_and_dark(opened, screenshots):
    page, said, scheme = opened
    expect(page.locator("#count")).to_have_text(f"{len(KINDS)} of {len(KINDS)}")
    page.locator("#week").focus()
    page.screenshot(path=screenshots / f"preview_{scheme}.png")
    for summary in page.locator("summary").all():
        summary.click()
    page.screenshot(path=screenshots / f"preview_open_{scheme}.png", full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth") and said == []
    assert page.locator("math mfrac").first.bounding_box()["height"] > 10
    assert page.locator("img").first.evaluate("image => image.naturalWidth") > 300
    assert [f"{ratio:.1f} {what}" for ratio, what in page.evaluate(CONTRASTS) if ratio < 4.5] == []


def test_it_filters_rolls_again_and_is_used_by_keyboard(opened):
    page, said, _ = opened
    page.locator("#kind").select_option("numeric")
    expect(page.locator("article:visible")).to_have_count(1)
    expect(page.locator("#count")).to_have_text(f"1 of {len(KINDS)}")
    page.get_by_role("button", name="Clear").click()
    page.locator("body").press("/")
    page.keyboard.type("8 gb/s")
    expect(page.locator("article:visible")).to_have_count(1)
    page.get_by_role("button", name="Clear").click()
    expect(page.locator("article:visible")).to_have_count(len(KINDS))

    for key in "nnn":
        page.keyboard.press(key)
    expect(page.locator("article:focus h2")).to_contain_text("t-time")
    question = page.locator("[data-key='week02/t-time']")
    expect(question.locator(".answer")).to_be_hidden()
    page.keyboard.press("a")
    expect(question.locator(".answer")).to_be_visible()
    before = question.locator(".drawn").inner_text()
    page.keyboard.press("v")
    expect(question.locator(".drawn")).to_contain_text("Seed 1:")
    expect(question.locator(".answer")).to_be_visible()  # stays open
    question.get_by_role("button", name="Another variant").click()
    expect(question.locator(".drawn")).to_contain_text("Seed 2:")
    assert question.locator(".drawn").inner_text() != before
    page.keyboard.press("p")
    expect(page.locator("article:focus h2")).to_contain_text("t-even")
    assert said == []


def test_a_changed_file_is_drawn_anew_and_a_mistake_is_shown(opened, bank):
    page, said, _ = opened
    page.locator("[data-key='week02/t-time']").get_by_role("button", name="Another variant").click()
    expect(page.locator("[data-key='week02/t-time'] .drawn")).to_contain_text("Seed 1:")
    file = bank / "week02.toml"
    file.write_text(bank_text([NUMERIC.replace("at 8 GB/s", "at 9 GB/s")]), encoding="utf-8")
    expect(page.locator("article")).to_have_count(1)
    expect(page.locator("article .text")).to_contain_text("at 9 GB/s")
    expect(page.locator("article .drawn")).to_contain_text("Seed 1:")  # the seed stays
    file.write_text(bank_text([NUMERIC.replace("low = 1\n", "low = 'one'\n")]), encoding="utf-8")
    expect(page.locator(".error")).to_have_text(
        re.compile(r"week02.toml, line \d+, question 1 \(t-time\), low: .*number")
    )
    file.write_text(bank_text([NUMERIC]), encoding="utf-8")
    expect(page.locator(".error")).to_have_count(0)
    expect(page.locator("article .text")).to_contain_text("at 8 GB/s")
    assert said == []


def test_the_static_page_turns_through_its_variants(browser, bank, tmp_path):
    file = tmp_path / "page.html"
    preview.write(bank, file, 3)
    page = browser.new_page()
    page.goto(file.as_uri())
    question = page.locator("[data-key='week02/t-time']")
    seen = []
    for _ in range(4):
        expect(question.locator(".variant:visible")).to_have_count(1)
        seen.append(question.locator(".variant:visible .drawn").inner_text()[:7])
        question.get_by_role("button", name="Another variant").click()
    assert seen == ["Seed 0:", "Seed 1:", "Seed 2:", "Seed 0:"]
    page.close()
