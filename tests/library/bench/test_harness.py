"""The harness: what it times, in which order, that a cut-off measurement goes on, and what its file says."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from cifar10_files import write_cifar10
from repository import ROOT

from autograder.authoring import programs
from worldsize import bench
from worldsize.bench import RestartPolicy, Result, ScriptHere, Task, TrainingSpec, batches
from worldsize.bench.clusters import CLASSROOM
from worldsize.bench.harness import planned
from worldsize.bench.program import read_lines, truncate_newest
from worldsize.bench.result_file import Timing, points
from worldsize.hardware import Timed, Timings

TIMINGS = Timings((Timed("add", 0, 1e6, 1e-3),), {})
TASK = Task(num_steps=6, batch_size=16, width=4)
OPTIONS = {"world_sizes": (1, 2), "num_repeats": 1, "num_warmup_steps": 2, "max_real_ranks": 2}


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("program") / "train.py"
    path.write_text(programs.solved(ROOT / "solutions/project1/train.py"))
    return path


@pytest.fixture(scope="module")
def program(path) -> ScriptHere:
    return ScriptHere(path)


def timing(**changes) -> Timing:
    fields = {
        "scaling": "strong", "world_size": 1, "repeat": 0, "is_synchronised": True, "kind": "real", "backend": "gloo",
        "batch_size": 100, "num_timed_steps": 10, "window_s": 10.0,
    }  # fmt: skip
    return Timing(**fields | changes)


def test_sizes_take_turns_and_what_has_no_core_is_emulated() -> None:
    plan = list(planned([1, 2, 4], num_real=2, num_repeats=2))
    real = [(one.scaling, one.world_size, one.is_synchronised) for one in plan if one.kind == "real"]
    assert real[:4] == [("strong", 1, True), ("strong", 2, True), ("weak", 2, True), ("strong", 2, False)]
    assert real[4:] == real[3::-1]
    emulated = [(one.scaling, one.world_size, one.repeat) for one in plan if one.kind == "emulated"]
    assert ("strong", 4, 0) in emulated and ("strong", 1, 0) in emulated and len(emulated) == len(set(emulated)) + 2
    assert all(one.kind == "real" for one in planned([1, 2], num_real=2, num_repeats=1))


def test_points_are_medians_with_their_spread_and_efficiency_is_against_one_rank_of_the_kind() -> None:
    timings = [
        timing(window_s=10), timing(window_s=12, repeat=1), timing(window_s=30, repeat=2),
        timing(world_size=2, window_s=8), timing(world_size=2, window_s=6, is_synchronised=False),
        timing(world_size=2, window_s=1, failure="it raised", repeat=1),
        timing(kind="emulated", window_s=1), timing(kind="emulated", world_size=4, window_s=0.5),
        timing(scaling="weak", world_size=2, batch_size=200, window_s=12),
    ]  # fmt: skip
    found = {(one.scaling, one.kind, one.world_size): one for one in points(timings)}
    one = found["strong", "real", 1]
    assert (one.step_s, one.spread_fraction, one.samples_per_s, one.efficiency) == pytest.approx(
        (1.2, 20 / 12, 1000 / 12, 1)
    )
    two = found["strong", "real", 2]
    assert (two.efficiency, two.communication_fraction) == pytest.approx((1.2 / (2 * 0.8), 0.25))
    assert found["strong", "emulated", 4].efficiency == pytest.approx(0.5)
    assert found["weak", "real", 2].efficiency == pytest.approx(1.0)
    assert points([timing(world_size=2), timing(kind="emulated")])[0].kind == "emulated"  # no base, no curve


def test_a_program_is_measured_and_the_file_can_be_read_again(program, tmp_path) -> None:
    timed = []
    result = bench.measure(
        program, "abc", TASK, on_timing=lambda *words: timed.append(words), **OPTIONS | {"max_real_ranks": 1}
    )
    assert [one.failure for one in result.timings] == [""] * 5
    assert [(number, total) for _, number, total in timed] == [(n, 5) for n in range(1, 6)]
    errors = [one.weights_error for one in result.timings if one.is_synchronised]
    assert all(error is not None and error < 1e-4 for error in errors)
    two = next(one for one in result.timings if one.world_size == 2 and one.is_synchronised and one.scaling == "strong")
    assert two.kind == "emulated" and two.wire_bytes_per_step == pytest.approx(TASK.gradient_bytes, rel=0.01)
    assert two.claimed_bytes_per_step == pytest.approx(TASK.gradient_bytes)
    silent = next(one for one in result.timings if not one.is_synchronised)
    assert silent.wire_bytes_per_step == 0 and silent.weights_error is None
    path = tmp_path / "result.json"
    path.write_text(result.model_dump_json())
    assert Result.model_validate_json(path.read_text()) == result
    assert json.loads(path.read_text())["format"] == "worldsize-benchmark-1"


def test_the_reference_trains_on_cifar10_too(program, tmp_path, monkeypatch) -> None:
    write_cifar10(tmp_path)
    monkeypatch.setenv("WORLDSIZE_CIFAR10", str(tmp_path))
    batches._loaded.cache_clear()  # of files that another test wrote
    task = Task(num_steps=3, batch_size=6, width=4, images="cifar10")
    trial = bench.attempt(program, TrainingSpec(task, 2), seed=3)
    assert trial.batches.batch(0)[0].shape == (6, 3, 32, 32)
    assert trial.record.missed(task) == [] and bench.weights_error(trial, task) < 1e-4


def test_a_profiled_program_tells_what_torch_did(path) -> None:
    watched = ScriptHere(path, is_profiled=True)
    events = bench.attempt(watched, TrainingSpec(TASK, 2), seed=3).result.timeline.of(1)
    assert [event.name for event in events if event.kind == "data"] == [f"samples of step {n}" for n in range(6)]
    assert {"gloo:all_reduce"} <= {event.name for event in events if event.stream == "communication"}
    assert {"compute", "backward"} <= {event.kind for event in events if event.stream == "compute"}


def test_a_measurement_that_was_cut_off_goes_on_where_it_stopped(program, tmp_path, monkeypatch) -> None:
    journal, measured = tmp_path / "journal.jsonl", []

    def counted(program, task, one, *rest):
        if len(measured) == 2:
            raise KeyboardInterrupt
        measured.append(one)
        return timing(scaling=one.scaling, world_size=one.world_size, is_synchronised=one.is_synchronised)

    monkeypatch.setattr("worldsize.bench.harness.time_one", counted)
    with pytest.raises(KeyboardInterrupt):
        bench.measure(program, "abc", TASK, journal=journal, **OPTIONS)
    kept = journal.read_text()
    journal.write_text(kept[: len(kept) // 2 + 40])  # the second line was being written
    done, measured[:] = measured[:1], []
    with pytest.raises(KeyboardInterrupt):
        bench.measure(program, "abc", TASK, journal=journal, **OPTIONS)
    assert measured and done[0] not in measured
    with pytest.raises(KeyboardInterrupt):
        bench.measure(program, "another program", TASK, journal=journal, **OPTIONS)
    assert len(measured) == 2


@pytest.mark.parametrize(
    "changes",
    [
        lambda monkeypatch: {"cluster": replace(CLASSROOM, inter=replace(CLASSROOM.inter, latency_s=1.0))},
        lambda monkeypatch: {"cluster": replace(CLASSROOM, gpu=replace(CLASSROOM.gpu, timings=TIMINGS))},
        lambda monkeypatch: monkeypatch.setattr("torch.__version__", "9.9.9"),
        lambda monkeypatch: monkeypatch.setattr("worldsize.bench.harness.metadata.version", lambda name: "9.9.9"),
        lambda monkeypatch: monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7"),
    ],
)
def test_a_kept_timing_is_of_the_same_cluster_gpus_and_versions(program, tmp_path, monkeypatch, changes) -> None:
    journal, measured = tmp_path / "journal.jsonl", []

    def counted(program, task, planned, *rest):
        measured.append(planned)
        return timing(
            scaling=planned.scaling, world_size=planned.world_size, is_synchronised=planned.is_synchronised,
            kind=planned.kind,
        )  # fmt: skip

    monkeypatch.setattr("worldsize.bench.harness.time_one", counted)
    bench.measure(program, "abc", TASK, journal=journal, **OPTIONS)
    bench.measure(program, "abc", TASK, journal=journal, **OPTIONS)
    assert len(measured) == 4
    bench.measure(program, "abc", TASK, journal=journal, **OPTIONS | (changes(monkeypatch) or {}))
    assert len(measured) == 8


def test_a_program_that_fails_is_reported_and_the_others_are_timed(tmp_path) -> None:
    path = tmp_path / "train.py"
    source = programs.solved(ROOT / "solutions/project1/train.py")
    path.write_text(
        source.replace("flags = read_flags()", "flags = read_flags()\n    assert not flags.no_sync, 'no such mode'")
    )
    result = bench.measure(ScriptHere(path), "x", TASK, **OPTIONS)
    failed = [one for one in result.timings if one.failure]
    assert len(failed) == 1 and "no such mode" in failed[0].failure and not failed[0].is_synchronised
    assert {one.world_size for one in result.points} == {1, 2}
    assert next(one for one in result.points if one.world_size == 2).communication_fraction is None


def test_weights_that_are_not_handed_in_are_missed(tmp_path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        programs.solved(ROOT / "solutions/project1/train.py").replace("samples.hand_in(replica.model)", "pass")
    )
    result = bench.measure(ScriptHere(path), "x", TASK, **OPTIONS | {"world_sizes": (1,)})
    assert "handing in its weights" in result.timings[0].failure and result.points == []


def test_lines_of_steps_are_found_among_whatever_is_printed() -> None:
    printed = (
        """warming up
{"step": 0, "loss": 2.5, "sent_bytes": 10}
{"step": 1, "loss": NaN, "sent_bytes": 10}
{"step": -1, "loss": 1, "sent_bytes": 10}
{"step": 2, "loss": 1.5
{"step": 3, "loss": 1.5, "sent_bytes": 1e400}
[1, 2]
{"step": 4, "loss": 1.25, "sent_bytes": 10, "more": "words"}
"""
        + "{" * 100_000
    )
    assert [(line.step, line.loss) for line in read_lines(printed)] == [(0, 2.5), (4, 1.25)]


def test_the_newest_file_loses_its_second_half_and_no_link_is_followed(tmp_path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"x" * 100)
    folder = tmp_path / "checkpoints"
    (folder / "deep").mkdir(parents=True)
    for age, path in enumerate((folder / "deep/new", folder / "old")):
        path.write_bytes(b"x" * 100)
        os.utime(path, (1000 - age, 1000 - age))
    (folder / "link").symlink_to(outside)
    assert truncate_newest(str(folder)) == str(folder / "deep/new")
    assert {path.name: path.stat().st_size for path in (outside, folder / "old", folder / "deep/new")} == {
        "outside": 100, "old": 100, "new": 50,
    }  # fmt: skip
    assert truncate_newest(str(tmp_path / "nowhere")) == ""


@pytest.mark.skipif(sys.platform != "linux", reason="another system does not report who calls")
def test_the_reference_survives_the_death_of_a_rank(program) -> None:
    struck = bench.Disturbance("kill", step=4, rank=1)
    task = TASK.model_copy(update={"num_steps": 8})
    spec = TrainingSpec(task, 2, checkpoint_every=3, timeout_s=10)
    trial = bench.attempt(program, spec, 5, RestartPolicy(max_restarts=1), struck)
    assert trial.result.restarts == 1 and struck.time_s is not None
    again = [take.step for take in trial.record.takes if take.time_s > struck.time_s and take.rank == 1]
    assert again[0] == 3
    assert bench.weights_error(trial, task) < 1e-4
