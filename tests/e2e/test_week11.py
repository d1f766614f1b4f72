"""Week 11 runs unattended: ten bottlenecks are named by their own steps, and every law and figure of the text holds."""

import json
import re

import pytest
from executed import assert_figures_have_words, assert_quiet, stream, week_outputs, words
from needs import is_required
from repository import ROOT
from symptoms import NAMES, PICTURES, SIGNS, seen
from traces import expect_read_by_hta

from worldsize import hardware, quiz

pytestmark = pytest.mark.slow

SCRIPT = ROOT / "weeks" / "week11_find_the_bottleneck.py"
TURNS = (
    *("saved_by", "matmul_s", "kernels_done_s", "loaded_step_s", "overlap_of", "ring_latency_s"),
    "fixed_and_rate",
)
BUG = "culprit"
SIGNS_IN_ORDER = NAMES[5:]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder in which the week has run."""
    return tmp_path_factory.mktemp("week11")


@pytest.fixture(scope="module")
def outputs(folder):
    """The outputs of every code cell by the cell's id, after one run of the whole week."""
    return week_outputs(SCRIPT, folder, "predicted_float32 = 16")


def rows(outputs):
    """The rows of a table's text, cut into columns."""
    lines = map(str.strip, words(outputs).splitlines())
    return [re.split(r" {2,}", line) for line in lines]


def seconds(text):
    """The seconds in a text such as "39.7 ms"."""
    number, unit = text.split()
    return float(number.replace(",", "")) * {"s": 1, "ms": 1e-3, "µs": 1e-6}[unit]


def test_nothing_warns_and_every_figure_has_words(outputs):
    assert_quiet(outputs)
    assert_figures_have_words(outputs, 11)


def test_a_real_hang_is_read_by_torchs_program_and_by_ours(outputs):
    assert stream(outputs["hung"]) == "['rank_0', 'rank_1']\n"
    by_torch, by_explain = stream(outputs["by_torchfrtrace"]), stream(outputs["by_explain"])
    assert "Collective sequence number: 3 has errors" in by_torch
    assert "Culprit rank 1; Error type: COLLECTIVE_TYPE_MISMATCH" in by_torch and "Traceback" not in by_torch
    assert "Collectives do not match: Rank 0 calls collective 3, all_reduce" in by_explain
    assert "dist.all_reduce(loss)" in by_explain and "dist.barrier()" in by_explain


def test_every_turn_is_right_when_solved(outputs):
    assert [name for name in (*TURNS, BUG) if not stream(outputs[f"check_{name}"]).startswith("Right")] == []


def test_untouched_turns_say_so_and_the_bug_is_shown_with_its_picture(untouched):
    found = untouched.outputs
    for name in TURNS:
        assert f"{name} is not written yet" in stream(found[f"check_{name}"])
    shown = "".join(str(one.get("data", one)) for one in found[f"check_{BUG}"])
    assert "rank 2, whose work takes 1.4 times as long" in shown and "image/png" in shown


def test_a_saving_that_does_not_bind_or_passes_the_next_bound_is_named(untouched):
    own_part = "def saved_by(busy_s, name, factor):\n    return busy_s[name] * (1 - 1 / factor)\n"
    if_it_binds = (
        "def saved_by(busy_s, name, factor):\n    binds = busy_s[name] == max(busy_s.values())\n"
        "    return busy_s[name] * (1 - 1 / factor) if binds else 0.0\n"
    )
    first, second = untouched.shown_for([own_part, if_it_binds], "saved_by")
    assert "a GPU 2 times as fast saves" in first and "to be 0" in first and "2" in first
    assert "a loader 3 times as fast saves" in second and "Nothing is saved beyond that." in second


def test_a_matmul_of_fewer_bytes_or_flops_or_of_both_bounds_added_is_named(untouched):
    head = "def matmul_s(m, k, n, flops_per_s, bytes_per_s):\n    "
    no_result = f"{head}return max(2 * m * k * n / flops_per_s, 2 * (m * k + k * n) / bytes_per_s)\n"
    half_flops = f"{head}return max(m * k * n / flops_per_s, 2 * (m * k + k * n + m * n) / bytes_per_s)\n"
    added = f"{head}return 2 * m * k * n / flops_per_s + 2 * (m * k + k * n + m * n) / bytes_per_s\n"
    first, second, third = untouched.shown_for([no_result, half_flops, added], "matmul_s")
    assert "8,192 x 8,192 times 8,192 x 128 on a V100, which memory binds, at 124.1 FLOP a byte" in first
    assert "8,192 x 8,192 times 8,192 x 8,192 on a V100, which compute binds" in second
    assert "8,192 x 8,192 times 8,192 x 128" in third and "Which binds?" in third


def test_launches_that_hold_the_gpu_up_or_are_free_are_named(untouched):
    head = "def kernels_done_s(kernels_s, launch_s):\n    return "
    waits = f"{head}sum(launch_s + one for one in kernels_s)\n"
    one_by_one = f"{head}launch_s + sum(max(launch_s, one) for one in kernels_s[:-1]) + kernels_s[-1]\n"
    free = f"{head}launch_s + sum(kernels_s)\n"
    first, second, third = untouched.shown_for([waits, one_by_one, free], "kernels_done_s")
    assert "kernels of [2, 2, 2, 2, 2, 2] µs" in first and "to be 32" in first and "42" in first
    assert "kernels of [40, 1, 1, 1, 1] µs" in second and "to be 49" in second
    assert "kernels of [2, 2, 2, 2, 2, 2] µs" in third and "to be 32" in third


def test_an_overlap_that_is_a_share_of_something_else_is_named(untouched):
    head = "def overlap_of(timeline, rank):\n    sent_s = timeline.time_s(rank, 'communication')\n"
    exposed = f"{head}    return timeline.exposed_communication_s(rank) / sent_s\n"
    of_step = f"{head}    return (sent_s - timeline.exposed_communication_s(rank)) / timeline.end_s\n"
    of_work = f"{head}    return (sent_s - timeline.exposed_communication_s(rank)) / timeline.time_s(rank, 'update')\n"
    for shown in untouched.shown_for([exposed, of_step, of_work], "overlap_of"):
        assert "work of 0.25 times its length to be 0.25" in shown and "not exposed, and not of the step" in shown


def test_advice_that_does_not_concern_what_binds_saves_nothing(outputs):
    table = rows(outputs["advice_taken"])[2:]
    saved = [float(row[-1].rstrip("%")) for row in table]
    assert max(saved[:4]) < 2 and saved[4] > 40


def test_the_largest_bound_is_what_the_text_says(outputs):
    healthy, slow = rows(outputs["bounds_beside_steps"])[2:]
    assert (healthy[-2], slow[-2]) == ("compute", "storage")
    for row in (healthy, slow):
        assert max(map(seconds, row[1:6])) < seconds(row[-1])
    assert seconds(slow[5]) > 0.7 * seconds(slow[-1])
    ridges = [int(row[3]) for row in rows(outputs["ridges"])[2:]]
    assert ridges == [153, 295, 206, 281]


def test_each_bottleneck_is_its_own_first_suspect_and_its_fix_saves_what_was_predicted(outputs):
    table = rows(outputs["diagnoses"])[2:]
    assert [row[0] for row in table] == list(NAMES)
    assert [row[2] for row in table] == [*NAMES[:5], *["messages"] * 5]
    for row in table:
        could_s, saved_s, second_s = seconds(row[3]), seconds(row[4]), seconds(row[6])
        assert 0.6 < could_s / saved_s < 1.4 and second_s < 0.25 * could_s, row


def test_signs_stand_on_the_diagonal_and_only_a_slow_link_hides_less_besides(outputs):
    table = [
        (row[0], dict(zip(SIGNS_IN_ORDER, map(float, row[1:]), strict=True)))
        for row in rows(outputs["signs_of_messages"])[2:]
    ]
    assert [name for name, _ in table] == ["healthy", *SIGNS_IN_ORDER]
    for planted, signs in table:
        assert [name for name in SIGNS_IN_ORDER if SIGNS[name](signs[name])] == [planted][planted == "healthy" :]
    found = dict(table)
    assert found["link"]["overlap"] < 0.6 * found["healthy"]["overlap"] and 0.4 < found["healthy"]["overlap"] < 0.6


@pytest.mark.parametrize("name", NAMES)
def test_a_bottleneck_on_other_machines_makes_its_picture_and_is_named(name, request):
    for number in range(2 if request.config.getoption("--nightly") else 1):
        one = seen(name, number)
        assert PICTURES[name](one), (name, number)
        assert one.diagnosis == name, (name, number, one.suspects, one.signs)
        saved_s = one.slow_s - one.fixed_s
        assert saved_s > 0.03 * one.slow_s and saved_s > 0.5 * one.predicted_s, (name, number)


def test_a_picture_that_is_not_there_is_not_seen():
    one = seen("straggler", 0)
    assert [name for name in NAMES if PICTURES[name](one)] == ["straggler"]


def test_results_are_unchanged_but_for_precision(outputs):
    table = {row[0]: row for row in rows(outputs["unchanged"])[2:]}
    assert list(table) == list(NAMES)
    for name, row in table.items():
        off = max(float(row[3]), float(row[4]))
        assert (1e-5 < off < 1e-2) if name == "precision" else off < 1e-5, row
    kernels = {name: int(row[-1].replace(",", "")) for name, row in table.items()}
    assert kernels["launch"] > 3 * kernels["input"] and kernels["precision"] < kernels["input"]


def test_torchs_profiler_sees_the_messages_that_are_emulated(outputs):
    table = rows(outputs["profiler_beside_emulator"])[2:]
    assert [row[1] for row in table] == [row[2] for row in table] == ["3", "21", "6"]
    assert [row[3] for row in table] == [row[4] for row in table]


def test_traces_and_a_live_rank(outputs):
    assert re.search(r"healthy_step.json: \d{3} events", stream(outputs["chrome_trace"]))
    assert re.search(r"rank0.json: \d+ events(.|\n)*rank1.json: \d+ events", stream(outputs["chrome_trace"]))
    seen_text = stream(outputs["live_rank"])
    assert re.search(r"^    spend \(\S+\n    unpacks_archives \(", seen_text, flags=re.MULTILINE)
    assert "/" not in seen_text, "a folder of this machine"


def test_holistic_trace_analysis_reads_the_traces(outputs):
    said = stream(outputs["by_hta"])
    expect_read_by_hta(said)
    assert not (is_required("hta") and "Recorded with" in said)


def test_nccls_choices_and_latencies_are_those_that_were_published(outputs):
    choices = {row[0]: row[1:3] for row in rows(outputs["nccl_choices"])[2:]}
    assert choices["1 MiB"] == ["nccl-ring", "LL"] and choices["2 MiB"] == ["nvls", "Simple"]
    table = {row[0]: row[1:] for row in rows(outputs["ring_beside_tree"])[2:]}
    assert table["10,000"] == ["24.3 ms", "115 µs", "115 µs"] and table["16"][:2] == ["40 µs", "25.2 µs"]
    lines = stream(outputs["tuning_line"])
    assert "1048576 Bytes -> Algo RING proto LL\n" in lines and "2097152 Bytes -> Algo NVLS proto SIMPLE" in lines


def test_the_order_of_nodes_costs_only_where_levels_are_oversubscribed(outputs):
    times = [float(row[-1]) for row in rows(outputs["node_orders"])[2:]]
    assert times[0] == 1 and 2 < times[1] < 4 and times[2] > 10
    assert [row[2] for row in rows(outputs["switches"])[2:]] == ["2,048", "65,536", "16,512", "262,656"]


def test_files_cost_their_latency(outputs):
    stores = {row[0]: [seconds(text) for text in row[1:]] for row in rows(outputs["stores"])[2:]}
    assert stores["Lustre on flash"][2] == pytest.approx(23, rel=0.02)
    assert stores["8 NVMe drives of the node"][2] == pytest.approx(1.1, rel=0.05)
    imports = [seconds(row[-1]) for row in rows(outputs["import_torch"])[2:]]
    assert imports == pytest.approx([0.0178, 4.27], rel=0.01)


def test_a_loaders_law_holds_for_real_and_emulated(outputs):
    for row in rows(outputs["loaders"])[2:]:
        assert float(row[3].rstrip("%")) > -5 and float(row[5].rstrip("%")) == 0, row  # a busy machine takes longer
    launch, dtype, eager = rows(outputs["ratios"])[2:]
    assert float(launch[2]) > 1.2 and 1.5 < float(launch[3]) < 4
    assert 4 < float(dtype[-1]) < float(dtype[-2]) < 16 and 1.3 < float(eager[-1]) < 2


def test_the_bill(outputs):
    table = {row[0]: row[1:] for row in rows(outputs["bill"])[2:]}
    assert float(table["float32"][2]) > 4 * float(table["as it is"][2]) > float(table["over PCIe"][2])
    said = stream(outputs["bill_of_llama"])
    assert "91 million dollars" in said and "21.6 GWh" in said and "0.414 kg" in said and "0.9 million" in said


def test_the_rail_is_latency(outputs):
    assert [row[-1] for row in rows(outputs["rail"])[2:]] == ["10 µs", "12 µs"]
    small_s, large_s = (131072 / 13.1e9, 1048576 / 87.6e9)
    slope = (large_s - small_s) / (1048576 - 131072)
    assert small_s - slope * 131072 == pytest.approx(9.7e-6, rel=0.01)


def test_explorer_names_what_binds(outputs):
    text = "".join(str(one) for one in outputs["explore"])
    assert "binds: " in text and "A step, computed" in text


def test_answers_of_the_problems_are_right():
    assert -(-240 // 100) == 3 and -(-240 // 60) == 4
    gpu = hardware.A100
    reached = gpu.memory_bandwidth_bytes_per_s / 6
    assert reached == pytest.approx(0.34e12, rel=0.01)
    assert 100 * reached / gpu.peak_flops_per_s["bfloat16"] == pytest.approx(0.11, rel=0.02)
    calls, wire_s = 2_000 // 25, 2 * 15 / 16 * 2e9 / (8 * 48e9)
    assert (round(40e-3 * calls, 1), round(40e-3 * 300, 1), round(1e3 * wire_s, 1)) == (3.2, 12, 9.8)
    before = 1024 * 720 * 2.95
    assert (before / 1e6, before * 38 / 41 / 1e6) == pytest.approx((2.17, 2.02), rel=0.003)
    assert before * 3 / 41 == pytest.approx(159_000, rel=0.002)


def test_ledger_holds_all_results(outputs, folder):
    entries = json.loads((folder / "ledger.json").read_text())["week11"]
    assert len(entries) == 4
    assert entries["float32 over bfloat16, A100"]["prediction"] == 16
    assert 5 < entries["float32 over bfloat16, A100"]["result"] < 8
    assert 2 < entries["files on NFS over local"]["result"] < 2.5
    assert entries["ring of 10,000 GPUs, 4 bytes"]["result"] == pytest.approx(24.3, rel=0.01)
    assert entries["GPUs of Llama 3.1 405B"]["result"] == pytest.approx(91, rel=0.01)


def test_self_check_asks_five_of_twelve_questions(outputs):
    assert len(quiz.load("week11", ROOT / "quizzes").question) >= 12
    asked = re.findall(r"^(\d+)\. ", words(outputs["self_check"]), flags=re.MULTILINE)
    assert asked == ["1", "2", "3", "4", "5"]
