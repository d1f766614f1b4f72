"""Week 13 runs unattended: every framework trains the same, killed ranks come back, gangs do not deadlock."""

import json
import os
import re
import sys

import pytest
from executed import assert_figures_have_words, assert_quiet, stream, week_outputs, words
from needs import is_required
from repository import ROOT

from worldsize import quiz
from worldsize.course.manifests import Job, check, manifests

pytestmark = pytest.mark.slow

SCRIPT = ROOT / "weeks" / "week13_frameworks_and_clusters.py"
TURNS = ("is_same", "agreed", "exploit", "that_fit", "torch_variables", "increase")
BUG = "share_of_loss"
FORMULA = ("DDP", "FSDP2", "DeepSpeed, ZeRO-2", "Megatron-core, tp", "mpi4py", "Ray Train", "torchft")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder in which the week has run."""
    return tmp_path_factory.mktemp("week13")


@pytest.fixture(scope="module")
def outputs(folder):
    """The outputs of every code cell by the cell's id, after one run of the whole week."""
    return week_outputs(SCRIPT, folder, "predicted_sent_ratio = 1.5")


def rows(outputs):
    """The rows of a table's text, cut into columns, without its title and heads."""
    lines = map(str.strip, words(outputs).splitlines())
    return [re.split(r" {2,}", line) for line in lines][2:]


def percent(text):
    """The number in a text such as "39.7%"."""
    return float(text.split("%")[0])


def test_nothing_warns_and_every_figure_has_words(outputs):
    assert_quiet(outputs)
    assert_figures_have_words(outputs, 4)


def test_every_turn_is_right_when_solved(outputs):
    assert [name for name in (*TURNS, BUG) if not stream(outputs[f"check_{name}"]).startswith("Right")] == []


def test_untouched_turns_say_so_and_the_bug_is_shown_by_its_gradient(untouched):
    found = untouched.outputs
    for name in TURNS:
        assert f"{name} is not written yet" in stream(found[f"check_{name}"])
    shown = "".join(str(one.get("data", one)) for one in found[f"check_{BUG}"])
    assert "5 samples, 3 and 2 on two ranks" in shown and "% off" in shown


def test_curves_that_only_look_the_same_are_named(untouched):
    largest = (
        "def is_same(losses, others, tolerance):\n"
        "    return len(losses) == len(others) and max(abs(a - b) / a for a, b in zip(losses, others)) <= tolerance\n"
    )
    absolute = (
        "def is_same(losses, others, tolerance):\n"
        "    return len(losses) == len(others) and all(abs(a - b) <= tolerance for a, b in zip(losses, others))\n"
    )
    no_length = (
        "def is_same(losses, others, tolerance):\n"
        "    return all(abs(a - b) <= tolerance * a for a, b in zip(losses, others))\n"
    )
    first, second, third = untouched.shown_for([largest, absolute, no_length], "is_same")
    assert "not a number" in first and "small losses" in second and "a step less" in third


def test_agreements_that_ranks_do_not_share_are_named(untouched):
    own = "def agreed(waiting):\n    return waiting\n"
    never = "def agreed(waiting):\n    return []\n"
    first, second = untouched.shown_for([own, never], "agreed")
    assert "Not yet" in first
    assert "all 12 gradients to be reduced" in second and "0 after 50 cycles" in second


def test_a_population_that_copies_the_wrong_way_is_named(untouched):
    high = (
        "def exploit(scores, rates, draws):\n    order = sorted(range(8), key=lambda one: -scores[one])\n"
        "    return {bad: (order[0], rates[order[0]] * 2) for bad in order[-2:]}\n"
    )
    own_rate = (
        "def exploit(scores, rates, draws):\n    order = sorted(range(8), key=scores.__getitem__)\n"
        "    return {bad: (draws.choice(order[:2]), rates[bad] * draws.choice((0.5, 2.0))) for bad in order[-2:]}\n"
    )
    first, second = untouched.shown_for([high, own_rate], "exploit")
    assert "members 1 and 3 to copy" in first and "half or twice the copied rate" in second


def test_jobs_that_are_started_in_part_are_named(untouched):
    parts = (
        "def that_fit(num_free, waiting):\n    counts = []\n    for job in waiting:\n"
        "        counts.append(min(job.num_workers, num_free))\n        num_free -= counts[-1]\n    return counts\n"
    )
    (shown,) = untouched.shown_for([parts], "that_fit")
    assert "[0, 16, 0, 8]" in shown and "stops nobody behind it" in shown


def test_ranks_that_slurm_starts_and_that_would_not_meet_are_named(untouched):
    right = {
        "RANK": 'task["SLURM_PROCID"]',
        "LOCAL_RANK": 'task["SLURM_LOCALID"]',
        "WORLD_SIZE": 'task["SLURM_NTASKS"]',
        "MASTER_ADDR": "hosts[0]",
        "MASTER_PORT": 'str(20000 + int(task["SLURM_JOB_ID"]) % 10000)',
    }
    a_node = 'int(task["SLURM_NTASKS"]) // int(task["SLURM_NNODES"])'
    mistakes = [
        ("RANK", 'task["SLURM_LOCALID"]', "Which number counts through the whole job?"),
        ("RANK", f'str(int(task["SLURM_NODEID"]) * ({a_node}) + int(task["SLURM_LOCALID"]))', "through the whole job?"),
        ("LOCAL_RANK", 'task["SLURM_PROCID"]', "It counts on each node"),
        ("WORLD_SIZE", 'task["SLURM_NNODES"]', "All ranks, not all nodes."),
        ("WORLD_SIZE", 'int(task["SLURM_NTASKS"])', "as text"),
        ("MASTER_ADDR", 'task["SLURMD_NODENAME"]', "All look for the node of rank 0."),
        ("MASTER_PORT", '"29500"', "29500 for both"),
        ("MASTER_PORT", 'str(20000 + int(task["SLURM_JOB_ID"]))', "118765"),
        ("MASTER_PORT", 'str(20000 + int(task["SLURM_PROCID"]))', "one port from 20000 to 29999"),
        ("RANK", right["RANK"], "Right: the tasks of three jobs find rank 0, at the ports 24711 24712 28765"),
    ]
    answers = []
    for name, value, _ in mistakes:
        entries = ", ".join(f'"{key}": {text}' for key, text in {**right, name: value}.items())
        answers.append(f"def torch_variables(task, hosts):\n    return {{{entries}}}\n")
    shown = untouched.shown_for(answers, "torch_variables")
    assert [said for (_, _, said), text in zip(mistakes, shown, strict=True) if said not in text] == []


def test_counters_that_are_read_like_gauges_are_named(untouched):
    there = "there = [sample for sample in samples if sample is not None]"
    pairs = "for before, after in zip(there, there[1:])"
    mistakes = {
        f"{there}; return there[-1] - there[0]": "270 for a process that was started again",
        f"{there}; return sum(max(after - before, 0) {pairs})": "has done its whole sample since",
        f"{there}; return sum(abs(after - before) {pairs})": "270 for a process that was started again",
        f"there = [sample or 0 for sample in samples]; return sum((after - before) % 1000 {pairs})": "None is not zero",
        f"{there}; return sum(after - before if after >= before else after {pairs})": "Right: 825 steps.",
    }
    answers = [f"def increase(samples):\n    {text}\n" for text in mistakes]
    shown = untouched.shown_for(answers, "increase")
    assert [said for said, text in zip(mistakes.values(), shown, strict=True) if said not in text] == []
    assert "Of the gauge 0, 79, 0, 79 it makes 158" in shown[-1], "what the text says of two errors 79"


def test_adam_hides_a_factor_that_sgd_shows(outputs):
    apart = {row[0]: float(row[-1]) for row in rows(outputs["doubled_table"])}
    assert apart["AdamW"] < 1e-3 < 0.1 < apart["SGD"]


def test_a_rank_alone_waits_and_says_nothing(outputs):
    assert "it still waits" in stream(outputs["by_hand"])


def test_every_framework_trains_the_same_here_or_where_it_was_recorded(outputs):
    assert "True" in stream(outputs["the_same"])
    table = {row[0]: row[1:] for row in rows(outputs["side_by_side"])}
    assert len(table) == 9 and all(float(row[-1]) < 1e-5 for row in table.values())
    recorded = [name for name, row in table.items() if row[0] == "recorded"]
    assert {name for name, row in table.items() if row[0] == "here"} == table.keys() - recorded
    assert not {"DDP", "FSDP2"} & set(recorded)
    assert stream(outputs["run_frameworks"]).count("Recorded with") == len(recorded)
    assert not (is_required("frameworks") and recorded), recorded


def test_what_is_recorded_says_so_and_nothing_is_left_out(outputs):
    lines = [line for cell in outputs.values() for line in stream(cell).splitlines() if "not installed" in line]
    assert [line for line in lines if ". Recorded with " not in line] == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts the bytes of a connection")
def test_what_is_sent_agrees_with_the_formula(outputs):
    errors = {row[0]: percent(row[-1]) for row in rows(outputs["formula"])}
    assert set(errors) == set(FORMULA)
    assert all(abs(error) < 3 for error in errors.values()), errors


def test_tensorflow_gives_ddps_gradient(outputs):
    found = [float(one) for one in re.findall(r"off by (\S+) from", stream(outputs["tensorflow"]))]
    assert len(found) == 3 and max(found) < 1e-5


def test_ranks_that_do_not_agree_are_stopped_and_agreement_is_fused(outputs):
    assert "all_reduce" in stream(outputs["own_order"])
    table = {row[0]: row[1:] for row in rows(outputs["fused"])}
    calls = [int(row[0]) for row in table.values()]
    assert calls == sorted(calls, reverse=True) and calls[-1] < calls[0]


def test_a_killed_rank_comes_back_and_the_curve_is_the_same(outputs):
    table = {row[0]: row[1:] for row in rows(outputs["survived_table"])}
    assert list(table) == ["torchrun", "Ray Train", "Horovod", "torchft"] and table["torchrun"][1] == "here"
    assert all(float(row[-1]) < 1e-5 for row in table.values())


def test_a_population_finds_a_better_rate_than_it_was_given(outputs):
    table = {row[0]: row[1:] for row in rows(outputs["population_table"])}
    alone, copied = (table[name] for name in ("each with its own rate", "population-based"))
    assert float(copied[1]) < float(alone[1]) and float(copied[2]) < float(alone[2])
    assert copied[0] != alone[0]


def test_workers_placed_one_by_one_deadlock_and_whole_jobs_do_not(outputs):
    table = {row[0]: row[1:] for row in rows(outputs["days"])}
    useful = {name: percent(row[1]) for name, row in table.items()}
    held = {name: percent(row[0]) for name, row in table.items()}
    assert useful["one by one"] < 40 < 85 < held["one by one"]
    assert useful["one by one"] < useful["one by one, gives up after 10 min"] < useful["whole jobs, in order"]
    assert useful["whole jobs, in order"] < useful["whole jobs that fit"] == held["whole jobs that fit"]


def test_manifests_are_right_and_mistakes_are_found(outputs):
    table = rows(outputs["manifests_checked"])
    assert len(table) == 9 and {row[-1] for row in table} == {"right"}
    found = stream(outputs["mistakes"]).splitlines()
    assert len(found) == 4 and not [line for line in found if line.endswith("passes")]
    job = Job(name="one", image="one:1", command=("train.py",), num_nodes=1, gpus_per_node=1)
    assert not [name for name, text in manifests(job).items() if check(text)]


def test_a_killed_rank_is_alerted_and_slurm_runs_an_array(outputs):
    watched, ran = stream(outputs["watched"]), stream(outputs["slurm"])
    assert "RankDown, firing" in watched and "'1': 0.0" in watched
    assert len(re.findall(r"run [01]: task [01] on n", ran)) == 4
    assert len(rows(outputs["dashboard"])) == 6 and len(rows(outputs["dcgm"])) >= 4


def test_storage_is_bound_by_nodes_or_by_the_total(outputs):
    table = {row[0]: row[1:] for row in rows(outputs["storage"])}
    assert float(table["NFS"][1].split()[0].replace(",", "")) > 60 and len(table) == 3


def test_explorer_shows_what_starting_costs(outputs):
    text = "".join(str(one) for one in outputs["explore"])
    assert "100 trials of 1.00 min spend 8.33 min" in text and "7.7% of their time" in text


def test_answers_of_the_problems_are_right():
    assert (round(100 * 7 / 97, 1), round(100 * 0.5 / 90.5, 1), 200 * 6.5) == (7.2, 0.6, 1300)
    assert 8 + 8 + 4 + 4 == 24 and (1 / (4 * 4)) / (1 / (4 * 8)) == 2
    assert 60 / 30 == 2 and 240 / 30 == 8
    assert 64 // 2 == 32 and 48 - 32 == 16 and round(100 * 2 * 48 * 60 / (64 * 130)) == 69
    assert round(25 * 4096 / 15) == 6827 and round(25 * 4096 / 15 * 604_800 * 1.5 / 1e9, 1) == 6.2
    assert round(100 * 1 / 20) == 5


def test_ledger_holds_all_results(outputs, folder):
    entries = json.loads((folder / "ledger.json").read_text())["week13"]
    sent = entries["bytes sent, FSDP2 over DDP, Gloo"]
    assert sent["prediction"] == 1.5 and (1.8 < sent["result"] < 2 or sys.platform != "linux")
    assert 0.5 < entries["seconds to the first step, torchrun"]["result"] < 120
    assert 0.1 < entries["seconds from SIGKILL to a step"]["result"] < 120
    assert 5 < entries["useful GPU time, placed one by one"]["result"] < 40
    assert len(entries) == 4


def test_nothing_that_was_started_is_left(outputs, folder):
    if not os.path.isdir("/proc/self"):
        pytest.skip("processes are looked up in /proc")
    left = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                left += [name] if str(folder / "build").encode() in file.read() else []
        except OSError:
            continue
    assert left == []


def test_self_check_asks_five_of_eleven_questions(outputs):
    assert len(quiz.load("week13", ROOT / "quizzes").question) >= 10
    asked = re.findall(r"^(\d+)\. ", words(outputs["self_check"]), flags=re.MULTILINE)
    assert asked == ["1", "2", "3", "4", "5"]
