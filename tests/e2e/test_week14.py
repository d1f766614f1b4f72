"""Week 14 runs unattended: both case studies, three published layouts, and a design of 10,000 GPUs add up as said."""

import json
import re

import pytest
from executed import assert_figures_have_words, assert_quiet, stream, week_outputs, words
from repository import ROOT

from worldsize import quiz

pytestmark = pytest.mark.slow

SCRIPT = ROOT / "weeks" / "week14_capstone.py"
TURNS = ("contradictions", "linear_step_s", "node_sends_bytes", "elastic", "counted_s", "fat_tree")
BUG = "utilisation"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder in which the week has run."""
    return tmp_path_factory.mktemp("week14")


@pytest.fixture(scope="module")
def outputs(folder):
    """The outputs of every code cell by the cell's id, after one run of the whole week."""
    return week_outputs(SCRIPT, folder, "predicted_switches = 700")


def rows(outputs):
    """The rows of a table's text, cut into columns, without its title and heads."""
    lines = map(str.strip, words(outputs).splitlines())
    return [re.split(r" {2,}", line) for line in lines][2:]


def percent(text):
    """The number in a text such as "-6.4%"."""
    return float(text.split("%")[0])


def gigabytes(text):
    """The gigabytes in a text such as "1.04 TB"."""
    number, unit = text.split()
    return float(number) * {"GB": 1, "TB": 1000}[unit]


def test_nothing_warns_and_every_figure_has_words(outputs):
    assert_quiet(outputs)
    assert_figures_have_words(outputs, 4)


def test_every_turn_is_right_when_solved(outputs):
    assert [name for name in (*TURNS, BUG) if not stream(outputs[f"check_{name}"]).startswith("Right")] == []


def test_untouched_turns_say_so_and_the_bug_is_shown_with_its_factor(untouched):
    found = untouched.outputs
    for name in TURNS:
        assert f"{name} is not written yet" in stream(found[f"check_{name}"])
    shown = "".join(str(one.get("data", one)) for one in found[f"check_{BUG}"])
    assert "BLOOM" in shown and "1.33 times as much" in shown and "in the 149 TFLOP/s?" in shown


CONTRADICTIONS = """\
def contradictions(design):
    write_s = design.checkpoint_bytes / design.storage.write_bytes_per_s
    num_away = design.failures.away_s / saves.mean_s_to_failure(design)
    needs = {{
        "plan": (design.held.total_bytes, design.cluster.gpu.memory_bytes),
        "checkpoint.every_s": (write_s, design.checkpoint.every_s),
        "nodes.num_spares": (num_away, design.nodes.num_spares),
        "site.power_w": (sum(bill.power_w(design).values()), design.site.power_w),
    }} | {{{changed}}}
    return {{key for key, (need, has) in needs.items() if need > has}}
"""


def test_a_sum_that_leaves_something_out_is_named(untouched):
    mistakes = {
        "": "Right, for designs on both sides of each limit.",
        '"plan": (design.held.states_bytes, design.cluster.gpu.memory_bytes)': "activations among them",
        '"checkpoint.every_s": (write_s / 1250, design.checkpoint.every_s)': "does it end before the next?",
        '"nodes.num_spares": (DAY_S / saves.mean_s_to_failure(design), design.nodes.num_nodes)': "a node is away",
        '"nodes.num_spares": (math.ceil(num_away) + 1, design.nodes.num_spares)': "a node is away",
        '"site.power_w": (bill.power_w(design)["nodes"], design.site.power_w)': "what the building adds",
        '"power": (1, 0)': "The four keys are plan, checkpoint.every_s",
    }
    shown = untouched.shown_for([CONTRADICTIONS.format(changed=one) for one in mistakes], "contradictions")
    assert [said for said, text in zip(mistakes.values(), shown, strict=True) if said not in text] == []


COUNTED = """\
def counted_s(failures_s, save_after_s, stall_s, start_s):
    trained_s = begin_s = 0.0
    for failure_s in failures_s:
        length_s = failure_s - begin_s
        trained_s += {counted}
        begin_s = {begin}
    return trained_s
"""


def test_training_that_no_complete_save_holds_is_not_counted(untouched):
    whole, after = "max(0, length_s // (save_after_s + stall_s)) * save_after_s", "failure_s + start_s"
    mistakes = {
        (whole, after): "Right. Days of training",
        ("length_s", after): "Only a complete save holds training",
        ("length_s // save_after_s * save_after_s", after): "Only a complete save holds training",
        (whole.replace("* save_after_s", "* (save_after_s + stall_s)"), after): "Only a complete save holds training",
        (whole, "failure_s"): "before it trains",
        (whole.removeprefix("max(0, ").replace("))", ")"), after): "begins again",
        (whole, "failure_s + start_s if length_s > 0 else begin_s"): "begins again",
    }
    answers = [COUNTED.format(counted=counted, begin=begin) for counted, begin in mistakes]
    shown = untouched.shown_for(answers, "counted_s")
    assert [said for said, text in zip(mistakes.values(), shown, strict=True) if said not in text] == []


def test_days_by_hand_are_those_of_the_simulated_systems(outputs):
    days = re.findall(r"([\d.]+) and ([\d.]+) days", stream(outputs["check_counted_s"]))
    assert len(days) == 3
    assert all(float(by_hand) == pytest.approx(float(simulated), rel=0.01) for by_hand, simulated in days)


def test_a_policy_that_cuts_a_replica_is_named(untouched):
    any_number = (
        "def elastic(status, save_s=1200, worth=4):\n    return SavePlan(save_s, max(4, min(status.num_healthy, 64)))\n"
    )
    always = (
        "def elastic(status, save_s=1200, worth=4):\n"
        "    return SavePlan(save_s, max(4, min(status.num_healthy, 64) // 4 * 4))\n"
    )
    never = (
        "def elastic(status, save_s=1200, worth=4):\n"
        "    usable = max(4, min(status.num_healthy, 64) // 4 * 4)\n"
        "    return SavePlan(save_s, usable if usable - status.num_nodes >= worth else status.num_nodes)\n"
    )
    first, second, third = untouched.shown_for([any_number, always, never], "elastic")
    assert "0 nodes in use, 63 healthy" in first
    assert "56 nodes in use, 61 healthy, worth=8" in second
    assert "num_nodes" in third or "0 nodes in use, 63 healthy, worth=100" in third


def test_a_tree_whose_leaves_lead_nowhere_is_named(untouched):
    full_leaves = "def fat_tree(num_adapters, num_ports=64):\n    return (num_adapters // num_ports,) * 3\n"
    in_all = "def fat_tree(num_adapters, num_ports=64):\n    return 800\n"
    shown, one_number = untouched.shown_for([full_leaves, in_all], "fat_tree")
    assert "leaves for 10,240" in shown and "Cables up" in shown
    assert "three counts: leaves, spines and cores" in one_number and "800" in one_number


def test_errors_of_both_costs_are_those_that_the_text_says(outputs):
    envelope = [percent(row[-1]) for row in rows(outputs["envelope"])]
    parts = [percent(row[-1]) for row in rows(outputs["five_steps"])]
    assert len(envelope) == len(parts) == 5
    assert max(map(abs, envelope)) < max(map(abs, parts)) < 26
    assert all(-26 < error < -11 for error in parts)


def test_this_machine_is_calibrated_and_two_runs_are_predicted_in_two_ways(outputs):
    assert "a link has a latency of" in stream(outputs["calibrated"])
    measured = [line.split(":")[0] for line in stream(outputs["held_out"]).splitlines()]
    yours = [line.split(":")[0] for line in stream(outputs["check_linear_step_s"]).splitlines()[1:]]
    assert measured == yours == [row[0] for row in rows(outputs["held_out_on_paper"])] == ["1 rank", "2 ranks"]


def test_a_formula_that_forgets_the_first_layer_is_told_so(untouched):
    all_alike = (
        "def linear_step_s(width, num_layers, batch, num_ranks, flops_per_s, bytes_per_s, message_s):\n"
        "    flops = 3 * num_layers * 2 * batch * width**2\n"
        "    return flops / flops_per_s + 12 * num_layers * width**2 / bytes_per_s\n"
    )
    (shown,) = untouched.shown_for([all_alike], "linear_step_s")
    assert "1 layers" in shown and "but for the first" in shown


def test_a_plan_counts_and_the_slowest_of_four_is_found(outputs):
    table = rows(outputs["four_plans"])
    measured, envelope, parts = ([float(row[column].split()[0]) for row in table] for column in (1, 2, 3))
    assert len(set(envelope)) == 1 and len(set(parts)) == 4
    assert parts.index(max(parts)) == measured.index(max(measured)) == 3
    assert parts.index(min(parts)) == 0 and sorted(measured).index(measured[0]) == 2


def test_the_envelopes_design_does_not_add_up_and_the_example_does(outputs):
    said = stream(outputs["envelope_design"])
    for key in ("plan: weights", "checkpoint.every_s", "nodes.num_spares", "site.power_w"):
        assert key in said
    assert stream(outputs["adds_up"]).endswith("it adds up.\n")


def test_case_one_adds_up_and_its_published_step_is_five_times_as_long(outputs):
    assert "it adds up" in stream(outputs["zero_design"])
    table = rows(outputs["zero_published"])
    assert [int(row[2]) for row in table] == [144, 88, 44]
    errors = [percent(row[-1]) for row in table]
    assert errors[0] > -40 and -82 < errors[2] < -80
    groups = {int(row[0]): row[1:] for row in rows(outputs["groups"])}
    assert groups[4][1] == "no" and groups[8][1] == "yes"
    assert 0.95 < gigabytes(groups[8][2]) / gigabytes(groups[128][2]) < 0.97
    zero, mixed = rows(outputs["two_plans"])
    assert 18 < gigabytes(zero[-1]) / gigabytes(mixed[-1]) < 21


def test_a_hierarchy_beats_one_ring_and_nccl_beats_it(outputs):
    unit = {"µs": 1e-6, "ms": 1e-3, "s": 1.0}
    for row in rows(outputs["hierarchical"]):
        ring, hierarchy, nccl = (float(text.split()[0]) * unit[text.split()[1]] for text in row[1:4])
        assert nccl < hierarchy < ring / 4


def test_hundred_steps_cost_little_and_are_too_many_at_opts_rate(outputs):
    table = {row[0]: row[1:] for row in rows(outputs["hundred_steps"])}
    assert percent(table["BLOOM"][2]) < 0.5
    assert int(table["BLOOM"][3]) == 80 and int(table["OPT"][3]) == 34
    assert 1 < percent(table["OPT"][5]) - percent(table["OPT"][4]) < 2


def test_policies_lose_what_the_text_says(outputs):
    table = {row[0]: [percent(cell) for cell in row[1:7]] for row in rows(outputs["policies"])}
    goodput = {name: row[0] for name, row in table.items()}
    spares, less = table["waits, 6 nodes in spare"], table["goes on with any number"]
    assert goodput["waits for all 64"] < 20 < 85 < goodput["whole replicas"] < less[0] < spares[0]
    assert spares[1] < less[1]
    assert 0 <= goodput["whole replicas"] - goodput["whole, never grows by itself"] < 1
    (young,) = [name for name in goodput if name.startswith("whole, saves every")]
    assert goodput[young] > goodput["whole replicas"] + 2
    assert table[young][4] < 2 < 5 < table["whole replicas"][4]


def test_three_layouts_run_beside_their_published_steps(outputs):
    table = rows(outputs["layouts"])
    assert [row[1:3] for row in table] == [["8", "16"], ["8", "64"], ["4", "12"]]
    assert [row[4] for row in table] == ["128", "6", "8"]
    errors = [percent(row[-1]) for row in table]
    assert -27 < min(errors) == errors[0] and max(errors) < -10
    assert 8 < percent(rows(outputs["where_time_goes"])[0][3]) < 11
    days = {row[0].split()[0]: percent(row[-1]) for row in rows(outputs["calendar"])}
    assert -30 < days["Llama"] < -24 and -30 < days["BLOOM"] < -20
    of_steps = {row[0].split()[0]: percent(row[-1]) for row in table}
    all_days = [row[0].split()[0] for row in rows(outputs["calendar"]) if "all days" in row]
    assert all_days == ["Llama", "BLOOM"]
    assert all(abs(days[name]) > abs(of_steps[name]) for name in all_days), "ours are off further than the steps"


def test_only_eight_chunks_lose_less_than_llama_3_lost(outputs):
    chunks = {row[0]: [percent(text) for text in row[-2:]] for row in rows(outputs["chunks"])}
    assert {num: lost for num, (_, lost) in chunks.items()} == {"1": -24.2, "2": -16.0, "4": -9.5, "8": -5.2}
    published = 100 * (400 / 430 - 1)
    assert [num for num, (_, lost) in chunks.items() if lost > published] == ["8"]
    assert -8 < chunks["2"][0] < -5 and -27 < chunks["8"][0] < -25, "what the text says of both errors"


def test_the_program_on_paper_is_within_2_percent_of_the_published_step_and_the_cost_is_not(outputs):
    cost, paper = rows(outputs["layer_on_paper"])
    assert percent(cost[-1]) < -25 and abs(percent(paper[-1])) <= 2


def test_utilisation_counted_alike_turns_the_order_round(outputs):
    was = [percent(line.split(": ")[1]) for line in stream(outputs["utilisation_as_it_was"]).splitlines()]
    llama, trillion, bloom = was
    assert llama < bloom < trillion
    now = [float(one) for one in re.findall(r"([\d.]+)%", stream(outputs["check_utilisation"]))]
    assert now == sorted(now, reverse=True) and len(now) == 3


def test_power_carbon_and_price_are_those_of_the_text(outputs):
    power = {row[0]: row[1:] for row in rows(outputs["power"])}
    assert float(power["in all"][0]) == 17 and percent(power["switches"][1]) + percent(power["plugs"][1]) < 7
    carbon = {row[0]: row[1:] for row in rows(outputs["carbon"])}
    assert carbon["Llama 3 405B"][2] == "414" and carbon["BLOOM"][2] == "57"
    assert 7 < float(carbon["BLOOM"][3]) / 24.7 < 7.5
    assert len(rows(outputs["price"])) == 4
    assert "10,208 ports down" in stream(outputs["network"])


def test_the_front_has_two_sizes_and_full_recomputation_is_not_on_it(outputs):
    said = stream(outputs["swept"])
    assert "9 designs add up, 3 do not" in said and "activations take" in said
    front = words(outputs["swept"]).split("others")[0]
    assert "10,000 GPUs, 6 chunks, selective" in front and "4,000 GPUs, 6 chunks, selective" in front


def test_formula_and_simulation_agree(outputs):
    table = rows(outputs["formula_beside_run"])
    assert all(abs(float(row[-1].split()[0].rstrip("%"))) < 1 for row in table) and len(table) == 4


def test_answers_of_the_problems_are_right():
    assert round(3 * 60 / 2 + 2 * 30 * 15 / 16) == 146 and round(3 * 60 * 31 / 32) == 174
    assert (round(100 * (100 / 105) ** 100, 1), round(100 * 100 / 105, 1)) == (0.8, 95.2)
    assert round(100 * 163 / 312 * 3 / 4) == 39 and round(650 / 0.33, -1) == 1970
    electricity = 10.2 * 1.2 * 8760 * 0.0806
    owner = 77_500 + 31_000 + electricity
    assert round(electricity, -1) == 8640 and round(100 * owner / 70_080 / 2.95) == 57
    assert round(24.7 + 14.6 + 11.2, 1) == 50.5 and round(50.5 / 24.7, 1) == 2.0
    assert round(46 / (1 - 0.19)) == 57 and round(46.3 * 1.34) == 62


def test_ledger_holds_all_results(outputs, folder):
    entries = json.loads((folder / "ledger.json").read_text())["week14"]
    switches = entries["switches for 10,240 adapters"]
    assert (switches["prediction"], switches["result"]) == (700, 800)
    assert 0.3 < entries["time in saves, every 100 steps"]["result"] < 0.4
    assert 10 < entries["goodput, waiting for 64 nodes"]["result"] < 20
    assert round(entries["energy, Llama 3 405B"]["result"], 1) == 21.6
    assert len(entries) == 4


def test_self_check_asks_five_of_twelve_questions(outputs):
    assert len(quiz.load("week14", ROOT / "quizzes").question) >= 10
    asked = re.findall(r"^(\d+)\. ", words(outputs["self_check"]), flags=re.MULTILINE)
    assert asked == ["1", "2", "3", "4", "5"]
