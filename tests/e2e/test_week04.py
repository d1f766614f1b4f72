"""Week 4 runs unattended from its script: stragglers and stale gradients, real, computed and emulated; no stderr."""

import json
import re

import pytest
from executed import (
    assert_figures_have_words,
    assert_quiet,
    printed,
    stream,
    week_outputs,
    words,
)
from repository import ROOT

from autograder.authoring.notebooks import notebook
from autograder.authoring.scripts import read_week
from worldsize import quiz

pytestmark = pytest.mark.slow

SCRIPT = ROOT / "weeks" / "week04_synchronous_or_asynchronous.py"
CELLS = {cell.id: cell.source for cell in notebook(read_week(SCRIPT), graded=False).cells}  # untouched
TURNS = ("slowest_of", "staleness_of", "rate_at", "servers_needed", "mean_of_the_first")
# what is often written first, and a word of what the check says to it
SLIPS = {
    "slowest_of": ("def slowest_of(times_s, num_workers):\n    return max(times_s)", "to be 1.5"),
    "staleness_of": (
        "def staleness_of(log):\n    return [len({who for who, _ in log}) - 1 for what, _ in log if what == 'push']",
        "Count the pushes of *all* workers",
    ),
    "rate_at": (
        "def rate_at(step, base_rate, base_batch, batch, warmup_steps):\n"
        "    return base_rate * batch / base_batch * min(1, step / max(1, warmup_steps))",
        "begins at 0.1",
    ),
    "servers_needed": (
        "def servers_needed(num_workers, step_s, gradient_bytes, link):\n"
        "    exchange_s = 2 * (link.latency_s + gradient_bytes / link.bandwidth_bytes_per_s)\n"
        "    return math.ceil(num_workers / step_s * exchange_s)",
        "paid in full on every server",
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder in which the week has run."""
    return tmp_path_factory.mktemp("week04")


@pytest.fixture(scope="module")
def outputs(folder):
    """The outputs of every code cell by the cell's id, after one run of the whole week."""
    return week_outputs(SCRIPT, folder, "predicted_async_percent = 85")


def numbers(text):
    return [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", text)]


def test_nothing_warns_and_every_figure_has_words(outputs):
    assert_quiet(outputs)
    assert_figures_have_words(outputs, 9)


@pytest.mark.parametrize("name", TURNS)
def test_worked_answers_are_right(outputs, name):
    assert "Right." in stream(outputs[f"check_{name}"])


@pytest.fixture
def said_to(monkeypatch, tmp_path, capsys):
    """What the check of a turn says to an answer, in this process: a kernel would run most of the week first."""

    def said(name, answer):
        monkeypatch.chdir(tmp_path)
        names = {}
        for source in (CELLS["parameters"], CELLS["setup"], CELLS["model"], answer, CELLS[f"check_{name}"]):
            exec(source, names)
        return capsys.readouterr().out

    return said


@pytest.mark.parametrize("name", SLIPS)
def test_a_check_names_a_typical_slip(said_to, name):
    answer, hint = SLIPS[name]
    said = said_to(name, answer)
    assert f"Not yet: {name}" in said and hint in said


def test_the_bug_is_found_in_an_untouched_week(said_to):
    said = said_to("mean_of_the_first", CELLS["mean_of_the_first"])
    assert "the mean gradient of step 2" in said
    assert "The inbox begins with step 1 of worker 3: it is stale." in said


def rows_of(outputs):
    """The rows of a cell's table, as texts."""
    return [re.split(r"  +", line.strip()) for line in words(outputs).splitlines()[2:]]


def test_a_synchronous_step_takes_as_long_as_the_slowest_worker(outputs):
    fast, slow = stream(outputs["synchronous_measured"]).splitlines()
    fast_ms, slow_ms = (float(re.search(r"(\d+) ms", line)[1]) for line in (fast, slow))
    assert slow_ms >= 100 and fast_ms >= 20  # asleep for so long, however busy the machine is
    assert [row[1:] for row in rows_of(outputs["one_slow_of_eight"])] == [
        ["400", "100%", "40%"],
        ["80", "20%", "8%"],
        ["360", "90%", "36%"],
    ]


def test_the_slowest_of_many_is_a_harmonic_number(outputs):
    rows = rows_of(outputs["slowest_of_many"])
    assert [row[:2] for row in rows] == [["1", "1"], ["2", "1.5"], ["8", "2.72"], ["64", "4.74"], ["512", "6.82"]]
    assert all(abs(float(row[1]) / float(row[2]) - 1) < 0.03 for row in rows)
    assert abs(float(rows[2][3]) / 2.72 - 1) < 0.1  # 100 emulated steps


def test_backups_pay_for_ever_only_where_times_have_no_least(outputs):
    rows = rows_of(outputs["backup_workers"])
    assert all(abs(float(row[2]) / float(row[3]) - 1) < 0.02 for row in rows)
    exponential, with_least = [float(row[4]) for row in rows[:7]], [float(row[4]) for row in rows[7:]]
    assert rows[3][:3] == ["exponential", "4", "2.66"] and exponential == sorted(exponential)
    assert with_least.index(max(with_least)) == 4 and with_least[6] < with_least[3]


def test_the_server_makes_nobody_wait_and_gradients_are_late(outputs):
    all_reduce, server = numbers(printed(outputs["asynchronous_measured"]))[:2]
    assert server > all_reduce
    mean, expected = numbers(printed(outputs["staleness_measured"]).splitlines()[-1].replace("N - 1", ""))
    assert expected == 2 and 1.2 < mean <= 2


def test_stability_bound_is_found_by_running(outputs):
    rows = rows_of(outputs["stability"])
    assert [row[1] for row in rows] == ["2", "1", "0.445", "0.209", "0.0499"]
    assert all(abs(float(row[1]) / float(row[2]) - 1) < 0.01 for row in rows)
    assert [row[3] for row in rows] == ["1", "2", "4.49", "9.57", "40.1"]
    assert [row[4] for row in rows[:4]] == ["3.8", "0.1", "0.0348", "0.0157"] and float(rows[3][5]) > 200
    assert round(float(rows[3][1]) / float(rows[3][4])) == 13
    assert [row[1] for row in rows_of(outputs["divided_by_staleness"])][::5] == ["50%", "78.4%"]


def test_a_transformer_bears_late_gradients_at_a_smaller_rate_alone(outputs):
    said = words(outputs["late_transformer"])
    fresh, late, smaller = (float(end) for end in re.findall(r"late from 5\.83 to ([\d.]+\d)", said))
    assert fresh < smaller < 4 < late


def test_the_explorer_has_every_control_that_the_text_names(outputs):
    assert "is_always_the_same = yes" in "".join(str(one) for one in outputs["staleness_explorer"])


def test_a_bound_helps_against_luck_alone(outputs):
    now_and_then, always = ([float(rate) for rate in row[1:]] for row in rows_of(outputs["always_or_now_and_then"]))
    assert always == [160] * 4 + [720]
    assert now_and_then == sorted(now_and_then) and now_and_then[2] > 2 * now_and_then[0]
    assert now_and_then[2] > 0.75 * now_and_then[4]


def test_scaled_rate_makes_up_for_fewer_steps_until_it_is_too_large(outputs):
    shares = [float(row[4].rstrip("%")) for row in rows_of(outputs["large_batches_compared"])]
    small, same, scaled, _, too_large = shares
    assert small > 90 and same < 70 and scaled > same + 15 and too_large < scaled - 30


def test_trust_ratios_by_hand(outputs):
    text = stream(outputs["by_hand"])
    assert "5 / 1 = 0.005" in text and "= 0.0025" in text and "3.536" in text


def test_layers_move_by_different_shares_of_their_lengths(outputs):
    moved = {row[0]: float(row[3].rstrip("%")) for row in rows_of(outputs["layers_differ"])}
    assert moved["6.bias"] > 4 * moved["0.bias"]


def test_weights_are_those_of_the_oracles(outputs):
    for name, count in (("against_the_oracle", 2), ("replayed", 2)):
        differences = re.findall(r"largest difference (\S+)", stream(outputs[name]))
        assert len(differences) == count and max(map(float, differences)) < 1e-5
    assert "torch.optim: False" in stream(outputs["replayed"])


def test_formulas_hold_until_the_link_is_full(outputs):
    rows = rows_of(outputs["table"])
    errors = [float(row[5].rstrip("%")) for row in rows]
    assert [row[0].split(", ")[1] for row in rows] == ["emulated"] * 6 + ["measured"] * 2
    assert all(abs(error) <= 3 for error in errors[:5]) and 10 < errors[5] < 40
    slowest, on_ethernet = 7 / (5 * 0.002), float(rows[4][4])  # gradients/s: seven of 10 ms, and their run
    assert 0.08 < 1 - on_ethernet / slowest < 0.12
    rows = {tuple(row[:2]): row[2:] for row in rows_of(outputs["saturation"])[:6]}
    assert rows["Llama 3 8B in bfloat16", "InfiniBand NDR"] == ["669 ms", "2.79"]
    assert rows["ResNet-50 in float32", "Ethernet 100 Gb/s, TCP"] == ["20.5 ms", "10.8"]
    assert "512 workers that train Llama 3 8B over NDR: 290 servers" in stream(outputs["check_servers_needed"])


def test_stale_gradients_diverge_where_fresh_ones_do_not(outputs):
    ends = [float(end) for end in re.findall(r"x ends at +(\S+),", stream(outputs["stale_divergence"]))]
    assert abs(ends[0]) < 0.01 and abs(ends[1]) < 1 < abs(ends[2])


def test_a_fixed_order_is_as_slow_as_the_slowest(outputs):
    in_turn, as_they_come = (numbers(line)[0] for line in stream(outputs["in_turn"]).splitlines())
    assert abs(in_turn - 700) < 10 and as_they_come > 4 * in_turn


def test_ledger_holds_all_results(outputs, folder):
    entries = json.loads((folder / "ledger.json").read_text())["week04"]
    assert entries["kept by 8 that do not wait"]["prediction"] == 85
    assert len(entries) == 6 and all(entry["result"] is not None for entry in entries.values())
    assert "9.57" in words(outputs["predictions_beside_results"])


def test_self_check_asks_five_of_ten_questions(outputs):
    assert len(quiz.load("week04", ROOT / "quizzes").question) >= 10
    asked = re.findall(r"^(\d+)\. ", words(outputs["self_check"]), flags=re.MULTILINE)
    assert asked == ["1", "2", "3", "4", "5"]
