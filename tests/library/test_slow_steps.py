"""Traces of torch.profiler are read, and the report names what makes their steps slow, with the rank and the call."""

import gzip
import re

import pytest
from made_traces import STEP_US, Trace, ends

import worldsize as ws
from worldsize.__main__ import main
from worldsize.slow_steps import explain_steps
from worldsize.timeline.kineto import is_trace, read_traces

CAUSES = {
    "compute": lambda: ends(Trace()).kernel(1, 950).kernel(951, 40, name="norm"),
    "communication, unmatched": lambda: ends(Trace()).kernel(1, 500).all_reduce(400, 599),
    "copy": lambda: ends(Trace()).kernel(1, 500).kernel(501, 498, name="HtoD (Pageable)", cat="gpu_memcpy"),
    "idle: launches": lambda: ends(Trace()).kernel(1, 500).kernel(800, 199, 790).host(501, 290, "aten::addcmul_"),
    "idle: after a synchronization": lambda: (
        ends(Trace())
        .kernel(1, 500)
        .kernel(800, 199, 790)
        .host(300, 215, "aten::item")
        .host(310, 200, "cudaStreamSynchronize", "cuda_runtime")
    ),
    "idle: next batch": lambda: (
        ends(Trace())
        .kernel(1, 500)
        .kernel(800, 199, 790)
        .host(450, 330, "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "user_annotation")
    ),
    "idle: other": lambda: ends(Trace()).kernel(1, 500).kernel(800, 199),
}
DETAILS = {
    "compute": "  96% of it in gemm",
    "communication, unmatched": "  nccl:all_reduce, 1 in a step of 1.00 MB: 599 µs each, 1.7 GB/s",
    "copy": "  100% of it in HtoD (Pageable)",
    "idle: launches": "  0.30 ms of it in aten::addcmul_",
    "idle: after a synchronization": "  0.30 ms of it in aten::item",
}


def rows(report):
    """The numbers in each row of the report's table, for each rank, in milliseconds unless steps are shorter."""
    lines = (line for line in report.splitlines() if line.endswith((" ms", " µs")) and not line.startswith(" "))
    return {re.split(r"  +", line)[0]: [float(ms) for ms in re.findall(r"([\d.]+) [mµ]s", line)] for line in lines}


@pytest.mark.parametrize("cause", CAUSES)
def test_each_cause_is_named_with_what_it_is_made_of(tmp_path, cause):
    report = explain_steps([CAUSES[cause]().written(tmp_path)])
    assert report.startswith("2 steps of 1.00 ms on rank 0 of 2.\n")
    said = report.splitlines()
    at = next(number for number, line in enumerate(said) if line.startswith("What binds: "))
    assert said[at].startswith(f"What binds: {cause}, ") and said[-1].startswith("What to do: ")
    assert cause not in DETAILS or said[at + 1] == DETAILS[cause]


def test_only_calls_in_what_binds_are_listed(tmp_path):
    trace = ends(Trace()).kernel(11, 490, 10).kernel(800, 199, 790).host(501, 290, "aten::addcmul_")
    trace.host(0, 20, "enumerate(DataLoader)#_BaseDataLoaderIter.__next__", "user_annotation")
    report = explain_steps([trace.written(tmp_path)])
    said = report.splitlines()
    at = next(number for number, line in enumerate(said) if line.startswith("What binds: idle: launches"))
    assert said[at + 1 : -1] == ["  0.30 ms of it in aten::addcmul_"]


@pytest.mark.parametrize("cause", CAUSES)
def test_every_moment_counts_once(tmp_path, cause):
    table = rows(explain_steps([CAUSES[cause]().written(tmp_path)]))
    ((whole,), (hidden,)) = table.pop("all"), table.pop("communication, hidden")
    assert whole == 1.0 and sum(ms for (ms,) in table.values()) == pytest.approx(whole, abs=0.05 * len(table))
    assert hidden == (0.1 if cause == "communication, unmatched" else 0.0)


@pytest.mark.parametrize("ahead_us", [0.0, 4e6], ids=["one clock", "clocks four seconds apart"])
def test_the_rank_that_comes_late_is_named_and_what_it_spends_its_time_on(tmp_path, ahead_us):
    early = ends(Trace(0)).kernel(1, 300).all_reduce(301, 600)
    late = ends(Trace(1, ahead_us=ahead_us)).kernel(1, 300).kernel(301, 450, name="more").all_reduce(751, 150)
    paths = [late.written(tmp_path), early.written(tmp_path)]
    assert min(event.start_s for event in ws.Timeline.from_traces(paths).events) == pytest.approx(0, abs=1e-6)
    report = explain_steps(paths)
    table = rows(report)
    assert table["wait for a later rank"] == [pytest.approx(0.45, abs=0.06), 0.0]
    assert table["transfer"] == [pytest.approx(0.15, abs=0.06)] * 2
    assert "2 steps of 1.00 ms on ranks 0 and 1." in report and "What binds: wait for a later rank, 45%" in report
    assert "\nRank 1 is late: the others wait 0.45 ms of a step.\n" in report
    assert "  It spends 0.75 ms of a step on 'compute', the others 0.30 ms (medians).\n" in report
    assert "  It runs 4 kernels or operators in a step, the others 3.\n  60% of it in more\n" in report


def test_ranks_of_other_groups_are_not_waited_for(tmp_path):
    own = ends(Trace(0)).all_reduce(301, 600)
    other = ends(Trace(1)).all_reduce(751, 150)
    for record in other.records:
        if "Process Group Ranks" in record["args"]:
            record["args"]["Process Group Ranks"] = "[1, 3]"
    table = rows(explain_steps([own.written(tmp_path), other.written(tmp_path)]))
    assert table["wait for a later rank"] == [0.0, 0.0]


def test_a_rank_does_not_wait_for_its_own_next_collective(tmp_path):
    own = ends(Trace(0)).all_reduce(301, 100).all_reduce(451, 100)
    table = rows(explain_steps([own.written(tmp_path), ends(Trace(1)).written(tmp_path)]))
    assert table["wait for a later rank"] == [0.0, 0.0]


def test_who_waits_for_a_message_is_not_called_a_slow_link(tmp_path):
    sender = ends(Trace(0)).kernel(1, 700).collective(701, 30, "send", "ncclDevKernel_SendRecv")
    receiver = ends(Trace(1)).collective(1, 730, "recv", "ncclDevKernel_SendRecv").kernel(732, 260)
    report = explain_steps([sender.written(tmp_path), receiver.written(tmp_path)])
    assert rows(report)["communication, unmatched"] == [0.03, 0.73] and rows(report)["transfer"] == [0.0, 0.0]
    assert "What binds: communication, unmatched, 38%" in report and "send and recv are not matched" in report
    assert "give the traces" not in report


def test_numbered_collectives_of_unequal_sizes_belong_together(tmp_path):
    def all_to_all(trace, start_us, length_us, count):
        return trace.collective(start_us, length_us, "all_to_allv", "ncclDevKernel_SendRecv", count, Seq=4)

    early = all_to_all(ends(Trace(0)).kernel(1, 100), 101, 700, 1200)
    late = all_to_all(ends(Trace(1)).kernel(1, 700), 701, 100, 1300)
    table = rows(explain_steps([early.written(tmp_path), late.written(tmp_path)]))
    assert table["wait for a later rank"] == [0.6, 0.0] and table["transfer"] == [0.1, 0.1]


def test_a_clock_is_aligned_by_a_rank_in_between(tmp_path):
    """Ranks 0 and 3 share no collective: 0 meets 1, 1 meets 2 and 2 meets 3, on two machines four seconds apart."""
    ahead_us, start_us = {0: 0, 1: 0, 2: 4e6, 3: 4e6}, {0: 100, 1: 200, 2: 300, 3: 400}
    paths = []
    for rank in range(4):
        trace = ends(Trace(rank, ahead_us=ahead_us[rank]))
        for first in {max(0, rank - 1), min(2, rank)}:
            begin_us = start_us[rank] + 200 * first
            trace.all_reduce(begin_us, 500 + 200 * first - begin_us, ranks=f"[{first}, {first + 1}]")
        paths.append(trace.written(tmp_path))
    starts_s = [min(one.event.start_s for one in trace.activities) for trace in read_traces(paths)]
    assert starts_s == pytest.approx([0.0] * 4, abs=1e-6)


MS = 1000.0  # in a trace's microseconds
OF_PAIRS = (50, 50, 90, 90)  # milliseconds of compute


def on_cpu(rank, own_ms, step_ms, **more):
    """A trace of a CPU that computes for the first of these milliseconds and in the last one of the step."""
    trace = Trace(rank, step_us=step_ms * MS, **more)
    return trace.host(0, own_ms * MS, "aten::mm").host((step_ms - 1) * MS, MS, "aten::add_")


def with_slow_gloo():
    """Two ranks of three steps whose second all-reduce ends ten milliseconds later on the rank that is late."""
    early = on_cpu(0, 5, 50, num_steps=3).gloo(5 * MS, 27 * MS).gloo(8 * MS, 27 * MS)
    return early, on_cpu(1, 30, 50, num_steps=3).gloo(30 * MS, 2 * MS).gloo(33 * MS, 12 * MS)


def all_reduces(trace):
    return [record for record in trace.records if record["name"] == "gloo:all_reduce"]


def test_collectives_whose_ends_differ_between_ranks_belong_together(tmp_path):
    report = explain_steps([trace.written(tmp_path) for trace in with_slow_gloo()])
    table = rows(report)
    assert table["wait for a later rank"] == [28.0, 0.0] and table["transfer"] == [2.0, 14.0]
    assert "Rank 1 is late: the others wait 28.0 ms of a step." in report
    assert "communication, unmatched" not in table and "give the traces" not in report


@pytest.mark.parametrize("are_marked", [True, False], ids=["steps marked", "no step marked"])
@pytest.mark.parametrize("place", [0, -1], ids=["first", "last"])
def test_a_trace_that_begins_or_ends_within_a_step_is_matched_with_one_that_does_not(tmp_path, place, are_marked):
    traces = with_slow_gloo()
    traces[1].records.remove(all_reduces(traces[1])[place])
    for trace in traces:
        trace.records = [one for one in trace.records if are_marked or not one["name"].startswith("ProfilerStep")]
    report = explain_steps([trace.written(tmp_path) for trace in traces])
    assert "Rank 1 is late: " in report and "\nIn no other trace: 1 gloo:all_reduce.\n" in report


def test_traces_of_other_steps_have_only_the_common_ones_matched(tmp_path):
    traces = with_slow_gloo()
    for record in traces[1].records:
        record["ts"] += 50 * MS
        record["name"] = re.sub(r"#(\d+)", lambda number: f"#{int(number[1]) + 1}", record["name"])
    report = explain_steps([trace.written(tmp_path) for trace in traces])
    assert "\nIn no other trace: 4 gloo:all_reduce.\n" in report
    assert rows(report)["wait for a later rank"] == [18.7, 0.0]
    assert "Rank 1 is late: " in report


def test_a_rank_that_sleeps_is_named_by_what_the_others_wait(tmp_path):
    traces = [on_cpu(rank, 10, 100).gloo(10 * MS, 85 * MS) for rank in (0, 1, 3)]
    traces.append(on_cpu(2, 10, 100).gloo(90 * MS, 5 * MS))
    report = explain_steps([trace.written(tmp_path, ranks=4) for trace in traces])
    assert "\nRank 2 is late: the others wait 80.0 ms of a step.\n" in report
    assert "\n  It spends 84.0 ms of a step on 'idle: Python', the others 4.0 ms (medians).\n" in report
    assert "\nWhat binds: wait for a later rank, 80% of the other ranks' step.\n" in report
    assert report.splitlines()[-1].startswith("What to do: on rank 2, look at the Python code between the operators")


@pytest.mark.parametrize("iterator", ["_SingleProcessDataLoaderIter", "_MultiProcessingDataLoaderIter"])
@pytest.mark.parametrize("operators", [(), ("aten::stack",)], ids=["a dataset without torch", "operators of torch"])
def test_a_rank_that_loads_its_batches_slowly_without_a_gpu_gets_advice_on_loading(tmp_path, iterator, operators):
    traces = []
    for rank, loading_ms in enumerate((0.3, 100)):
        trace = Trace(rank, step_us=150 * MS)
        trace.host(0, loading_ms * MS, f"enumerate(DataLoader)#{iterator}.__next__", "user_annotation")
        for name in operators:
            trace.host(0.1 * loading_ms * MS, 0.8 * loading_ms * MS, name)
        trace.host(loading_ms * MS, 20 * MS, "aten::mm").gloo((loading_ms + 20) * MS, (129 - loading_ms) * MS)
        traces.append(trace.host(149 * MS, MS, "aten::add_"))
    report = explain_steps([trace.written(tmp_path) for trace in traces])
    assert "\nRank 1 is late: the others wait 99.7 ms of a step.\n" in report
    assert "\n  It spends 100.0 ms of a step on 'idle: next batch', the others 0.3 ms (medians).\n" in report
    table = rows(report)
    assert table["idle: next batch"] == [0.3, 100.0] and table["idle: Python"] == [0.0, 0.0]
    assert table["compute"] == [21.0, 21.0] and table["all"] == [150.0, 150.0]
    cure = report.splitlines()[-1]
    assert cure.startswith("What to do: on rank 1, load ahead: more workers (`num_workers`), `prefetch_factor`, ")
    assert "`pin_memory`" in cure and "local disk. Do the same on the others if their loaders are as slow" in cure


def test_two_late_ranks_are_both_named(tmp_path):
    traces = [
        on_cpu(rank, own_ms, 100).gloo(own_ms * MS, (95 - own_ms) * MS) for rank, own_ms in enumerate((10, 80, 10, 81))
    ]
    report = explain_steps([trace.written(tmp_path, ranks=4) for trace in traces])
    assert "Ranks 1 and 3 are late: the others wait 71.0 ms of a step.\n  They spend " in report
    assert "  They run as much as the others, but slower: larger inputs, a lower clock or shared cores.\n" in report


@pytest.mark.parametrize(
    ("slower_ms", "said"),
    [
        ([0] * 6, "No rank is late in step after step."),
        ([0, 0, 0, 45, 45, 0], "No rank is late in step after step."),
        ([25] * 6, "Rank 1 is late: "),
    ],
    ids=["jitter alone", "two slow steps", "slow in all"],
)
def test_jitter_makes_no_rank_late(tmp_path, slower_ms, said):
    jitter_ms = [[20, 1, 9, 4, 0, 12], [3, 22, 8, 6, 2, 15], [11, 5, 30, 7, 1, 10], [2, 9, 14, 3, 25, 6]]
    own_ms = [[40 + ms for ms in of_steps] for of_steps in jitter_ms]
    own_ms[1] = [ms + more_ms for ms, more_ms in zip(own_ms[1], slower_ms, strict=True)]
    paths = []
    for rank, of_steps in enumerate(own_ms):
        trace = Trace(rank, num_steps=6, step_us=100 * MS)
        for step, ms in enumerate(of_steps):
            last_ms = max(ranks[step] for ranks in own_ms) + 5
            trace.add("cpu_op", "aten::mm", step * 100 * MS, ms * MS)
            trace.add("user_annotation", "gloo:all_reduce", (step * 100 + ms) * MS, (last_ms - ms) * MS)
            trace.add("cpu_op", "aten::add_", (step * 100 + last_ms) * MS, (100 - last_ms) * MS)
        paths.append(trace.written(tmp_path, ranks=4))
    assert said in explain_steps(paths)


def test_gloos_collectives_beside_a_gpu_are_communication(tmp_path):
    early = ends(Trace(0)).kernel(1, 299).all_reduce(300, 200).gloo(500, 400).kernel(900, 99, 899)
    late = ends(Trace(1)).kernel(1, 299).all_reduce(300, 200).kernel(500, 300).gloo(800, 100).kernel(900, 99, 899)
    report = explain_steps([early.written(tmp_path), late.written(tmp_path)])
    table = rows(report)
    assert table["wait for a later rank"] == [0.3, 0.0] and table["transfer"] == [0.3, 0.3]
    assert table["idle: launches"] == table["idle: other"] == [0.0, 0.0]
    assert "Rank 1 is late: the others wait 0.30 ms of a step.\n  It spends 0.70 ms of a step on 'compute'" in report


@pytest.mark.parametrize("machine", ["node0", "node1"])
def test_a_broadcasts_root_that_has_left_does_not_wait(tmp_path, machine):
    root = on_cpu(0, 5, 50, machine="node0").gloo(5 * MS, 2 * MS, "gloo:broadcast")
    other = on_cpu(1, 30, 50, machine=machine).gloo(30 * MS, 2 * MS, "gloo:broadcast")
    paths = [root.written(tmp_path), other.written(tmp_path)]
    table = rows(explain_steps(paths))
    assert table["wait for a later rank"] == [0.0, 0.0] and table["transfer"] == [2.0, 2.0]
    assert [trace.steps[0].start_s for trace in read_traces(paths)] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("machine", "ahead_us", "moved_s"),
    [("node0", 0, 0), ("node0", 150, 0), ("node0", 4e6, 4.0), ("node1", 150, 150e-6), ("node1", 4e6, 4.0)],
    ids=["one machine", "one machine, unequal ends", "another of its name", "another", "another, seconds apart"],
)
def test_a_machine_has_one_clock_and_another_is_moved_to_it(tmp_path, machine, ahead_us, moved_s):
    early = ends(Trace(0, machine="node0")).all_reduce(301, 600)
    late = ends(Trace(1, ahead_us=ahead_us, machine=machine)).all_reduce(751, 150)
    first, second = read_traces([early.written(tmp_path), late.written(tmp_path)])
    assert second.steps[0].start_s - first.steps[0].start_s == pytest.approx(ahead_us / 1e6 - moved_s, abs=1e-6)


def test_gloos_unequal_ends_move_only_a_clock_that_cannot_be_right(tmp_path):
    starts_s = []
    for ahead_us in (0, 4e6):
        early, late = with_slow_gloo()
        early.machine, late.machine = "node0", "node1"
        for record in late.records:
            record["ts"] += ahead_us
        first, second = read_traces([early.written(tmp_path), late.written(tmp_path)])
        starts_s.append(second.steps[0].start_s - first.steps[0].start_s)
    assert starts_s == [0.0, pytest.approx(0.0, abs=0.011)]


def test_gloos_unequal_ends_leave_one_machine_its_one_clock(tmp_path):
    early = on_cpu(0, 5, 60, machine="node0").gloo(5 * MS, 27 * MS)
    late = on_cpu(1, 30, 60, machine="node0").gloo(30 * MS, 22 * MS)
    paths = [early.written(tmp_path), late.written(tmp_path)]
    assert [trace.steps[0].start_s for trace in read_traces(paths)] == [0.0, 0.0]
    assert "Rank 1 is late: the others wait 25.0 ms of a step." in explain_steps(paths)


def in_pairs(rank, own_us, last_us):
    """A trace of a rank that computes for so long, then meets its neighbour: 0 meets 1 and 2 meets 3."""
    first = rank - rank % 2
    trace = ends(Trace(rank)).kernel(1, own_us)
    return trace.all_reduce(1 + own_us, last_us + 49 - own_us, ranks=f"[{first}, {first + 1}]")


@pytest.mark.parametrize("all_meet", [False, True], ids=["in pairs only", "all at the end of the step too"])
def test_a_rank_for_which_only_its_own_group_waits_is_late(tmp_path, all_meet):
    traces = [in_pairs(rank, 850 if rank == 3 else 400, 850 if rank > 1 else 400) for rank in range(4)]
    for trace in traces if all_meet else ():
        trace.kernel(500 if trace.rank < 2 else 901, 400 if trace.rank < 2 else 1, name="more")
        trace.all_reduce(910, 50, ranks="[0, 1, 2, 3]")
    report = explain_steps([trace.written(tmp_path, ranks=4) for trace in traces])
    assert rows(report)["wait for a later rank"] == [0.0, 0.0, 0.45, 0.0]
    assert "\nRank 3 is late: the others in its collectives wait 0.45 ms of a step.\n" in report
    assert "  It spends 0.85 ms of a step on 'compute', the others 0.40 ms (medians).\n" in report
    assert "What binds: wait for a later rank, 45% of the other ranks' step." in report


def test_a_rank_in_no_collective_is_not_late(tmp_path):
    paths = []
    for rank in range(3):
        trace = Trace(rank, num_steps=12)
        for step in range(12):
            own_us = 950 if step % 3 == rank else 500
            trace.add("kernel", "gemm", step * STEP_US, own_us, stream=7)
            args = {"Collective name": "allreduce", "Process Group Name": "0", "Process Group Ranks": "[0, 1, 2]"}
            name = "ncclDevKernel_AllReduce_Sum_f32"
            trace.add("kernel", name, step * STEP_US + own_us, STEP_US - own_us, stream=20, **args)
        paths.append(trace.written(tmp_path, ranks=4))
    paths.append(ends(Trace(3, num_steps=12)).kernel(1, 970).written(tmp_path, ranks=4))
    report = explain_steps(paths)
    assert rows(report)["wait for a later rank"] == [0.3, 0.3, 0.3, 0.0]
    assert "\nNo rank is late in step after step.\n" in report


def test_ranks_that_are_late_in_turn_are_not_all_late(tmp_path):
    paths = []
    for rank in range(4):
        trace = Trace(rank, num_steps=40)
        for step in range(40):
            own_us = 950 if step % 4 == rank else 500
            trace.add("cpu_op", "aten::mm", step * STEP_US, own_us)
            trace.add("user_annotation", "gloo:all_reduce", step * STEP_US + own_us, STEP_US - own_us)
        paths.append(trace.written(tmp_path, ranks=4))
    assert "\nNo rank is late in step after step.\n" in explain_steps(paths)


def test_a_rank_that_came_late_from_a_recv_is_not_the_late_one(tmp_path):
    """Two stages of two ranks: rank 3 is slow, so that rank 1 gets its gradients late and keeps rank 0 waiting."""
    paths = []
    for rank in range(4):
        sent_us = 800 if rank in (1, 3) else 400  # by the second stage
        if rank > 1:
            trace = in_pairs(rank, sent_us, 800)
        else:
            trace = ends(Trace(rank)).kernel(1, 99)
            trace.collective(100, sent_us - 99, "recv", "ncclDevKernel_SendRecv", ranks=f"[{rank}, {rank + 2}]")
            trace.kernel(1 + sent_us, 99).all_reduce(100 + sent_us, 850 - sent_us)
        paths.append(trace.written(tmp_path, ranks=4))
    report = explain_steps(paths)
    assert rows(report)["wait for a later rank"] == [0.4, 0.0, 0.4, 0.0]
    assert "\nRank 3 is late: the others in its collectives wait 0.40 ms of a step.\n" in report


def test_collectives_of_groups_that_the_trace_does_not_name_are_not_matched(tmp_path):
    """Ranks 0 and 1 have a slow transfer, and ranks 2 and 3 compute for longer; the pairs never meet."""
    traces = [on_cpu(rank, own_ms, 100).gloo(own_ms * MS, (99 - own_ms) * MS) for rank, own_ms in enumerate(OF_PAIRS)]
    paths = [trace.written(tmp_path, ranks=4, groups=[[0, 1] if trace.rank < 2 else [2, 3]]) for trace in traces]
    report = explain_steps(paths)
    assert rows(report)["communication, unmatched"] == [49.0, 49.0, 9.0, 9.0]
    assert " late" not in report.replace("wait for a later rank", "") and "In no other trace" not in report
    said = "Not matched, as their ranks are in several groups and the traces do not name which: 8 gloo:all_reduce."
    assert f"\n{said}\n" in report


def test_collectives_of_two_groups_of_the_same_ranks_are_matched(tmp_path):
    report = explain_steps([trace.written(tmp_path, groups=[[0, 1]]) for trace in with_slow_gloo()])
    assert "Rank 1 is late: the others wait 28.0 ms of a step." in report and "Not matched" not in report


def test_only_ranks_whose_traces_are_not_given_are_asked_for(tmp_path):
    path = CAUSES["communication, unmatched"]().written(tmp_path)
    assert "What to do: give the traces of rank 1 too: " in explain_steps([path])
    traces = [ends(Trace(rank)).all_reduce(400, 500, ranks=f"[{rank}, {rank + 2}]") for rank in (0, 1)]
    assert "What to do: give the traces of ranks 2 and 3 too: " in explain_steps(
        [one.written(tmp_path, 4) for one in traces]
    )


def test_an_operator_is_named_however_many_it_calls(tmp_path):
    trace = CAUSES["idle: launches"]()
    for number in range(600):
        trace.add("cpu_op", "aten::empty", 502 + number / 10, 0.05)
    assert "  0.30 ms of it in aten::addcmul_" in explain_steps([trace.written(tmp_path)])


def test_steps_shorter_than_a_millisecond_are_in_microseconds(tmp_path):
    report = explain_steps([ends(Trace(step_us=100)).kernel(1, 50).written(tmp_path)])
    assert rows(report)["compute"] == [52.0] and re.search(r"^all +100\.0 µs$", report, re.MULTILINE)


@pytest.mark.parametrize(
    ("name", "cat", "row"),
    [
        ("Memcpy DtoD (Device -> Device)", "gpu_memcpy", "compute"),
        ("Memcpy PtoP (Device -> Device)", "gpu_memcpy", "communication, unmatched"),
        ("Memcpy HtoD (Pinned -> Device)", "gpu_memcpy", "copy"),
        ("ncclSymkDevKernel_AllReduce_AGxLLMC_R(args)", "kernel", "communication, unmatched"),
        ("ncclSymDevKernel_AllGather_LL(args)", "kernel", "communication, unmatched"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(args)", "kernel", "communication, unmatched"),
        ("ncclKernels_AllGather_RING(args)", "kernel", "communication, unmatched"),
    ],
)
def test_what_runs_on_a_gpu_counts_as_what_it_is(tmp_path, name, cat, row):
    table = rows(explain_steps([ends(Trace()).kernel(1, 998, name=name, cat=cat).written(tmp_path)]))
    assert table[row] == [1.0] and sum(ms for (ms,) in table.values()) == 2.0  # this row and 'all'


def test_a_last_step_that_has_hardly_begun_is_not_counted(tmp_path):
    trace = ends(Trace(num_steps=3)).kernel(1, 998).add("user_annotation", "ProfilerStep#10", 3 * STEP_US, 8)
    assert explain_steps([trace.written(tmp_path)]).startswith("3 steps of 1.00 ms on rank 0 of 2.\n")


def test_without_marked_steps_the_whole_trace_is_explained(tmp_path):
    trace = CAUSES["compute"]()
    trace.records = [record for record in trace.records if not record["name"].startswith("ProfilerStep")]
    said = explain_steps([trace.written(tmp_path)])
    assert said.startswith("No step is marked (`profiler.step()` does so), so this is the whole trace of 2.00 ms on")


def test_only_the_thread_that_launches_next_is_asked(tmp_path):
    trace = CAUSES["idle: launches"]().host(0, 999, "cudaEventSynchronize", "cuda_runtime")
    for record in trace.records:
        record["tid"] = 99 if record["name"] == "cudaEventSynchronize" else record["tid"]
    assert "What binds: idle: launches, 30%" in explain_steps([trace.written(tmp_path)])


def test_launches_of_other_runtimes_are_read(tmp_path):
    trace = CAUSES["idle: launches"]()
    for record in trace.records:
        record["cat"] = record["cat"].replace("cuda_", "xpu_")
    assert "What binds: idle: launches, 30%" in explain_steps([trace.written(tmp_path)])


def test_a_trace_with_stacks_names_the_line(tmp_path):
    trace = CAUSES["idle: launches"]()
    trace.host(200, 700, "train.py(23): step", "python_function").host(
        505, 200, "torch/optim/adam.py(9): f", "python_function"
    )
    assert "  0.30 ms of it in aten::addcmul_, train.py(23): step" in explain_steps([trace.written(tmp_path)])


def traced(folder):
    """The file of what torch.profiler has recorded of two steps on this rank."""
    import torch
    import torch.distributed as dist

    path = f"{folder}/rank{dist.get_rank()}.json"
    a = torch.ones(64, 64)
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=2)
    with torch.profiler.profile(schedule=schedule, on_trace_ready=lambda p: p.export_chrome_trace(path)) as profiler:
        for _ in range(4):
            dist.all_reduce(a @ a)
            profiler.step()
    return path


def test_what_torch_writes_is_read(tmp_path, capsys):
    paths = ws.run(traced, str(tmp_path), world_size=2, echo=False).values
    assert all(map(is_trace, paths)) and main(["explain", *paths]) == 0
    said = capsys.readouterr().out
    assert said.startswith("2 steps of ") and " on ranks 0 and 1.\n" in said
    assert {"compute", "transfer", "wait for a later rank", "idle: Python"} <= rows(said).keys()
    timeline = ws.Timeline.from_traces(paths)
    names = [[event.name for event in timeline.of(rank)] for rank in (0, 1)]
    assert [name.count("gloo:all_reduce") for name in names] == [2, 2]
    assert all(timeline.exposed_communication_s(rank) > 0 for rank in (0, 1))


def test_a_compressed_trace_without_a_rank_takes_that_of_its_name(tmp_path):
    path = tmp_path / "rank5.json.gz"
    plain = CAUSES["compute"]().written(tmp_path)
    path.write_bytes(gzip.compress(plain.read_bytes().replace(b'"rank": 0, ', b"")))
    assert is_trace(path) and read_traces([path])[0].rank == 5


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), "worker0.pt.trace.json: not a whole trace"),
        (lambda path: path.write_text('{"traceEvents": 3}'), "worker0.pt.trace.json: not a whole trace"),
        (
            lambda path: path.write_text(path.read_text().replace('"ts": 5', '"ts": "5')[:-2] + '"}'),
            "not a whole trace",
        ),
        (lambda path: path.write_text(path.read_text().replace('"rank": 0', '"rank": "x"')), "not a whole trace"),
        (lambda path: path.write_bytes(gzip.compress(path.read_bytes())[:-9]), "worker0.pt.trace.json: not a whole"),
        (lambda path: path.write_text('{"traceEvents": []}'), "it has no operators and no kernels"),
        (
            lambda path: path.write_text(re.sub('"dur": [0-9.]+', '"dur": 0', path.read_text())),
            "it has no operators and no kernels",
        ),
        (
            lambda path: path.write_text(path.read_text().replace('"stream": 7', '"stream": 7, "device": 1', 1)),
            "it has kernels of 2 GPUs; only ranks with one can be explained",
        ),
        (
            lambda path: path.write_text(path.read_text().replace('"kernel"', '"hpu_op"')),
            "its accelerator's activities (hpu_op) cannot be read",
        ),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path, capsys, spoil, said):
    path = CAUSES["compute"]().written(tmp_path)
    spoil(path)
    assert main(["explain", str(path)]) == 1 and said in capsys.readouterr().err


def test_two_traces_of_one_rank_are_refused(tmp_path):
    path = CAUSES["compute"]().written(tmp_path)
    with pytest.raises(ValueError, match=r"^worker0.pt.trace.json is a second trace of rank 0"):
        explain_steps([path, path])
