"""The page of feedback: what it says, and that nothing on it runs, loads, or gives a hidden thing away."""

import base64
import re

import html5lib
import pytest
from feedback_pages import answer, check, graded, html
from nbformat.v4 import new_code_cell, new_markdown_cell, new_raw_cell

from autograder.judging.report import Drawing, Outcome, Report

SKIP = f"{Outcome.SKIPPED.sentence} Fix this one first: B holds."
PNG = base64.b64encode(b"a picture").decode()


def section(page, name):
    """The words below a heading of the page."""
    soup = html5lib.parse(page, namespaceHTMLElements=False)
    (found,) = [one for one in soup.iter("section") if one.get("aria-labelledby") == name]
    return " ".join("".join(found.itertext()).split())


def test_the_score_tells_its_parts_and_what_is_still_to_come():
    cells = [
        graded("check_total", score=3.5, by_hand=False, extra_credit=0.5),
        graded("why", solution=True, score=2, by_hand=True),
        graded("how", solution=True, by_hand=False, is_waiting=True),
    ]
    told = section(html(cells, score=4.5, max_score=12, late_penalty=1), "score")
    assert "4.5 of 12 points" in told and "3 from the checks" in told and "2.5 by your instructor" in told
    assert "1 answer is still to be read by your instructor" in told and "−1 because it came late" in told


@pytest.mark.parametrize("outcome", [one for one in Outcome if one is not Outcome.FAULT])
def test_every_outcome_is_told_in_words(outcome):
    told = section(html([graded("check_total")], check("It holds.", outcome)), "table")
    assert f"It holds. {outcome.value}" in told
    assert (outcome.sentence in told) == (outcome is not Outcome.PASSED)
    assert "✓" in told if outcome is Outcome.PASSED else "✓" not in told


def test_the_next_thing_to_do_is_the_first_check_of_the_notebook_that_failed():
    checks = [
        check("A holds.", Outcome.WRONG, "Expected: 1. Got: 2."),
        check("B holds.", Outcome.CRASHED, "Rank 0: ZeroDivisionError", name="check_b"),
        check("C holds.", Outcome.SKIPPED, SKIP, blocked_by="check_b"),
    ]
    told = section(html([graded("check_total")], *checks), "todo")
    assert "Begin with this one: A holds." in told and "Expected: 1. Got: 2." in told
    assert "depends on it" not in told and "Then one other check is left" in told
    told = section(html([graded("check_total")], *checks[1:]), "todo")
    assert "Begin with this one: B holds." in told and "One more check depends on it." in told


def test_the_order_is_that_of_the_notebook_and_not_that_of_the_checks():
    checks = [
        check("The mean holds.", Outcome.CRASHED, name="check_of_mean", cell="check_mean"),
        check("The total holds.", Outcome.NOT_WRITTEN, name="check_of_total"),
    ]
    told = section(html([graded("check_total"), graded("check_mean")], *checks), "todo")
    assert "Begin with this one: The total holds. The function that this is about is not written yet." in told


def test_a_note_on_what_was_read_stands_with_the_score():
    record = Report(checks=[], tier="these walls", seed=1, duration_s=0, notes=["Graded from <b>a</b>.ipynb."])
    page = html([graded("check_total")], record=record.model_dump(mode="json"))
    assert "Graded from <b>a</b>.ipynb." in section(page, "score") and "<b>a</b>" not in page


def test_a_promise_that_is_part_of_another_is_not_taken_for_it():
    checks = [
        check("It holds.", Outcome.PASSED, name="check_a"),
        check("First. It holds.", Outcome.WRONG, name="check_b"),
        check(
            "C holds.", Outcome.SKIPPED, "Fix this one first: First. It holds.", name="check_c", blocked_by="check_b"
        ),
    ]
    text = section(html([graded("check_total")], *checks), "todo")
    assert "Begin with this one: First. It holds." in text and "One more check depends on it." in text


def test_links_of_the_summary_lead_to_their_places():
    page = html([answer(), graded("check_total")], check("A holds.", Outcome.WRONG), check("B.", Outcome.PASSED))
    ids = re.findall(r'\bid="([^"]+)"', page)
    links = re.findall(r'href="#([^"]+)"', page)
    assert set(links) <= set(ids) and len(ids) == len(set(ids)) and {"check_total-1", "check_total-2"} <= set(links)


def test_a_student_who_has_it_all_is_told_so():
    assert "Nothing is left to do" in section(html([graded("check_total")], check("A.", Outcome.PASSED)), "todo")


def test_a_student_who_lost_points_by_hand_is_led_there():
    cells = [graded("check_total"), graded("why", solution=True, points=2, score=1, by_hand=True)]
    page = html(cells, check("A.", Outcome.PASSED))
    assert "Your instructor graded why below its full points: read the comments there." in section(page, "todo")
    assert 'href="#why"' in page and 'id="why"' in page


def test_a_student_who_left_a_text_as_it_was_is_told_so():
    cells = [graded("check_total"), graded("why", solution=True, points=2, score=0)]
    told = section(html(cells, check("A.", Outcome.PASSED)), "todo")
    assert "You left why unanswered: 0 of 2." in told and "instructor" not in told


def test_a_malformed_submission_has_a_page_of_its_own():
    page = html([answer("the release's text"), graded("check_total")], record={"malformed": "It is <b>damaged</b>."})
    assert "Your file could not be read" in section(page, "todo") and "It is <b>damaged</b>." in section(page, "todo")
    assert "the release's text" not in page and 'id="table"' not in page


def test_a_fault_of_the_grader_is_not_the_students():
    told = section(html([graded("check_total")], check("A holds.", Outcome.FAULT, "KeyError: 'secret'")), "todo")
    assert "The grader broke; this is not your fault." in told and "Begin with" not in told


def test_a_notebook_without_our_record_still_shows_its_points():
    page = html([graded("check_total", score=3)], record={"checks": "none of ours"})
    assert "3 of 4" in section(page, "table")


def test_a_picture_is_shown_with_its_words():
    drawing = Drawing(png=PNG, alt='Bars "of" <rank> 0')
    page = html([graded("check_total")], check("A holds.", Outcome.WRONG, picture=drawing))
    (picture,) = html5lib.parse(page, namespaceHTMLElements=False).iter("img")
    assert picture.get("alt") == 'Bars "of" <rank> 0' and picture.get("src") == f"data:image/png;base64,{PNG}"


def test_a_picture_that_is_none_is_refused():
    with pytest.raises(ValueError, match="png"):
        Drawing(png='" onerror="alert(1)', alt="")


HOSTILE = ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "</title></style><svg onload=alert(1)>"]


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("place", ["student", "notebook", "assignment", "id", "promise", "message", "malformed", "raw"])
def test_no_text_of_a_stranger_becomes_a_part_of_the_page(place, text):
    def page(said):
        names = {place: said} if place in ("student", "notebook", "assignment") else {}
        cell = said if place == "id" else "check_total"
        cells = [answer(said), graded(cell), new_raw_cell(said if place == "raw" else "raw"), new_code_cell(said)]
        one = check(said if place == "promise" else "A", Outcome.WRONG, said, cell)
        return html(cells, one, record={"malformed": said} if place == "malformed" else None, **names)

    assert tags(page(text)) == tags(page("plain"))


def tags(page):
    """Every element of a page with its attributes' names, in order, but for the colours of code."""
    soup = html5lib.parse(page, namespaceHTMLElements=False)
    return [(one.tag, sorted(one.attrib)) for one in soup.iter() if one.tag != "span"]


def test_outputs_of_cells_are_never_shown():
    cell = graded("check_total")
    cell.outputs = [{"output_type": "execute_result", "data": {"text/html": "<b>1000</b>", "text/plain": "1000"}}]
    cell.outputs[0] |= {"metadata": {}, "execution_count": None}
    assert "1000" not in html([cell], check("A holds.", Outcome.PASSED))


def test_the_page_asks_for_nothing_and_forbids_what_would():
    page = html([answer(comment="Well *done*"), graded("check_total")], check("A holds.", Outcome.WRONG))
    assert "default-src &#x27;none&#x27;" in page or "default-src 'none'" in page
    assert "<script" not in page and "http://" not in page and "https://" not in page and "@import" not in page
    assert "check_secret" not in page
    assert page.startswith("<!DOCTYPE html>") and '<html lang="en">' in page and "<em>done</em>" in page


def test_headings_of_a_notebook_stand_below_those_of_the_page():
    page = html([new_markdown_cell("# Lab 1\n\n##### Deep\n\n`<h1>`")])
    found = [
        one.tag for one in html5lib.parse(page, namespaceHTMLElements=False).iter() if re.fullmatch(r"h\d", one.tag)
    ]
    assert found.count("h1") == 1 and found[-2:] == ["h3", "h6"]
    assert "&lt;h1&gt;" in page
