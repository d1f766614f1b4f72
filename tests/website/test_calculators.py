"""Every calculator answers wherever its controls stand, asks what it answers, and needs the standard library alone."""

import json
import re
import subprocess
import sys

import pytest
from repository import ROOT

sys.path.insert(0, str(ROOT / "website"))

from calculators import NAMES, calculator

ASKING = [name for name in NAMES if calculator.module_of(name).QUESTION]
POSITIONS = [
    (name, place, position)
    for name in NAMES
    for place, control in enumerate(calculator.controls(name))
    for position in {0, len(control.options) // 2, len(control.options) - 1}
]


def at(name, changed=None):
    """The answer at the start, but for one control."""
    places = [control.start for control in calculator.controls(name)]
    if changed:
        places[changed[0]] = changed[1]
    return json.loads(calculator.answer(name, places))


@pytest.mark.parametrize("name", NAMES)
def test_a_page_has_a_title_a_text_and_a_first_answer(name):
    assert re.fullmatch(r"[A-Z][^.]+[?]", calculator.title(name)) and len(calculator.text(name).split()) > 30
    assert at(name)["html"].startswith("<p><strong>")


@pytest.mark.parametrize("name", NAMES)
def test_its_links_lead_somewhere(name):
    links = re.findall(r"\]\(([^)#]+)", calculator.text(name).replace("\n", " "))
    missing = [link for link in links if not (ROOT / "docs" / link).exists() and link.removesuffix(".md") not in NAMES]
    assert links and missing == []


@pytest.mark.parametrize(("name", "place", "position"), POSITIONS)
def test_each_position_has_an_answer_or_a_reason(name, place, position):
    found = at(name, (place, position))
    assert re.fullmatch(r"[^.].*[^.]\.", found["problem"]) if "problem" in found else found["html"] and found["chart"]


@pytest.mark.parametrize("name", ASKING)
def test_a_guess_is_judged(name):
    page = calculator.module_of(name)
    right, unit = page.answer().value, page.QUESTION.unit
    assert right > 0 and page.QUESTION.text.endswith("?")
    assert calculator.judge(name, f"{1.2 * right:g} {unit}").startswith("Close: it is ")
    assert f"your guess is too high by a factor of 3.0. {page.QUESTION.why}" in calculator.judge(name, f"{3 * right}")
    assert "your guess is too low by a factor of 3.0. " in calculator.judge(name, f"{right / 3}")
    assert calculator.judge(name, "-1").startswith("It is ")
    assert calculator.judge(name, "many") == f"Give a number in {unit}."


def test_the_standard_library_is_all_that_they_need():
    program = (
        f"import sys; sys.path[:0] = [{str(ROOT / 'website')!r}, {str(ROOT)!r}]; "
        "from calculators import NAMES, calculator; "
        "[calculator.module_of(name).answer() for name in NAMES]"
    )
    command = [sys.executable, "-I", "-S", "-c", program]  # without any installed package
    assert subprocess.run(command, capture_output=True, text=True).stderr == ""


def test_the_hours_of_the_largest_llama_agree_with_its_model_card():
    """30.84 million for 15.6 trillion tokens: meta-llama/llama-models, models/llama3_1/MODEL_CARD.md (2024)."""
    page = calculator.module_of("training_time")
    hours = [
        page.answer("llama-3-405b", 15.6e12, num_gpus=16384, mfu_percent=percent).value * 24 * 16384
        for percent in (37, 38)
    ]
    assert hours[0] > 30.84e6 > hours[1]


def test_eight_billion_parameters_hold_sixteen_bytes_each():
    page = calculator.module_of("what_fits")
    assert [row[-1] for row in page.answer().rows] == ["173%, no", "67%, perhaps", "50%, yes", "34%, yes"]
    assert page.answer(micro_batch=8).rows[3][-1].endswith(", no")
    rows = {row[0]: row for row in page.answer().rows}
    assert rows["none"][1:4] == ["16.1 GB", "16.1 GB", "96.4 GB"], "2, 2 and 12 bytes of 8.03 billion parameters"
    assert rows["stage 1"][3] == "12.0 GB", "an eighth of the optimizer state"
    with pytest.raises(ValueError, match="has 8 key/value heads; 16 ranks cannot share them evenly"):
        page.answer(tp=16)
