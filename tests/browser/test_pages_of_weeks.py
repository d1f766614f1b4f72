"""Every week: its page without kernel and network, in one or the other colour scheme; explorers under keys."""

import itertools
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import expect
from repository import ROOT

from autograder.authoring.notebooks import notebook
from autograder.authoring.scripts import parse, read_week
from worldsize.pages import LessonExporter

pytestmark = pytest.mark.browser
WEEKS = sorted(path.stem for path in (ROOT / "weeks").glob("week*.py"))
LEFT = """() => [...document.querySelectorAll('.jp-RenderedMarkdown')].filter(text => {
    const words = text.cloneNode(true);
    words.querySelectorAll('code, pre, math').forEach(part => part.remove());
    return words.innerText.includes('$');
}).length"""
CUT = """() => [...document.querySelectorAll('.jp-Cell *')].filter(part =>
    part.getBoundingClientRect().right > innerWidth ||
    part.clientWidth && part.scrollWidth > part.clientWidth + 2 && getComputedStyle(part).overflowX != 'visible'
).map(part => `${part.tagName}: ${part.innerText.slice(0, 80)}`)"""


@pytest.mark.parametrize(("week", "theme"), zip(WEEKS, itertools.cycle(["light", "dark"])))
def test_page_of_a_week_needs_no_network_and_cuts_nothing(browser, root, tmp_path, week, theme):
    script = root / "weeks" / f"{week}.py"
    lesson = notebook(read_week(script), graded=False)
    words = "".join(cell.source for cell in lesson.cells if cell.cell_type == "markdown")
    path = tmp_path / f"{theme}.html"
    path.write_text(LessonExporter(theme=theme).from_notebook_node(lesson)[0], encoding="utf-8")
    context = browser.new_context(viewport={"width": 1366, "height": 768}, offline=True)
    page, asked = context.new_page(), []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    assert page.locator("math").count() > 0 or "$" not in words
    assert page.evaluate(LEFT) == 0
    for answer in page.locator("details").all():
        answer.evaluate("answer => { answer.open = true }")
    assert page.evaluate(CUT) == []
    context.close()


@pytest.fixture
def scratch(open_notebook, lab):
    """An empty notebook."""
    empty = nbformat.v4.new_notebook(metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}})
    nbformat.write(empty, lab.course / "weeks" / "explorers.ipynb")
    return open_notebook("weeks/explorers.ipynb")


def test_explorers_follow_the_keys_and_show_what_they_say(scratch, root, screenshots):
    """The explorers alone, without the runs before them; week 6's gradients are invented."""
    formats, fits = cells(root, "week06_precision_and_activations"), cells(root, "week07_zero_and_fsdp")

    scratch.wait_for(
        scratch.add_and_start(fits["setup"] + "\n" + fits["stages"].replace("cluster=", "cluster='dgx-a100', #"))
    )
    scratch.wait_for(scratch.add_and_start(fits["milestones"].partition("\ndef milestone")[0] + fits["what_fits"]))
    out = explored(scratch, fits["fits"])
    out.locator("select").select_option(label="llama-3-70b")
    out.get_by_label("recomputes").check()
    ranks = out.locator(".widget-slider", has_text="num_ranks").get_by_role("slider")
    ranks.press("ArrowRight")
    expect(out).to_contain_text("Fits into 80 GB: nothing.")
    ranks.press("ArrowRight")
    expect(out).to_contain_text("Fits into 80 GB: ZeRO-3.")  # as the lesson's answer says, from 32 on
    out.screenshot(path=screenshots / "what_fits.png")

    invented = "GRADIENTS = {name: 2.0 ** (-22 + torch.randn(9999)) for name in ('logits', 'residuals')}"
    source = [formats["setup"].partition("\npredictions")[0], formats["formats"], formats["formats_table"]]
    lost = formats["gradients"][formats["gradients"].index("def lost_fraction") :].partition("\n\n\n")[0]
    scratch.wait_for(scratch.add_and_start("\n".join([*source, lost, invented, formats["formats_drawn"]])))
    out = explored(scratch, formats["formats_explored"])
    scale = out.get_by_role("slider").first
    expect(out.get_by_alt_text("FP8 E4M3: 100.0% lost").first).to_be_visible()
    scale.press("End")
    expect(out.get_by_alt_text("FP8 E4M3: 0.0% lost").first).to_be_visible()
    out.screenshot(path=screenshots / "formats.png")


def test_explorers_of_weeks_8_and_9_follow_the_keys(scratch, root, screenshots):
    """The explorers alone, with those lines of the cells before them that they need."""
    tensor, pipeline = cells(root, "week08_tensor_parallelism"), cells(root, "week09_pipeline_parallelism")

    scratch.wait_for(scratch.add_and_start(tensor["setup"].partition("\nPath(")[0] + "\n" + tensor["where_it_pays"]))
    out = explored(scratch, tensor["explored"])
    expect(out).to_contain_text("Fastest on 16 ranks; at least half of each GPU is used up to 8.")
    out.get_by_role("slider").first.press("Home")  # fewest tokens
    expect(out).to_contain_text("Fastest on 8 ranks; at least half of each GPU is used up to 2.")
    out.locator("select").first.press("Home")
    expect(out).to_contain_text("Fastest on 1 rank; at least half of each GPU is used up to 1.")
    out.screenshot(path=screenshots / "where_it_pays.png")

    lines = [*pipeline["first_stage"].splitlines(), *pipeline["zero_bubble_rows"].splitlines()]
    needed = [line for line in lines if line.startswith(("LLAMA =", "layer_bytes =", "THIRDS_S ="))]
    source = [pipeline["parameters"], pipeline["setup"].partition("\npredictions")[0], pipeline["model"]]
    source += [pipeline[name].partition("\n\n\ntable")[0] for name in ("actions", "player", "held_at_peak")]
    source += [*needed, "input_bytes = 2 * LLAMA.context_length * LLAMA.width"]
    source += ['EMULATED = {"cluster": cluster, "echo": False}', *map(pipeline.get, ("torchs_order", "torchs_rows"))]
    scratch.wait_for(scratch.add_and_start("\n".join([*source, pipeline["explored"]])))
    out = explored(scratch, pipeline["explore"])
    expect(out).to_contain_text("2.91 times one GPU's work at a time; every rank fits into 80 GB.")
    schedule = out.locator("select").first
    schedule.press("Home")
    expect(out).to_contain_text("2.91 times one GPU's work at a time; 0 of 4 ranks fit into 80 GB.")
    schedule.press("End")
    expect(out.get_by_alt_text("zero bubble in a V, computed").first).to_be_visible()
    out.get_by_label("recomputes").press("Space")
    expect(out).to_contain_text("every rank fits into 80 GB.")
    out.screenshot(path=screenshots / "schedules.png")


def cells(root: Path, week: str) -> dict[str, str]:
    """The source of a week's code cells, by title."""
    return {cell.title: cell.source for cell in parse(root / "weeks" / f"{week}.py").cells if cell.kind == "code"}


def explored(page, source: str):
    """The output of a new cell with this source, which shows an explorer."""
    page.wait_for(page.add_and_start(source))
    out = page.code_cells.last.locator(".jp-OutputArea").first
    expect(out.locator(".worldsize-explorer").first).to_be_visible()
    return out
