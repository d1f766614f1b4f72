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


def hours_of_llama_3_405b(percent):
    """The GPU-hours by both definitions of the MFU."""
    found = calculator.module_of("training_time").answer("llama-3-405b", 15.6e12, num_gpus=16384, mfu_percent=percent)
    (row,) = (row for row in found.rows if row[0] == "GPU-hours")
    return [float(cell.removesuffix("M")) for cell in row[1:]]


def test_the_hours_of_the_largest_llama_agree_with_its_model_card():
    """30.84 million for 15.6 trillion tokens: meta-llama/llama-models, models/llama3_1/MODEL_CARD.md (2024)."""
    assert hours_of_llama_3_405b(37)[1] > 30.84 > hours_of_llama_3_405b(38)[1]
    assert hours_of_llama_3_405b(34)[0] > 30.84 > hours_of_llama_3_405b(35)[0]


def test_the_days_are_those_of_week_1_and_both_definitions_are_named():
    page = calculator.module_of("training_time")
    found = page.answer("llama-3-405b", 15.6e12, num_gpus=16384)
    assert found.value == pytest.approx(67.7 * page.shapes.shape("llama-3-405b").num_parameters / 405e9, rel=1e-3)
    assert "67.8 days" in found.sentence and "by 6ND, as in week 1, and 73.1 days" in found.sentence
    assert "8,192 tokens" in found.sentence and page.LABELS["length"] == "tokens per sequence"
    longer = page.answer("llama-3-405b", 15.6e12, num_gpus=16384, length=32768)
    assert longer.value == found.value and "73.1 days" not in longer.sentence


def test_the_guess_that_week_1_teaches_is_right():
    by_hand = 6 * 70.6e9 * 15e12 / (1024 * 989e12 * 0.4) / 86400
    said = calculator.judge("training_time", f"{by_hand:.0f} days")
    assert said.startswith("Close: it is 181 days.") and "counts attention too, it is 206 days" in said


def test_a_number_and_its_unit_stay_on_one_line():
    html = at("what_fits")["html"]
    assert "138\N{NO-BREAK SPACE}GB" in html and "stage\N{NO-BREAK SPACE}1" in html
    assert "8,\N{NO-BREAK SPACE}4,\N{NO-BREAK SPACE}8" in at("layouts")["html"]


def test_the_verdict_is_at_the_left_of_a_narrow_table():
    assert calculator.module_of("what_fits").answer().columns[:3] == ("ZeRO", "of the GPU's memory", "total")


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ({}, "fits from ZeRO stage 2 on; perhaps fits with ZeRO stage 1"),
        ({"gpu": "b200-ndr"}, "fits from ZeRO stage 1 on; perhaps fits without ZeRO"),
        ({"gpu": "b200-ndr", "tp": 2}, "fits without ZeRO"),
        ({"gpu": "b200-ndr", "model": "llama-3-70b"}, "hardly fits with ZeRO stage 3"),
        ({"model": "gpt-3-175b"}, "does not fit, ZeRO or not"),
    ],
)
def test_what_fits_says_so_in_the_words_of_the_table(chosen, said):
    found = calculator.module_of("what_fits").answer(**chosen)
    assert found.sentence.endswith(f" {said}.")


def test_eight_billion_parameters_hold_sixteen_bytes_each():
    page = calculator.module_of("what_fits")
    words = ["173%, no", "67%, perhaps", "50%, yes", "34%, yes"]
    assert [row[1] for row in page.answer().rows] == words
    assert page.answer(micro_batch=8).rows[3][1].endswith(", no")
    rows = {row[0]: row for row in page.answer().rows}
    assert rows["none"][3:6] == ["16.1 GB", "16.1 GB", "96.4 GB"], "2, 2 and 12 bytes of 8.03 billion parameters"
    assert rows["stage 1"][5] == "12.0 GB", "an eighth of the optimizer state"
    with pytest.raises(ValueError, match="has 8 key/value heads; 16 ranks cannot share them evenly"):
        page.answer(tp=16)
