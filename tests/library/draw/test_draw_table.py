"""Tables: numbers in their units, absent values, rows that stand out, and nothing that a page would read as HTML."""

import numpy as np
import pytest
import torch

from worldsize import draw

ROWS = [
    {"plan": "a", "step_s": 3.2, "held_bytes": 64e9, "is_best": True},
    {"plan": "b<c", "step_s": 0.32, "mfu_fraction": 0.41, "is_best": False},
]


def test_numbers_are_shown_in_the_unit_of_their_column():
    table = draw.table(ROWS, title="Two plans", note="one line\nanother", marked=[1])
    assert str(table).splitlines() == [
        "Two plans",
        "plan    step   held  is best  mfu",
        "a      3.2 s  64 GB  yes",
        "b<c   320 ms         no       41%  ←",
        "one line",
        "another",
    ]
    assert repr(table) == str(table)


def test_rows_of_values_have_the_columns_that_are_named():
    columns = ("plan", "step_s", "mfu_fraction")
    assert draw.table([("a", 3.2, None), ["b", 0.32, 0.41]], columns=columns) == draw.table(
        [{"plan": "a", "step_s": 3.2, "mfu_fraction": None}, {"plan": "b", "step_s": 0.32, "mfu_fraction": 0.41}]
    )
    with pytest.raises(ValueError, match=r"A row needs 3 values, for plan, step_s, mfu_fraction.*\('a', 3.2\)"):
        draw.table([("b", 0.32, 0.41), ("a", 3.2)], columns=columns)


def test_notebooks_show_a_table_with_heads_a_caption_and_escaped_text():
    bundle = draw.table(ROWS, title="Two & more", note="a < b", marked=[0])._repr_mimebundle_()
    assert bundle["text/plain"].startswith("Two & more")
    html = bundle["text/html"]
    assert "<caption" in html and "Two &amp; more</caption>" in html and "<p>a &lt; b</p>" in html
    assert (
        '<th scope="col" style="text-align: right; padding: 2px 8px">step</th>' in html
        and "b&lt;c" in html
        and "b<c" not in html
    )
    assert html.count("<tr") == 3 and html.count("font-weight: bold") == 1


def test_a_number_stays_on_one_line_with_its_unit():
    html = draw.table(ROWS)._repr_html_()
    assert html.count("white-space: nowrap") == 3 * len(ROWS)
    assert '<td style="text-align: right; white-space: nowrap; padding: 2px 8px">320 ms</td>' in html


def test_times_around_a_minute_are_seconds_but_long_ones_are_not():
    cells = draw.table([{"step_s": 58.7}, {"step_s": 61}, {"step_s": None}, {"step_s": 7200}]).cells
    assert cells == (("58.7 s",), ("61.0 s",), ("",), ("2 h",))
    assert draw.table([{"step_s": 90}, {"step_s": 120}]).cells == (("1.5 min",), ("2 min",))


def test_bytes_of_a_column_are_all_powers_of_two_or_all_decimal():
    sizes = [{"held_bytes": size} for size in (2**20, 3 * 2**19, 0, 512)]
    assert [cell for (cell,) in draw.table(sizes[:1]).cells] == ["1 MiB"]
    assert [cell for (cell,) in draw.table(sizes).cells] == ["1.05 MB", "1.57 MB", "0 B", "512 B"]
    rates = [{"link_bytes_per_s": rate} for rate in (2**20, 2e6, 512)]
    assert [cell for (cell,) in draw.table(rates).cells] == ["1.05 MB/s", "2 MB/s", "512 B/s"]
    assert [cell for (cell,) in draw.table([{"held_bytes": 2**16}, {"held_bytes": None}]).cells] == ["64 KiB", ""]


@pytest.mark.parametrize("name", ["_s", "s", "flops", "num_layers"])
def test_a_name_that_is_only_a_unit_or_has_none_stays(name):
    assert draw.table([{name: 2}]).columns == (name.replace("_", " "),)


@pytest.mark.parametrize(
    ("rows", "marked", "message"),
    [([], (), "give \\[{column: value"), ([{}], (), "no table"), (ROWS, [2], "no row 2 to mark.*0 to 1")],
)
def test_what_is_no_table_is_refused(rows, marked, message):
    with pytest.raises(ValueError, match=message):
        draw.table(rows, marked=marked)


@pytest.mark.parametrize("kind", [np.float32, np.float64, torch.tensor])
def test_numbers_of_numpy_and_torch_have_their_unit(kind):
    table = draw.table([{"step_s": kind(0.0032), "note": "a"}, {"step_s": kind(0.0041), "note": "b"}])
    assert [row[0] for row in table.cells] == ["3.2 ms", "4.1 ms"] and table.is_number == (True, False)


def test_whole_numbers_and_truth_values_of_numpy_and_torch_are_shown_as_pythons():
    rows = [{"size_bytes": np.int64(65536), "is_best": np.bool_(True)}]
    rows += [{"size_bytes": torch.tensor(65536), "is_best": torch.tensor(False)}]
    assert draw.table(rows).cells == (("64 KiB", "yes"), ("64 KiB", "no"))


def test_the_first_column_may_name_the_rows_and_columns_may_have_no_names():
    html = draw.Table(("", ""), (("a<b", "1"),), (False, True), has_row_heads=True)._repr_html_()
    assert "<thead" not in html and html.count('<th scope="row"') == 1 and "a&lt;b</th>" in html
    assert (
        str(draw.Table(("", ""), (("a", "1"), ("b", "20")), (False, True), marked=frozenset({1}))) == "a   1\nb  20  ←"
    )
