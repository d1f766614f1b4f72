import pytest
from hypothesis import given
from hypothesis import strategies as st

from autograder.authoring.hunks import HunkError, apply_hunks, make_hunks, without_docstrings

LINES = st.sampled_from(
    ["", "    return total", "    total = 0", "@@", "-", "+ 1", " ", "    for value in values:", "x = 1"]
)
TEXTS = st.lists(LINES, max_size=12).map(lambda lines: "\n".join([*lines, "the end"]))
TEXT = "def mean(values):\n    total = 0\n    for value in values:\n        total += value\n\n    return total"


@st.composite
def edited(draw):
    """A text and the same after a few edits."""
    old = draw(TEXTS)
    lines = old.split("\n")
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(lines)))
        end = draw(st.integers(start, min(start + 3, len(lines))))
        lines[start:end] = draw(st.lists(LINES, max_size=3))
    return old, "\n".join(lines)


@given(edited())
def test_hunks_of_an_edit_give_the_edited_text(texts):
    old, new = texts
    hunks = make_hunks(old, new)
    assert apply_hunks(old, hunks) == new
    assert (not hunks) == (old == new)


@given(edited())
def test_empty_lines_after_the_hunks_change_nothing(texts):
    old, new = texts
    assert apply_hunks(old, [*make_hunks(old, new), "", ""]) == new


def test_a_hunk_shows_one_line_around_a_change_and_more_only_where_that_is_not_unique():
    assert make_hunks(TEXT, TEXT.replace("+= value", "+= 1")) == [
        "@@",
        "     for value in values:",
        "-        total += value",
        "+        total += 1",
        "",
        "     return total",
    ]
    twice = "a\nb\nc\na\nb\nd"
    assert make_hunks(twice, "a\nb\nc\na\nB\nd") == ["@@", " a", "-b", "+B", " d"]
    assert make_hunks("1\n\na\nb\nc\n2\na\nb\nc", "1\n\na\nb\nc\n2\na\nB\nc") == ["@@", " 2", " a", "-b", "+B", " c"]


BROKEN = {
    "text that is not there": (["@@", "-    total = 1"], 0, "matches nowhere, there is no line `total = 1`"),
    "lines in another order": (["@@", " def mean(values):", "-    return total"], 0, "do not follow each other"),
    "two places": (["@@", " a", "+b"], 0, "hunk 1 matches 2 places: give it more lines of context"),
    "no context": (["@@", "+b"], 0, "places: give it more lines of context"),
    "the second hunk": (["@@", "-    total = 0", "", "@@", "-nowhere"], 3, "hunk 2 matches nowhere"),
    "overlapping": (
        ["@@", "-    total = 0", "@@", " def mean(values):", "     total = 0", "+x"],
        0,
        "overlaps another",
    ),
    "nothing changed": (["@@", " def mean(values):"], 0, "changes nothing"),
    "no separator": (["", "-    total = 0"], 1, "must begin with a line `@@`"),
    "no sign": (["@@", "    total = 0".strip()], 1, "a space, `-` or `+`"),
}


@pytest.mark.parametrize(("hunks", "line", "sentence"), BROKEN.values(), ids=BROKEN)
def test_what_does_not_fit_is_refused_with_its_line(hunks, line, sentence):
    with pytest.raises(HunkError) as caught:
        apply_hunks(f"{TEXT}\na\na", hunks)
    assert (caught.value.line, sentence in str(caught.value)) == (line, True), str(caught.value)


def test_docstrings_go_and_other_strings_stay():
    source = '''\
class Mean:
    """A mean.

    Of numbers.
    """

    name = "mean"

    def value(self):
        """Its value."""
        return """not
a docstring"""'''
    bare = source.replace('    """A mean.\n\n    Of numbers.\n    """\n\n', "").replace(
        '        """Its value."""\n', ""
    )
    assert without_docstrings(source) == bare
    assert without_docstrings("Because it is.") == "Because it is."
