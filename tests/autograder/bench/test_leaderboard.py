"""The page of a class's results: who is on it, in which order, under which name, and that it loads nothing."""

import re

import pytest
from typer.testing import CliRunner

from autograder.bench.leaderboard import page
from autograder.cli import app
from worldsize.bench import Machine, Result, Task, Timing
from worldsize.bench.result_file import points

MACHINE = Machine(
    system="Linux",
    processor="Some processor",
    num_cores=2,
    memory_bytes=16 * 10**9,
    clock_mhz=0,
    gpus=[],
    gpu_clocks_mhz=[],
    matrix_flops_per_s=4e10,
    python="3.11",
    torch="2.13",
    cuda="",
    nccl="",
    worldsize="0.1.0",
)


def timing(world_size, repeat, step_s, kind="real", weights_error=1e-6):
    return Timing(
        scaling="strong",
        world_size=world_size,
        repeat=repeat,
        is_synchronised=True,
        kind=kind,
        backend="gloo",
        batch_size=128,
        num_timed_steps=10,
        window_s=10 * step_s,
        weights_error=weights_error,
    )


def result(sha256, step_s, weights_error=1e-6, machine=MACHINE):
    """Steps of `step_s` seconds on one rank, and of six tenths of that on two, give or take 10%."""
    timings = [timing(1, repeat, step_s, weights_error=weights_error) for repeat in range(3)]
    timings += [timing(2, repeat, 0.6 * step_s * (0.9 + 0.1 * repeat)) for repeat in range(3)]
    timings += [timing(1, 0, step_s, "emulated"), timing(4, 0, 0.5 * step_s, "emulated")]
    return Result(
        program_sha256=sha256 * 64,
        measured_at="2026-11-22T10:00:00+00:00",
        machine=machine,
        task=Task(),
        num_warmup_steps=4,
        num_threads=1,
        cluster="classroom",
        timings=timings,
        points=points(timings),
    )


RESULTS = {"anna": result("a", 0.02), "<b>ben</b>": result("b", 0.01), "zoe": result("c", 0.001, weights_error=0.5)}


def rows(html):
    return [" ".join(re.sub(r"<[^>]*>", " ", row).split()) for row in re.findall(r"(?s)<tr>(.*?)</tr>", html)]


def test_programs_stand_in_order_of_speed_with_spread_and_efficiency_and_wrong_weights_are_left_out():
    html, num_shown = page(RESULTS, has_names=True)
    assert num_shown == 2 and "1 did not, or could not be timed, and is not" in html and "zoe" not in html
    heading, first, second = rows(html)
    assert heading == "place student 1 real rank 2 real ranks 1 emulated rank 4 emulated ranks"
    # 128 samples in 6 ms on two ranks are 10,667 a second each; alone it was 12,800
    assert first == "1 &lt;b&gt;ben&lt;/b&gt; 12,800/s ±0% 10,667/s ±10% 83% efficient 12,800/s 6,400/s 50% efficient"
    assert second.startswith("2 anna 6,400/s")


def test_without_names_a_program_is_known_by_its_fingerprint():
    html, _ = page(RESULTS, has_names=False)
    assert "anna" not in html and "ben" not in html and "sha256sum train.py" in html
    assert [row.split()[1] for row in rows(html)[1:]] == ["b" * 8, "a" * 8]


def test_results_of_different_machines_stand_apart():
    other = MACHINE.model_copy(update={"processor": "Another processor"})
    html, _ = page({**RESULTS, "dora": result("d", 0.001, machine=other)}, has_names=True)
    sections = html.split("<section>")[1:]
    assert [section.count("efficient</span>") for section in sections] == [4, 2]
    assert "Another processor" in sections[1] and "dora" in sections[1]


def test_the_page_loads_nothing_and_runs_nothing():
    html, _ = page(RESULTS, has_names=True)
    assert not re.search(r"<script|<link|<img|https?:|url\(|@import", html) and "prefers-color-scheme: dark" in html


def test_a_class_in_which_nobody_was_right_has_a_page_too():
    html, num_shown = page({"zoe": RESULTS["zoe"]}, has_names=True)
    assert num_shown == 0 and "No program has ended with the right weights yet." in html


@pytest.mark.parametrize(("flag", "word"), [("--names", "anna"), ("--anonymous", "aaaaaaaa")])
def test_the_command_writes_the_page_of_a_folder(tmp_path, flag, word):
    for student, one in {"anna": RESULTS["anna"], "ben": RESULTS["<b>ben</b>"]}.items():
        (tmp_path / "out" / student).mkdir(parents=True)
        (tmp_path / "out" / student / "result.json").write_text(one.model_dump_json())
    (tmp_path / "out" / "torn").mkdir()
    (tmp_path / "out" / "torn" / "result.json").write_text('{"format":')
    done = CliRunner().invoke(
        app, ["bench", "leaderboard", str(tmp_path / "out"), "--to", str(tmp_path / "page" / "index.html"), flag]
    )
    assert done.exit_code == 0 and "2 of 2" in " ".join(done.output.split())
    assert word in (tmp_path / "page" / "index.html").read_text()
