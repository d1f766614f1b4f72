"""The site of the course: every link leads somewhere, nothing comes from elsewhere, no answer is in it, it answers.

A small course stands for the whole one: a lesson with one cell of each kind, all labs and all pages of docs/. With
--nightly the whole site of `make site` is looked at too.
"""

import http.server
import json
import re
import shutil
import sys
import threading
import zipfile
from contextlib import contextmanager
from functools import partial
from html import escape
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import lxml.html
import nbformat
import pytest
from axe import serious
from hidden_texts import found_in, hidden_lines, hidden_of_the_bank, solutions
from made_traces import Trace, ends
from needs import give_up
from playwright.sync_api import expect
from repository import ROOT
from small_site import REPOSITORY, build_small_site

from autograder.bench import recorded
from worldsize import bench, quiz
from worldsize.quiz.marking import mark_answer
from worldsize.quiz.variant import Amount, Options, Phrase
from worldsize.slow_steps import explain_steps

WIDTHS = (1366, 390)
MOST_BYTES = 3_000_000  # of a page with all that it shows at once
PAGES = {
    "small": (
        "index",
        "weeks/*",
        "calculators/*",
        "labs/lab01/*",
        "slides/*",
        "self_checks",
        "checklist",
        "measured",
        "docs/requirements",
        "docs/troubleshooting",
        "commands",
    ),
    "whole": ("**/*",),
}
# by axe, which takes a second or more for each
LOOKED_AT = {"small": ("index", "weeks/*", "calculators/what_fits", "docs/benchmark", "checklist"), "whole": ("**/*",)}
ANSWER = """(form) => {
    for (const field of form.querySelectorAll(".field")) {
        const {kind, value, accepted} = field.dataset;
        if (kind === "single" || kind === "multiple")
            field.querySelectorAll("input").forEach((box) => { box.checked = "right" in box.dataset; });
        else if (kind === "ordering")
            field.querySelectorAll("select").forEach((one) => { one.value = one.dataset.place; });
        else field.querySelector("input").value = kind === "text" ? JSON.parse(accepted)[0] : value;
    }
    form.requestSubmit();
    return form.querySelector(".verdict").textContent;
}"""
TRY = """(form, given) => {
    const field = form.querySelector(".field");
    if (typeof given === "number")
        field.querySelectorAll("input").forEach((box, place) => { box.checked = place === given; });
    else field.querySelector("input").value = given;
    form.requestSubmit();
    const isRight = form.querySelector(".verdict").textContent === "✓ Right.";
    return [isRight, form.querySelectorAll(".said:not([hidden])").length];
}"""
PAGES_FOUND = "ul.search > li > a:not(.section)"
OVERFLOWING = "document.documentElement.scrollWidth - innerWidth"
# what ends outside of the box that shows it, where this box cannot scroll or has no shadow at its edges
CUT = """() => [...document.querySelectorAll("article :is(table, pre, svg, img, iframe, .formula)")].filter((one) => {
    const box = one.getBoundingClientRect();
    let shown = one;
    while (shown.tagName !== "ARTICLE" && getComputedStyle(shown).overflowX === "visible") shown = shown.parentElement;
    const {overflowX, backgroundImage} = getComputedStyle(shown);
    const isWider = shown === one ? one.scrollWidth > one.clientWidth + 1
        : box.right > shown.getBoundingClientRect().right + 1;
    return isWider && !(["auto", "scroll"].includes(overflowX) && backgroundImage.includes("gradient"));
}).map((one) => `${one.tagName} ${one.textContent.trim().slice(0, 40)}`)"""

# slides that are larger than the screen, or have small text or boxes on top of each other, by number
UNFIT = """() => [...document.querySelectorAll(".slides > section")].map((section, index) => {
    Reveal.slide(index);
    const page = section.querySelector(".page"), room = section.querySelector(".room"), said = [];
    const isLarger = (one) => one.scrollWidth > one.clientWidth || one.scrollHeight > one.clientHeight;
    if (page.offsetWidth > 1280 || page.offsetHeight > 720 || isLarger(page)) said.push("larger than the screen");
    const isCut = room.classList.contains("cut");
    if (isLarger(room) && !isCut) said.push("larger than its room");
    const pictures = [...page.querySelectorAll("img, svg, .formula")];
    const boxes = pictures.map((one) => [one.getBoundingClientRect(), one.tagName]);
    const texts = document.createTreeWalker(page, NodeFilter.SHOW_TEXT), range = document.createRange();
    for (let text; (text = texts.nextNode());) {
        const {parentElement} = text;
        if (parentElement.closest("math, svg, style, script") || !text.data.trim()) continue;
        range.selectNodeContents(text);
        const lines = [...range.getClientRects()].filter((line) => line.width);
        boxes.push(...lines.map((line) => [line, text.data.trim()]));
        const size = parseFloat(getComputedStyle(parentElement).fontSize) * parentElement.currentCSSZoom;
        if (lines.length && size < 13.9) said.push(`${size} pixels: ${text.data.trim()}`);
    }
    if (!isCut) boxes.forEach(([one, name], place) => boxes.slice(place + 1).forEach(([other, covered]) => {
        const width = Math.min(one.right, other.right) - Math.max(one.left, other.left);
        const height = Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top);
        if (width > 3 && height > 6) said.push(`${name} and ${covered} overlap`);
    }));
    return [index + 1, said];
}).filter(([, said]) => said.length)"""


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The folder of the site of a small course."""
    if not find_spec("furo"):
        give_up("site", "The packages of the site are not installed: pip install -c constraints.txt -e '.[site]'.")
    if not shutil.which("npm"):
        give_up("site", "npm, which brings Pyodide and Pagefind, is not installed (Debian: npm).")
    course = tmp_path_factory.mktemp("course")
    recorded.write(recorded_run(), course / recorded.FOLDER)
    return build_small_site(course, tmp_path_factory.mktemp("site"))


def recorded_run(is_stand_in=False, gpus=("NVIDIA H100",)):
    """A record of the small lesson's table, as a machine with GPUs would have given it."""
    table = recorded.RecordTable(
        cell="drawn", title="Steps, measured", columns=["algorithm", "steps"], rows=[["ring", "14"]]
    )
    sizes = [{"size_bytes": 1024, "time_s": 2e-5, "bus_bytes_per_s": 1e8}]
    parts = [
        recorded.RecordPart(name="launcher", outcome="passed", took_s=2.0, data={"backend": "nccl", "rows": sizes}),
        recorded.RecordPart(name="week01", outcome="passed", took_s=60.0, tables=[table]),
        recorded.RecordPart(name="project1", outcome="failed", why="a line\nValueError: no rank", took_s=1.0),
    ]
    machine = bench.describe().model_copy(update={"gpus": [*gpus]})
    when = {"measured_at": "2026-11-27T07:20:50+00:00", "is_stand_in": is_stand_in, "num_ranks": 1, "backend": "nccl"}
    return recorded.Record(**when, machine=machine, parts=parts)


@pytest.fixture(scope="module")
def served(small):
    """The address of the small site on a server of its own."""
    with server_of(small) as address:
        yield address


@contextmanager
def server_of(site):
    """A server of a site, by its address."""
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=site)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(params=["small", "whole"])
def site(request):
    """The folder of a site: of a small course, and in a nightly run the whole one."""
    if request.param == "small":
        return request.getfixturevalue("small")
    if not request.config.getoption("--nightly"):
        pytest.skip("the whole site; give --nightly after `make site`")
    return ROOT / "build/site/html"


@pytest.fixture
def visit(browser):
    """Opens a page of a site without network at a width in a theme: the page, what it asked for and complained of."""
    contexts = []

    def opened(path, width=1366, theme="light", query=""):
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=theme, offline=True)
        contexts.append(context)
        page, asked, said = context.new_page(), [], []
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(path.as_uri() + query)
        return page, asked, said

    yield opened
    for context in contexts:
        context.close()


def pages_of(site):
    return sorted(site.rglob("*.html"))


def test_every_link_leads_somewhere_and_nothing_is_loaded_from_elsewhere(site):
    trees = {path.resolve(): lxml.html.parse(str(path)).getroot() for path in pages_of(site)}
    anchors = {path: {*tree.xpath("//@id"), *tree.xpath("//a/@name")} for path, tree in trees.items()}
    dead, foreign = [], []
    for path, tree in trees.items():
        for element, _, link, _ in tree.iterlinks():
            url = urlsplit(link)
            if url.scheme in ("http", "https", "mailto") and element.tag == "a":
                continue
            if url.scheme or url.netloc:
                foreign += [f"{path.name}: {link[:80]}"] if url.scheme != "data" else []
                continue
            target = (path.parent / unquote(url.path)).resolve() if url.path else path
            is_dead_anchor = url.fragment and target in anchors and unquote(url.fragment) not in anchors[target]
            if not target.exists() or is_dead_anchor:
                dead.append(f"{path.relative_to(site.resolve())}: {link}")
    assert len(trees) > 40 and foreign == [] and sorted(set(dead)) == []


def test_lessons_show_all_results_or_mark_them_as_recorded(site):
    trees = [lxml.html.parse(str(path)).getroot() for path in pages_of(site / "weeks")]
    shown = [one.text_content() for tree in trees for one in tree.find_class("cell_output")]
    lines = [line for text in shown for line in text.splitlines()]
    assert len(lines) > 3
    assert [line for line in lines if "not installed" in line and ". Recorded with " not in line] == []


def test_files_that_are_no_page_lead_to_the_repository_and_mistakes_can_be_reported(small):
    page = lxml.html.parse(str(small / "docs/requirements.html")).getroot()
    links = page.xpath("//article//a/@href")
    assert f"{REPOSITORY}/blob/main/quizzes/exams.toml" in links
    assert f"{REPOSITORY}/issues/new?title=Mistake+in+docs%2Frequirements" in links


def test_what_gpus_gave_stands_below_the_table_of_its_cell_and_on_a_page(small):
    lesson = lxml.html.parse(str(small / "weeks/week01_small.html")).getroot()
    cell = lesson.get_element_by_id("drawn").text_content()
    assert "Steps, measured: 1 x NVIDIA H100, 2026-11-27" in cell and "14" in cell
    assert "Also run on 1 x NVIDIA H100, 2026-11-27" in lesson.text_content()
    page = text_of(small / "measured.html")
    assert "20 µs" in page and "ValueError: no rank" in page


def test_without_a_record_there_is_no_page_and_a_stand_in_is_refused(tmp_path, extensions):
    assert extensions("measured").page(tmp_path) == ""
    for odd in (recorded_run(is_stand_in=True), recorded_run(gpus=())):
        path = tmp_path / recorded.FOLDER / "one.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(odd.model_dump_json())
        with pytest.raises(ValueError, match="CPU cores"):
            extensions("measured").page(tmp_path)
    path.write_text("{}")
    with pytest.raises(ValueError, match=r"one\.json is not a record"):
        extensions("measured").page(tmp_path)


def test_no_answer_is_in_it(site):
    texts = {str(path.relative_to(site)): text_of(path) for path in pages_of(site)}
    public = given()
    assert found_in(texts, solutions()) == []
    assert found_in(texts, {line for line in hidden_lines() if line not in public}) == []
    assert found_in(texts, {text for text in hidden_of_the_bank() if " " in text}) == []
    assert not {path.suffix for path in site.rglob("*")} & {".diff", ".ipynb", ".md", ".py", ".toml"}


def given():
    """The released labs, which a test of their own looks through, and docs/, as they read: without marks of code."""
    cells = [cell for path in ROOT.glob("labs/*/*.ipynb") for cell in nbformat.read(path, as_version=4).cells]
    docs = [path.read_text(encoding="utf-8") for path in ROOT.glob("docs/*.md")]
    return "\n".join([*(cell.source for cell in cells), *docs]).replace("`", "")


def text_of(path):
    return lxml.html.parse(str(path)).getroot().text_content()


def test_what_is_hidden_would_be_found(small, tmp_path):
    (tmp_path / "page.html").write_text(f"<p><span>{escape(max(hidden_lines(), key=len))}</span></p>")
    assert found_in({"page": text_of(tmp_path / "page.html")}, hidden_lines()) != []


@pytest.mark.browser
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_pages_fit_are_small_and_say_nothing_wrong(site, visit, width, theme, request):
    wrong = {}
    patterns = PAGES[request.node.callspec.params["site"]]
    for path in sorted(path for pattern in patterns for path in site.glob(f"{pattern}.html")):
        if "_static" in path.parts:  # reveal.js's own page, which no reader visits
            continue
        page, asked, said = visit(path, width, theme)
        page.locator("details").evaluate_all("all => all.forEach(one => { one.open = true })")
        elsewhere = [url for url in asked if not url.startswith(("file:", "data:"))]
        size_bytes = sum(Path(unquote(urlsplit(url).path)).stat().st_size for url in set(asked) - set(elsewhere))
        over = page.evaluate(OVERFLOWING)
        cut = page.evaluate(CUT)
        if said or elsewhere or over > 0 or size_bytes > MOST_BYTES or cut:
            wrong[path.name] = said, elsewhere, over, size_bytes, cut
    assert wrong == {}


@pytest.mark.browser
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious(site, visit, theme, request):
    found = []
    for pattern in LOOKED_AT[request.node.callspec.params["site"]]:
        for path in sorted(site.glob(f"{pattern}.html")):
            if "_static" in path.parts:
                continue
            page, _, _ = visit(path, theme=theme)
            found += [f"{path.name}: {one}" for one in serious(page)]
            page.close()
    assert found == []


@pytest.mark.browser
def test_search_finds_sections_and_shows_what_they_say(browser, served):
    context = browser.new_context(viewport={"width": 390, "height": 800})
    page, asked, said = context.new_page(), [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    page.goto(f"{served}/search.html?q=regrade+requests")
    section = page.get_by_role("link", name="A term › Regrade requests")
    assert section.get_attribute("href").endswith("docs/term.html#regrade-requests")
    expect(page.locator(".description mark", has_text="regrade").first).to_be_visible()
    assert serious(page) == [] and page.evaluate(OVERFLOWING) <= 0
    assert said == [] and [url for url in asked if not url.startswith(served) or "searchindex" in url] == []
    page.goto(f"{served}/search.html?q=regrade+bubbles+prometheus")  # no page has all three
    expect(page.locator(PAGES_FOUND).first).to_be_visible()
    page.goto(f"{served}/docs/term.html")
    context.close()
    assert [url for url in asked[asked.index(page.url) :] if "pagefind" in url] == []  # loaded by search alone


@pytest.mark.browser
def test_where_pagefind_cannot_be_loaded_sphinx_answers(browser, served):
    page = browser.new_page()
    page.route("**/pagefind/**", lambda route: route.abort())
    page.goto(f"{served}/search.html?q=bubble")
    expect(page.locator("#search-results li", has_text="Choosing a plan")).to_contain_text("every legal way")
    page.close()


@pytest.mark.browser
def test_search_finds_from_a_file(small, visit):
    page, _, said = visit(small / "search.html", query="?q=bubble")
    found = page.locator("#search-results li", has=page.locator("a", has_text="Choosing a plan"))
    expect(found).to_contain_text("every legal way to lay a large model out")
    page.locator("#search-results li a", has_text="Glossary").click()
    page.wait_for_url("**/docs/glossary.html**")
    assert said == []


# what four readers who had not seen the site typed, and the pages that answer it
QUERIES = {
    "OOM": ("docs/troubleshooting",),
    "out of memory": ("docs/troubleshooting",),
    "set_epoch": ("docs/troubleshooting", "weeks/week15"),
    "gradient accumulation": ("weeks/week06",),
    "how often to checkpoint": ("calculators/checkpoints", "docs/outages"),
    "ring all-reduce": ("weeks/week02", "labs/lab02", "calculators/collectives"),
    "bubble": ("weeks/week09", "calculators/bubbles"),
    "kineto": ("docs/experiments",),
    "my job hangs": ("docs/hangs",),
    "canvas": ("docs/monday", "docs/grading"),
    "late penalty": ("docs/grading",),
    "extra time": ("docs/term",),
    "plagiarism": ("docs/term",),
    "sandbox": ("docs/sandbox",),
    "regrade": ("docs/term",),
    "autograder": ("docs/grading", "commands"),
    "quiz pool": ("docs/quizzes",),
    "NCCL timeout": ("docs/troubleshooting", "weeks/week12"),
    "flight recorder": ("docs/experiments", "weeks/week11"),
    "MFU": ("docs/glossary", "docs/numbers"),
    "slurm requeue": ("docs/schedulers",),
    "prometheus alert": ("docs/schedulers",),
    "plan 13B": ("docs/plan",),
    "torch.compile": ("docs/experiments", "weeks/week11"),
    "NVLink bandwidth": ("docs/numbers", "weeks/week11", "weeks/week02"),
    "sequence parallelism long context": ("weeks/week08",),
    "FSDP vs DDP": ("weeks/week07", "docs/scaling"),
    "activation checkpointing": ("weeks/week06",),
    "learning rate scaling with batch size": ("weeks/week04",),
    "torchrun two nodes": ("weeks/week12", "weeks/week13"),
    "loss NaN bf16": ("weeks/week06", "docs/troubleshooting"),
    "address already in use": ("docs/troubleshooting",),
    "FSDP": ("weeks/week07",),
    "ZeRO": ("weeks/week07",),
    "CUDA out of memory": ("docs/troubleshooting",),
    "DistributedSampler set_epoch": ("docs/troubleshooting", "weeks/week15"),
    "DeepSpeed ZeRO stage 3": ("weeks/week07",),
    "ChatGPT": ("docs/term",),
    "LLM": ("docs/term",),
    "hardware requirements": ("teaching",),
    "prerequisites": ("schedule", "teaching"),
    "accessibility": ("docs/accessibility",),
    "macOS": ("docs/places",),
}


@pytest.mark.browser
def test_search_has_the_right_page_first_for_most_readers(browser, request):
    if not request.config.getoption("--nightly"):
        pytest.skip("the whole site; give --nightly after `make site`")
    page, places = browser.new_page(), {}
    with server_of(ROOT / "build/site/html") as address:
        for query, right in QUERIES.items():
            page.goto(f"{address}/search.html?q={quote(query)}")
            expect(page.locator(".search-summary")).to_contain_text("Search finished")
            hits = page.locator(PAGES_FOUND).evaluate_all("all => all.map(one => one.pathname.slice(1))")
            places[query] = next((place for place, hit in enumerate(hits, 1) if hit.startswith(right)), 99)
    page.close()
    late = {query: place for query, place in places.items() if place > 1}
    assert len(late) <= 0.12 * len(QUERIES) and sum(place > 3 for place in late.values()) <= 0.03 * len(QUERIES), late


@pytest.mark.browser
def test_paper_has_the_text_and_no_link_to_skip_it(small, visit):
    page, _, _ = visit(small / "weeks/week01_small.html")
    page.emulate_media(media="print")
    assert page.locator("h1").is_visible() and page.locator("#check_twice").is_visible()
    assert not page.locator(".skip-to-content").is_visible()


@pytest.mark.browser
def test_slides_show_what_a_lesson_drew_and_leave_its_text_to_the_speaker(small, visit):
    page, _, said = visit(small / "slides/week01_small.html")
    shown, notes = page.locator(".slides > section"), page.locator("aside.notes")
    expect(shown.nth(0)).to_have_class("present")
    first = shown.nth(0).locator(".page").inner_text().split("\n\n")
    assert first == ["Week 1. A small lesson", "How much is twice two?"]
    assert f"{shown.count()} slides" in notes.nth(0).text_content()
    assert "a link to the lab" in notes.nth(0).text_content() and "you can double" in notes.nth(0).text_content()
    page.keyboard.press("ArrowRight")
    expect(shown.nth(1)).to_have_class("present")
    expect(shown.nth(0)).to_have_class("past")
    questions = shown.nth(1).locator("li").all_inner_texts()
    assert questions == ["twice two (3 or 4 steps): what two and two are", "half of nine (…): half of nine"]
    assert page.locator(".worldsize-frames img").count() == 1 and page.locator(".body input").count() == 0
    assert said == []


@pytest.mark.browser
def test_slides_give_an_exercise_as_students_get_it(small, visit):
    page, _, _ = visit(small / "slides/week01_small.html")
    texts = page.locator(".slides > section .page").evaluate_all("all => all.map(one => one.textContent)")
    twice, half = (text for text in texts if "minutes ·" in text)
    assert "Double a number." in twice and "raise NotImplementedError" in twice
    assert "A colleague halves a number." in half and "return number * 2" in half
    assert not any(hidden in "".join(texts) for hidden in ("number + number", "number / 2", "Half of it is"))


@pytest.mark.browser
def test_slides_split_a_long_table_below_its_head_and_cut_what_has_no_parts(small, visit):
    page, _, _ = visit(small / "slides/week01_small.html")
    tables = page.locator(".body table", has_text="Ranks, computed")
    rows = tables.evaluate_all("all => all.map(one => one.tBodies[0].rows.length)")
    assert sum(rows) == 60 and len(rows) > 1 and max(rows) - min(rows) <= 1
    assert tables.locator("thead").count() == len(rows)
    cut = page.locator("section", has=page.locator(".room.cut"))
    assert cut.count() == 1 and "in the lesson" in cut.text_content()


@pytest.mark.browser
def test_slides_fit_the_screen_and_nothing_covers_text(site, visit):
    decks, wrong = sorted(site.glob("slides/*.html")), {}
    for path in decks:
        page, _, _ = visit(path, 1280)
        wrong |= {f"{path.name}#/{number}": said for number, said in page.evaluate(UNFIT)}
        page.close()
    assert decks and wrong == {}


@pytest.mark.browser
def test_slides_print_one_to_a_page_and_the_speaker_sees_the_notes(small, visit):
    page, _, _ = visit(small / "slides/week01_small.html")
    num_slides = page.locator(".slides > section").count()
    with page.expect_popup() as opened:
        page.keyboard.press("s")
    expect(opened.value.locator(".speaker-controls-notes .value")).to_contain_text(f"{num_slides} slides")
    page, _, _ = visit(small / "slides/week01_small.html", query="?print-pdf")
    expect(page.locator(".pdf-page")).to_have_count(num_slides)


@pytest.mark.browser
def test_a_lesson_links_to_its_slides(small, visit):
    page, _, _ = visit(small / "weeks/week01_small.html")
    page.get_by_role("link", name="Slides of this lesson").click()
    page.wait_for_url("**/slides/week01_small.html**")


@pytest.mark.browser
def test_a_picture_grows_under_a_click_where_it_was_shrunk(small, visit):
    page, _, _ = visit(small / "weeks/week01_small.html", width=390)
    picture = page.locator("article img:visible").first
    picture.scroll_into_view_if_needed()  # before that the browser does not load it
    expect(picture).to_contain_class("can-grow")
    shrunk = picture.bounding_box()["width"]
    picture.click()
    assert picture.bounding_box()["width"] > 2 * shrunk and page.evaluate(OVERFLOWING) <= 0
    picture.click()
    assert picture.bounding_box()["width"] == shrunk


@pytest.mark.browser
def test_the_checklist_keeps_its_marks(small, visit):
    page, _, said = visit(small / "checklist.html")
    page.get_by_label("Self-check of week 1: done").check()
    page.reload()
    assert page.get_by_label("Self-check of week 1: done").is_checked()
    assert not page.get_by_label("Week 1. A small lesson: done").is_checked()
    assert page.locator("input.done").count() > 10 and said == []


@pytest.mark.browser
def test_a_lesson_works_without_a_kernel(small, visit):
    page, _, said = visit(small / "weeks/week01_small.html")
    assert page.locator("p", has_text="A formula").locator("math").count() == 1
    assert "NotImplementedError" in page.locator("#twice").inner_text()
    answer = page.locator("#answer-twice details", has_text="A worked answer")
    assert answer.get_attribute("open") is None and "number + number" in answer.text_content()
    assert "Right: 4." in page.locator("#check_twice").inner_text()  # it was checked, not the cell above it
    explorer = page.locator(".worldsize-frames")
    slider = explorer.get_by_role("slider")
    slider.press("End")
    assert explorer.locator(".frame:visible").count() == 1
    assert "5 billion" in explorer.locator(".frame:visible img").get_attribute("alt")
    assert slider.get_attribute("aria-valuetext") == "5" and page.locator(".question").count() == 5
    assert page.locator(".self-check").evaluate("all => document.body.dataset.jpThemeLight") == "true"
    assert said == []


@pytest.fixture
def extensions():
    """Imports an extension of the site by its name."""
    if not find_spec("docutils"):
        give_up("site", "The packages of the site are not installed: pip install -c constraints.txt -e '.[site]'.")

    def imported(name):
        sys.path.insert(0, str(ROOT / "website"))
        try:
            return import_module(f"extensions.{name}")
        finally:
            sys.path.pop(0)

    return imported


@pytest.fixture
def questions(browser, extensions):
    """The self-checks of all weeks on one page, and their variants in the same order."""
    weeks = sorted(path.stem for path in (ROOT / "quizzes").glob("week*.toml"))
    page = browser.new_page()
    page.set_content("".join(map(extensions("questions").form, weeks)))
    page.add_script_tag(path=ROOT / "website/static/self_check.js")
    yield page.locator(".question"), [variant for week in weeks for variant in quiz.ask(week).variants]
    page.close()


@pytest.mark.browser
def test_the_right_answer_of_every_self_check_is_right_in_the_page(questions):
    forms, variants = questions
    verdicts = forms.evaluate_all(f"forms => forms.map({ANSWER})")
    assert len(verdicts) == len(variants) and set(verdicts) == {"✓ Right."}


@pytest.mark.browser
def test_the_page_marks_other_answers_as_the_library_does(questions):
    forms, variants = questions
    given = [list(attempts(variant.answer)) for variant in variants]
    told = forms.evaluate_all(
        f"(forms, given) => forms.map((form, at) => given[at].map(one => ({TRY})(form, one)))", given
    )
    expected = [[judged(variant, one) for one in each] for variant, each in zip(variants, given, strict=True)]
    assert told == expected
    assert sum(map(len, given)) > 200


def attempts(answer):
    """Answers to try: each option alone, and numbers and words as people type them."""
    match answer:
        case Options():
            yield from range(len(answer.options))
        case Amount():
            texts = [
                f"{answer.value:.10g}",
                f"{answer.value:,.10g}",
                f"{answer.value:.10g} {answer.unit}".strip(),
                "a lot",
            ]
            texts += [f"{answer.value:.10g} {unit}" for unit in (answer.unit.upper(), answer.unit.lower(), "%", "%%")]
            texts += [f"{answer.value:+,.10g}", f"{answer.value:.10g}".replace(".", ",")]
            texts += [f"{mistake.value:.10g}" for mistake in answer.mistakes]
            yield from [*texts, f"{answer.value + 0.9 * answer.tolerance:.12g}", f"{3 * answer.value + 7:.10g}", "1_0"]
        case Phrase():
            yield from [f" {answer.accepted[0].upper()} . ".replace(" .", "."), "something else"]
            yield from [mistake.text for mistake in answer.mistakes]


def judged(variant, response):
    """Whether the library finds an answer right, and how many explanations of it there are."""
    marked = mark_answer(variant.answer, [response] if isinstance(variant.answer, Options) else response)
    num_said = len(marked.feedback) if not any("is not a number" in text for text in marked.feedback) else 0
    return [marked.is_right, num_said]


@pytest.fixture
def calculate(browser, served):
    """Opens a calculator, by default once Python has started in it."""
    contexts = []

    def opened(name, width=1366, held=()):
        contexts.append(browser.new_context(viewport={"width": width, "height": 800}))
        page = contexts[-1].new_page()
        for pattern in held:
            contexts[-1].route(pattern, lambda route: held_routes.append(route))
        page.goto(f"{served}/calculators/{name}.html")
        if not held:
            page.locator(".calculator[data-ready]").wait_for()
        return page

    held_routes = opened.held = []

    yield opened
    for context in contexts:
        context.close()


def calculators():
    """The calculators, as the site imports them."""
    sys.path.insert(0, str(ROOT / "website"))
    try:
        return import_module("calculators.calculator"), import_module("calculators").NAMES
    finally:
        sys.path.pop(0)


def test_browsers_compute_what_the_library_computes(calculate):
    calculator, names = calculators()
    wanted = []
    for name in names:
        controls = calculator.controls(name)
        starts = [control.start for control in controls]
        ends = [[*starts[:place], len(one.options) - 1, *starts[place + 1 :]] for place, one in enumerate(controls)]
        wanted += [(name, places) for places in [starts, *ends]]
    computed = calculate(names[0]).evaluate(
        """(wanted) => Promise.all(wanted.map(([name, places]) => globalThis.calculators("answer", name, places)))""",
        wanted,
    )
    assert len(wanted) > 2 * len(names)
    for (name, places), found in zip(wanted, map(json.loads, computed), strict=True):
        here = json.loads(calculator.answer(name, places))
        assert found.get("html") == here.get("html") and found.get("problem") == here.get("problem"), (name, places)
        assert numbers_of(found.get("chart")) == pytest.approx(numbers_of(here.get("chart")), rel=1e-9), (name, places)


def numbers_of(part):
    """All numbers of a picture's specification, in order."""
    if isinstance(part, dict | list):
        return [number for one in (part.values() if isinstance(part, dict) else part) for number in numbers_of(one)]
    return [part] if isinstance(part, int | float) else []


def test_a_calculator_asks_first_then_answers_and_follows_the_keys(calculate):
    calculator, _ = calculators()
    page = calculate("what_fits")
    controls = page.locator(".controls")
    assert not controls.is_visible() and not page.locator(".answer").is_visible()
    page.get_by_label("Your guess, in GB").fill("16")
    page.get_by_role("button", name="Check").click()
    expect(page.locator(".verdict")).to_have_text(calculator.judge("what_fits", "16"))
    expect(page.locator(".answer strong")).to_have_text(
        "llama-3-8b on 8 GPUs of 80.0 GB fits from ZeRO stage 2 on; perhaps fits with ZeRO stage 1."
    )
    assert page.locator(".picture svg [aria-label]").count() > 4
    controls.get_by_label("GPUs").press("ArrowRight")
    expect(page.locator(".answer strong")).to_have_text(
        "llama-3-8b on 16 GPUs of 80.0 GB fits from ZeRO stage 2 on; perhaps fits with ZeRO stage 1."
    )
    controls.get_by_label("model").select_option("gpt-3-175b")
    expect(page.locator(".answer strong")).to_have_text("gpt-3-175b on 16 GPUs of 80.0 GB does not fit, ZeRO or not.")


def test_a_guess_is_answered_while_python_starts_and_judged_once_it_has(calculate, small):
    calculator, _ = calculators()
    page = calculate("what_fits", held=["**/python_stdlib.zip"])
    expect(page.locator(".state")).to_have_text(re.compile(r"Python is starting in your browser: 1\d of about 15 MB"))
    page.get_by_label("Your guess, in GB").fill("16")
    page.get_by_role("button", name="Check").click()
    expect(page.locator(".verdict")).to_have_text(calculator.reveal("what_fits"))
    expect(page.locator(".answer table")).to_be_visible()
    expect(page.locator(".picture svg").first).to_be_visible()
    (held,) = calculate.held
    held.continue_()
    expect(page.locator(".verdict")).to_have_text(calculator.judge("what_fits", "16"))
    expect(page.locator(".state")).to_have_text("")
    files = ("pyodide*", "python_stdlib.zip", "worldsize.zip")
    loaded = sum(path.stat().st_size for name in files for path in (small / "_static/calculators").glob(name))
    assert round(loaded / 1e6) == 15


def test_a_browser_compiles_no_module_that_it_starts_with(calculate, small):
    with zipfile.ZipFile(small / "_static/calculators/worldsize.zip") as bundle:
        assert "worldsize/units.pyc" in bundle.namelist() and not [n for n in bundle.namelist() if n.endswith(".py")]
    with zipfile.ZipFile(small / "_static/calculators/python_stdlib.zip") as library:
        names = set(library.namelist())
    assert {"dataclasses.pyc", "asyncio/base_events.pyc", "gzip.pyc"} <= names and "dataclasses.py" not in names


@pytest.mark.parametrize("width", WIDTHS)
def test_no_chosen_text_of_a_list_is_cut(visit, small, width):
    cut = {}
    for name in calculators()[1]:
        page, _, _ = visit(small / f"calculators/{name}.html", width)
        cut[name] = page.locator(".controls select").evaluate_all(
            """all => all.flatMap((one) => {
                const pen = document.createElement("canvas").getContext("2d"), style = getComputedStyle(one);
                pen.font = style.font;
                const room = one.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight) - 16;
                const texts = [...one.options].map((option) => option.text);
                return texts.filter((text) => pen.measureText(text).width > room);
            })"""
        )
    assert not any(cut.values()), cut


def test_a_phone_shows_what_fits_without_scrolling(visit, small):
    page, _, _ = visit(small / "calculators/what_fits.html", 390)
    for row in page.locator(".calculator .answer tr").all():
        assert row.locator("th, td").nth(2).bounding_box()["x"] + 40 < 390


def test_traces_are_explained_in_the_page(calculate, tmp_path):
    loading = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    traces = [ends(Trace(rank)).kernel(1, 500).kernel(800, 199, 790) for rank in (0, 1)]
    paths = [trace.host(450, 330, loading, "user_annotation").written(tmp_path) for trace in traces]
    page = calculate("slow_steps")
    page.get_by_label("traces").set_input_files(paths)
    first, _, rest = explain_steps(paths).partition("\n")
    expect(page.locator(".answer strong")).to_have_text(first)
    assert page.locator(".answer pre").inner_text().strip() == rest.strip()
    (tmp_path / "broken.json").write_text("{")
    page.get_by_label("traces").set_input_files([tmp_path / "broken.json"])
    expect(page.locator(".state")).to_contain_text("broken.json: not a whole trace of torch.profiler")
