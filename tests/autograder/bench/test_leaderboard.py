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


def result(sha256, step_s, weights_error=1e-6, machine=MACHINE, busy_cores=0.1):
    """Steps of `step_s` seconds on one rank, and of six tenths of that on two, give or take 10%."""
    timings = [timing(1, repeat, step_s, weights_error=weights_error) for repeat in range(3)]
    timings += [timing(2, repeat, 0.6 * step_s * (0.9 + 0.1 * repeat)) for repeat in range(3)]
    timings[-1].busy_cores = busy_cores
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


BUSY = {
    **RESULTS,
    "d'or": result("d", 0.001, busy_cores=1.9),
    "yan": result("e", 0.001, weights_error=0.5, busy_cores=1.9),  # wrong, so nothing is gained by another measurement
    "zed": result("f", 0.001, busy_cores=None),  # of a file from before loads were noted
}


def test_what_was_timed_on_a_busy_machine_is_left_out_and_counted():
    html, num_shown = page(BUSY, has_names=True)
    assert num_shown == 3 and "d&#39;or" not in html and "zed" in html
    lead = " ".join(html.split())
    assert "2 did not, or could not be timed, and are not shown." in lead
    assert "1 was timed while other work kept the machine busy" in lead and "is not shown until measured again" in lead
    assert "busy" not in page(RESULTS, has_names=True)[0]
    alone, num_shown = page({"d'or": BUSY["d'or"]}, has_names=True)
    assert (
        num_shown == 0 and "1 was timed while" in alone and "No program has ended with the right weights" not in alone
    )


@pytest.mark.parametrize(
    ("folder", "start"), [("build/bench/project9", "project9"), ("some where", "ASSIGNMENT '--out=some where'")]
)
def test_the_command_prints_how_to_measure_again_what_it_left_out(tmp_path, monkeypatch, folder, start):
    monkeypatch.chdir(tmp_path)
    for number, one in enumerate(BUSY.values()):
        write(tmp_path / folder / f"student {number}", one)
    done = CliRunner().invoke(app, ["bench", "leaderboard", folder])
    assert done.exit_code == 0 and "with 3 of 6 results" in done.output
    assert f"    autograder bench {start} --no-grade --again '--student=student 3'\n" in done.output
    assert "leaves them out: student 3." in done.output
    write(tmp_path / folder / "student 3", RESULTS["anna"])
    assert "again" not in CliRunner().invoke(app, ["bench", "leaderboard", folder]).output


def write(folder, result):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text(result.model_dump_json())


@pytest.mark.parametrize(("flag", "word"), [("--names", "anna"), ("--anonymous", "aaaaaaaa")])
def test_the_command_writes_the_page_of_a_folder(tmp_path, flag, word):
    for student, one in {"anna": RESULTS["anna"], "ben": RESULTS["<b>ben</b>"]}.items():
        write(tmp_path / "out" / student, one)
    (tmp_path / "out" / "torn").mkdir()
    (tmp_path / "out" / "torn" / "result.json").write_text('{"format":')
    done = CliRunner().invoke(
        app, ["bench", "leaderboard", str(tmp_path / "out"), "--to", str(tmp_path / "page" / "index.html"), flag]
    )
    assert done.exit_code == 0 and "2 of 2" in " ".join(done.output.split())
    assert word in (tmp_path / "page" / "index.html").read_text()
