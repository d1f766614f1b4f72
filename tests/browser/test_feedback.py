"""A student's page of feedback in a browser: in light and dark, by keyboard alone, on paper, with no network."""

import base64

import pytest
from feedback_pages import answer, check, graded, html
from nbformat.v4 import new_markdown_cell

from autograder.judging.report import Drawing, Outcome
from worldsize.draw.contrast import bars

pytestmark = pytest.mark.browser
HOSTILE = """\
# Mine <script>document.title = "owned"</script>

<img src=x onerror="document.title='owned'"> [here](javascript:document.title='owned')
<style>body { background: url(http://evil.example/x) }</style> ![far](http://evil.example/p.png)
"""
CONTRASTS = """() => {
    const parse = text => text.match(/[\\d.]+/g).map(Number);
    const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
        .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    const ground = element => {
        for (; element; element = element.parentElement) {
            const colour = parse(getComputedStyle(element).backgroundColor);
            if (colour.length == 3 || colour[3] > 0) return colour;
        }
        return [255, 255, 255];
    };
    const texts = [...document.querySelectorAll("body *")].filter(element => element.checkVisibility()
        && [...element.childNodes].some(node => node.nodeType == 3 && node.data.trim()));
    return texts.map(element => {
        const [a, b] = [light(parse(getComputedStyle(element).color)), light(ground(element))].sort((x, y) => y - x);
        return [(a + 0.05) / (b + 0.05), element.tagName + " " + element.textContent.slice(0, 40)];
    });
}"""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """A page with every outcome, a picture, a comment, and a hostile student's Markdown."""
    wanted = {"rank 0": 0.25, "rank 1": 0.75}
    drawn = bars(wanted, {"rank 0": 1.0, "rank 1": 1.0}, "What the result on rank 0 is made of", "weight in the sum")
    picture = Drawing(png=base64.b64encode(drawn.png()).decode(), alt=drawn.alt)
    checks = [check(f"This is {one.value}.", one) for one in Outcome if one is not Outcome.FAULT]
    checks[1] = check("The gradient is weighted.", Outcome.WRONG, "Expected: 1. Got: 2.", picture=picture)
    code = "import torch\n\nclass A:  # a comment\n    def f(self): return f'{1:g}' + 'text' * 3.5 @ None"
    cells = [new_markdown_cell(HOSTILE), answer(code, "Nearly: *weigh* them."), graded("check_total", score=2.0)]
    path = tmp_path_factory.mktemp("feedback") / "lab01.html"
    path.write_text(html([*cells, graded("why", solution=True, is_waiting=True)], *checks), encoding="utf-8")
    return path


@pytest.fixture(params=["light", "dark"])
def opened(request, browser, file):
    """The page in one colour scheme, what it asked for, and what the browser complained about."""
    page = browser.new_context(viewport={"width": 1280, "height": 800}, color_scheme=request.param).new_page()
    asked, said = [], []
    page.on("request", lambda one: asked.append(one.url))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: said.append(dialog.message))
    page.goto(file.as_uri())
    yield page, asked, said, request.param
    page.context.close()


def test_it_reads_well_and_asks_for_nothing(opened, file, screenshots):
    page, asked, said, scheme = opened
    page.screenshot(path=screenshots / f"feedback_{scheme}.png", full_page=True)
    assert {url for url in asked if not url.startswith("data:")} <= {file.as_uri(), file.with_name("x").as_uri()}
    assert said == [] and page.title() == "sums: feedback for ada"
    assert page.locator("img[src^='data:']").evaluate("image => image.naturalWidth") > 300
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    faint = [f"{ratio:.1f} {what}" for ratio, what in page.evaluate(CONTRASTS) if ratio < 4.5]
    assert faint == []


def test_a_keyboard_is_enough(opened):
    page, *_ = opened
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("location.hash") == "#todo"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "The gradient is weighted."
    page.keyboard.press("Enter")
    target = page.locator("#check_total-2")
    assert page.evaluate("location.hash") == "#check_total-2"
    assert target.evaluate("one => one.getBoundingClientRect().top < innerHeight")


def test_it_prints_on_few_pages_in_ink_on_paper(opened, screenshots):
    page, *_ = opened
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    printed = page.pdf(path=screenshots / "feedback.pdf", format="A4")
    assert 1 <= printed.count(b"/Type /Page\n") + printed.count(b"/Type /Page ") <= 5
