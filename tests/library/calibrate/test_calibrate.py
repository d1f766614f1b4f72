"""A calibration gives back the machine that it measured, says how busy it was, and predicts programs."""

import json
import time
from dataclasses import replace

import pytest
import torch
from drawn_machines import SIZES, Machine

import worldsize as ws
from worldsize import operators
from worldsize.calibrate import Calibration, fits, probes, runner
from worldsize.hardware import HOST, Timed, Timings
from worldsize.operators import Operator


def test_the_machines_numbers_come_back():
    machine = Machine()
    found = machine.calibration()
    assert found.gpu.architecture == HOST
    assert found.gpu.memory_bytes == 4 << 30  # of one of two ranks
    assert found.gpu.memory_bandwidth_bytes_per_s == pytest.approx(machine.bytes_per_s)
    assert found.gpu.peak_flops_per_s == {"float32": pytest.approx(machine.flops_per_s)}
    assert found.timings.slowdown == pytest.approx(machine.slowdown)
    assert found.timings.overhead_s == pytest.approx(dict.fromkeys(("forward", "backward", "update", ""), 5e-6))
    assert found.link.latency_s == pytest.approx(machine.latency_s, rel=0.02)
    assert found.link.bandwidth_bytes_per_s == pytest.approx(machine.link_bytes_per_s, rel=0.02)
    assert found.storage.latency_s == pytest.approx(machine.write_s)
    assert found.storage.write_bytes_per_s == pytest.approx(machine.write_bytes_per_s)
    assert found.cluster.world_size == 2
    assert found.cluster.library == "gloo"


def test_one_disturbed_size_does_not_change_the_link():
    machine = Machine()
    found = machine.calibration()
    rows = [dict(row) for row in found.measured["links"]]
    rows[2]["times_s"] = [9 * one for one in rows[2]["times_s"]]
    disturbed = replace(found, measured={**found.measured, "links": rows})
    assert disturbed.link.latency_s == pytest.approx(machine.latency_s, rel=0.02)
    assert disturbed.link.bandwidth_bytes_per_s == pytest.approx(machine.link_bytes_per_s, rel=0.02)


def test_a_line_with_an_outlier_is_fitted():
    points = [(size, 0.002 + size / 1e9) for size in (1e3, 1e6, 2e6, 4e6, 8e6)]
    points[3] = (points[3][0], 1.0)
    assert fits.line(points) == pytest.approx((0.002, 1e9), rel=1e-6)


def step(width):
    torch.manual_seed(0)
    model = torch.nn.Linear(width, width, bias=False)
    if torch.distributed.get_world_size() > 1:
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(64, width)).sum().backward()
        optimizer.step()


def test_a_program_is_priced_by_the_measured_times_alone():
    machine = Machine()
    run = ws.paper(step, 256, world_size=1, cluster=machine.calibration(world_size=1).cluster, echo=False)
    slower = ws.PaperRun(run.records, Machine(overhead_s=1e-3).calibration(world_size=1).cluster)
    twice = ws.PaperRun(run.records, Machine(flops_per_s=25e9).calibration(world_size=1).cluster)
    (record,) = run.records
    first, last = (one.num_batches for one in record.boundaries if one.kind == "end")
    batches = record.batches[first:last]
    num_operators = sum(number for batch in batches for number in batch.values())
    flops = sum(n * record.works[place].operator.flops for batch in batches for place, n in batch.items())
    assert flops == 2 * 2 * 64 * 256 * 256  # forward, and the gradient of the weights
    assert slower.step_s - run.step_s == pytest.approx(num_operators * (1e-3 - 5e-6))
    assert twice.step_s - run.step_s == pytest.approx(machine.slowdown * flops / 50e9, rel=1e-6)


def test_ranks_wait_for_their_messages():
    fast, slow = Machine(), Machine(link_bytes_per_s=0.1e9)
    run = ws.paper(step, 512, world_size=2, cluster=fast.calibration().cluster, echo=False)
    longer_s = run.on(slow.calibration().cluster).step_s - run.step_s
    assert longer_s == pytest.approx((1 / 0.1e9 - 1 / 1e9) * 512 * 512 * 4, rel=0.1)


def test_ranks_are_emulated_on_a_calibrated_machine():
    def product():
        torch.ones(128, 128) @ torch.ones(128, 128)

    found = Machine().calibration()
    run = ws.run(product, world_size=2, cluster=found.cluster, echo=False)
    in_all_s = run.timeline.end_s
    timings = found.timings
    expected_s = timings.time_s("mm", 2 * 128**3, 3 * 4 * 128**2) + 2 * timings.time_s("ones", 0, 4 * 128**2)
    assert in_all_s == pytest.approx(expected_s, rel=1e-6)


def test_a_product_between_two_measured_ones_has_a_rate_between_theirs():
    timings = Timings((Timed("mm", 1e6, 1e5, 1e-4), Timed("mm", 1e8, 1e6, 2e-3), Timed("add", 0, 1e3, 1e-6)), {})
    assert timings.flops_per_s("mm", 1e6, 1e5) == pytest.approx(1e10)
    assert 1e10 < timings.flops_per_s("mm", 1e7, 5e5) < 5e10
    assert timings.flops_per_s("bmm", 1e8, 1e6) == pytest.approx(5e10)  # a name that was not measured


def test_a_pass_is_on_the_line_between_two_sizes():
    curve = (Timed("add", 0, 1e3, 1e-6), Timed("add", 0, 1e5, 1e-4))
    timings = Timings((*curve, Timed("tanh", 0, 1e3, 3e-6), Timed("tanh", 0, 1e5, 3e-4)), {"forward": 1e-5})
    assert timings.time_s("add", 0, 1e4) == pytest.approx(1e-5)
    assert timings.time_s("add", 0, 10) == 1e-6
    assert timings.time_s("add", 0, 1e6) == pytest.approx(1e-3)
    assert timings.time_s("add", 0, 1e4, "forward") == pytest.approx(2e-5)
    assert timings.time_s("erf", 0, 1e4) == pytest.approx(2e-5)  # the median of the names


def test_another_dtype_is_as_its_peak():
    gpu = replace(Machine().calibration().gpu, peak_flops_per_s={"float32": 1e9, "bfloat16": 4e9})
    seconds = [operators.time_s(Operator("matmul", dtype, 1e9, 1e6), gpu, "mm") for dtype in ("float32", "bfloat16")]
    around_s = 5e-6
    assert (seconds[0] - around_s) / (seconds[1] - around_s) == pytest.approx(4)


def test_a_saved_calibration_is_the_same(tmp_path):
    found = Machine().calibration()
    found.save(tmp_path / "machine.json")
    assert Calibration.load(tmp_path / "machine.json") == found
    lines = (tmp_path / "machine.json").read_text().splitlines()
    assert max(map(len, lines)) < 200  # a line a probe


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": "other"}, "its format is 'other', not 'worldsize calibration 1'"),
        ({"links": None}, "is not a calibration"),
        ({"write": [{"size_bytes": 1, "times_s": []}]}, "a row of write has no times"),
        ({"write": [{"size_bytes": 1, "times_s": [0.0]}]}, "a time that is not above 0"),
    ],
)
def test_a_file_that_is_no_calibration_is_refused(tmp_path, change, words):
    path = tmp_path / "machine.json"
    Machine().calibration().save(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=words):
        Calibration.load(path)


def test_a_missing_field_is_named(tmp_path):
    path = tmp_path / "machine.json"
    Machine().calibration().save(path)
    fields = json.loads(path.read_text())
    del fields["passes"]
    path.write_text(json.dumps(fields))
    with pytest.raises(ValueError, match="it has no passes"):
        Calibration.load(path)


def test_a_busy_machine_is_flagged():
    idle, busy = Machine().calibration(), Machine().calibration(busy_cores=(0.1, 1.4))
    assert not idle.is_busy
    assert busy.is_busy
    assert "other work kept 0.2 of 2 cores busy: idle enough" in repr(idle)
    assert "other work kept 1.4 of 2 cores busy" in repr(busy)
    assert "the median is above the best by: CPU time 50%, messages 50%, files 50%" in repr(idle)
    assert "does not report" in repr(Machine().calibration(busy_cores=()))


def test_a_busy_machine_is_refused_if_so_asked(monkeypatch):
    from worldsize.bench import machine

    monkeypatch.setattr(machine, "busy_cores", lambda: 1.4)
    monkeypatch.setattr(runner, "run", lambda *_, **__: pytest.fail("it was measured"))
    with pytest.raises(ValueError, match=r"other work keeps 1\.4 of \d+ cores busy: end it and calibrate again"):
        ws.calibrate(is_strict=True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_threads": 0}, "num_threads is 0"),
        ({"budget_s": 0.5}, r"budget_s is 0\.5"),
        ({"world_size": 0}, "world_size"),
    ],
)
def test_wrong_arguments_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        ws.calibrate(**options)


def test_the_picture_says_what_it_shows():
    two, one = Machine().calibration().draw(), Machine().calibration(world_size=1).draw()
    assert [len(picture.axes) for picture in (two, one)] == [3, 2]
    assert "made up, measured by 2 ranks. Products reach 50.0 to 50.0 GFLOP/s" in two.alt
    assert "All-reduces take" in two.alt
    assert "All-reduces" not in one.alt


def test_fits_of_ones_own_are_drawn_over_the_probes():
    made_up = Machine().calibration()
    bare = made_up.draw()
    drawn = made_up.draw(lambda flops, size: flops / 25e9, lambda name, size: size / 10e9, lambda size: 1.0)
    shown = [axes.get_legend_handles_labels()[1] for axes in drawn.axes]
    assert [labels.count("fit") for labels in shown] == [1, 1, 1]
    assert "fit" not in bare.axes[0].get_legend_handles_labels()[1]
    assert "GFLOP/s. Half of them are within 100% of the fit." in drawn.alt
    assert "Half of them are within 0% of the fit." in drawn.alt
    assert "All-reduces take 1,000 to 1,000 ms by the fitted link" in drawn.alt


def test_threads_that_work_at_once_are_not_added_up(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert probes._clock() is time.process_time
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert probes._clock() is time.perf_counter


def test_this_machine_is_measured(tmp_path):
    found = ws.calibrate(1, budget_s=1, folder=tmp_path)
    assert found.link is None
    with pytest.raises(ValueError, match="a single rank sends nothing"):
        found.message_s(8)
    assert {row["name"] for row in found.measured["products"]} == {"addmm", "mm", "bmm"}
    assert all(len(row["times_s"]) >= 2 for rows in found.measured.values() for row in rows)
    assert not list(tmp_path.iterdir())
    assert len(found.measured["write"]) == 8  # seven without the one that lab 14 leaves out
    assert found.timings.slowdown >= 1
    larger = [found.timings.time_s("mm", 2 * n**3, 12 * n**2) for n in (64, 256, 512)]
    assert larger == sorted(larger)
    assert len(SIZES) == 5
