"""Week 2 runs unattended from its script: real messages, exact formulas on emulated clusters, nothing on stderr."""

import json
import re

import pytest
from executed import assert_figures_have_words, assert_quiet, stream, week_outputs, words
from repository import ROOT

from worldsize import quiz

pytestmark = pytest.mark.slow

SCRIPT = ROOT / "weeks" / "week02_all_reduce_from_scratch.py"
TURNS = ("tree_step", "least_sent_bytes", "overtakes_bytes", "bus_bytes_per_s", "times_of_all")
SLIPS = {
    "tree_step": (
        """
def tree_step(rank, step, num_ranks):
    if rank < 2**step:
        return "send", rank + 2**step
    return ("recv", rank - 2**step) if rank < 2 * 2**step else (None, None)
""",
        "rank 2 of 6 in step 2 to return (None, None)",
    ),
    "least_sent_bytes": (
        """
def least_sent_bytes(collective, num_ranks, size_bytes):
    return 2 * (num_ranks - 1) / num_ranks * size_bytes
""",
        "the bytes of a reduce-scatter of 100 MB on 8 ranks to be 8.75e+07",
    ),
    "overtakes_bytes": (
        """
def overtakes_bytes(num_ranks, alpha_s, beta):
    return num_ranks * alpha_s * beta
""",
        "the size for 8 ranks on NVLink 4",
    ),
    "bus_bytes_per_s": (
        """
def bus_bytes_per_s(size_bytes, time_s, num_ranks):
    return size_bytes / time_s
""",
        "the bus bandwidth of 1 GB in 10 ms on 8 ranks to be 1.75e+11",
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder in which the week has run."""
    return tmp_path_factory.mktemp("week02")


@pytest.fixture(scope="module")
def outputs(folder):
    """The outputs of every code cell by the cell's id, after one run of the whole week."""
    return week_outputs(SCRIPT, folder, "predicted_ring_mb = 100")


def rows_of(outputs):
    """The cells of a table's rows, as text."""
    return [re.split(r"  +", line.strip()) for line in words(outputs).splitlines()[2:]]


def test_nothing_warns_and_every_figure_has_words(outputs):
    assert_quiet(outputs)
    assert_figures_have_words(outputs, 8)


@pytest.mark.parametrize("name", TURNS)
def test_worked_answers_are_right(outputs, name):
    assert "Right" in stream(outputs[f"check_{name}"])


def test_the_bug_is_found_in_an_untouched_week(untouched):
    said = words(untouched.outputs["check_times_of_all"])
    assert "the times that rank 0 returns to be 0.52 at element 2 (3 of 4 differ)" in said
    assert "the list holds one tensor several times" in said


@pytest.mark.parametrize("turn", SLIPS)
def test_plausible_slips_are_caught(untouched, turn):
    answer, said = SLIPS[turn]
    (shown,) = untouched.shown_for([answer], turn)
    assert "Not yet" in shown and said in shown


def test_rank_0_carries_everything_and_pairs_send_the_least(outputs):
    assert "sent by ranks 0 to 3: 3.00 MB, 1.00 MB, 1.00 MB, 1.00 MB" in stream(outputs["star_emulated"])
    assert "[1500000, 1500000, 1500000, 1500000], the bound: 1500000" in stream(outputs["halving_emulated"])
    assert ["64", "197 MB", "6.3 GB"] in rows_of(outputs["lower_bound"])


def test_each_chunk_is_complete_on_one_rank_half_way(outputs):
    said = words(outputs["who_holds_what"])
    quarters = said.partition("quarters, ")[2].partition(";")[0]
    assert quarters.count("all") == 4 and "rank 2: 2+3 all 2 2" in quarters
    assert "doubled again, rank 0: all all all all" in said


def test_three_collectives_give_what_the_table_says(outputs):
    rank_3 = rows_of(outputs["six_collectives"])[3]
    assert rank_3 == ["3", "40 41 42 43", "112", "10 21 32 43", "13 23 33 43"]


def test_errors_of_all_sums_are_of_the_size_of_rounding(outputs):
    rows = rows_of(outputs["rounding_table"])
    assert len(rows) == 4 and all(1 < float(error) < 3 for row in rows for error in row[1:])


def test_published_latencies_lie_on_a_line(outputs):
    rows = rows_of(outputs["published_latency"])
    assert len([row for row in rows if row[0].isdigit()]) == 7
    assert "6.0 µs, and 1.92 µs a step" in words(outputs["published_latency"])
    assert max(abs(float(row[4].rstrip("%"))) for row in rows if row[0].isdigit()) < 4


def test_formulas_hold_on_links_that_nobody_shares(outputs):
    rows = [row for row in rows_of(outputs["side_by_side"]) if "emulated" in row[0]]
    off = [row for row in rows if row[-1] not in ("+0%", "-0%")]
    assert len(rows) == 6
    assert [row[0].split(",")[0] for row in off] == ["pcie-box"] and off[0][2] == "halving and doubling"


def test_on_narrow_uplinks_the_order_of_a_ring_decides(outputs):
    rows = {row[0]: row[1:] for row in rows_of(outputs["oversubscribed"])}
    assert rows["ring, rack by rack"] == ["4.39 ms", "4.39 ms", "4.39 ms"]
    assert rows["ring, rack to rack"] == ["4.39 ms", "4.39 ms", "12.3 ms"]
    assert rows["halving and doubling"][0] == "2.79 ms" and rows["halving and doubling"][2] == "3.75 ms"
    assert "from 117 MB on" in stream(outputs["narrow_crossover"])
    assert float(rows["through rank 0"][1].split()[0]) / float(rows["halving and doubling"][1].split()[0]) > 60


def test_server_of_64_workers_leaves_little_utilisation(outputs):
    rows = rows_of(outputs["ring_or_server"])
    assert [row[-1] for row in rows[:4]] == ["29.6%", "2.14%", "21.1%", "1.1%"]


def test_a_hierarchy_is_faster_than_a_ring_and_slower_than_several(outputs):
    for row in rows_of(outputs["hierarchy"]):
        flat, several, layered = (float(time.split()[0]) for time in row[3:])
        assert 4 * layered < flat and several < layered


def test_order_of_a_set_is_drawn_by_each_process(outputs):
    orders = [line.partition(": ")[2] for line in stream(outputs["order_of_a_set"]).splitlines()]
    assert len(orders) == 4 and len(set(orders)) == 2


def test_hang_names_the_circle(outputs):
    report = stream(outputs["everybody_sends_first"])
    assert "wait for each other" in report and "rank 0 waits for rank 1 in send" in report


def test_another_order_adds_the_wrong_layers(outputs):
    rows = rows_of(outputs["another_order"])
    assert rows[:3] == [["should be", "4", "400"], ["rank 0", "301", "103"], ["rank 1", "103", "301"]]
    assert "Collectives do not match" in stream(outputs["another_size"])


def test_ledger_holds_all_results(outputs, folder):
    entries = json.loads((folder / "ledger.json").read_text())["week02"]
    assert entries["sent by each of 64 ranks for 100 MB"]["prediction"] == 100
    assert len(entries) == 4 and all(entry["result"] is not None for entry in entries.values())
    assert "2.06 TB" in words(outputs["predictions_beside_results"])


def test_self_check_asks_five_of_ten_questions(outputs):
    assert len(quiz.load("week02", ROOT / "quizzes").question) >= 10
    asked = re.findall(r"^(\d+)\. ", words(outputs["self_check"]), flags=re.MULTILINE)
    assert asked == ["1", "2", "3", "4", "5"]
