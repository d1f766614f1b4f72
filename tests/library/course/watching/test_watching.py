"""A real Prometheus over two ranks that train: what it sees, what fires when one is killed, and the dashboard."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
import yaml
from needs import give_up
from processes import wait_until
from prometheus_client import CollectorRegistry, Gauge, start_http_server
from repository import ROOT

from worldsize.course import watching
from worldsize.course.watching.files import FOLDER

SCRAPE_S = 0.25
RANK = """
import os, sys, time
from datetime import timedelta
import torch
import torch.distributed as dist
from worldsize.course.watching import RankMetrics

rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2, timeout=timedelta(60))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with RankMetrics(rank, folder, tensorboard=f"{folder}/tensorboard") as metrics:
    while True:
        began = time.perf_counter()
        loss = model(torch.ones(8, 4)).square().mean()
        loss.backward()
        worked_s = time.perf_counter() - began
        for parameter in model.parameters():
            try:
                dist.all_reduce(parameter.grad)
            except RuntimeError:  # the other rank is gone: this one stays and waits, as a hanging rank does
                time.sleep(600)
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.05)
        metrics.step(loss.item(), time.perf_counter() - began, num_tokens=8, compute_s=worked_s)
"""


@pytest.fixture(scope="module")
def prometheus() -> None:
    if watching.missing():
        give_up("prometheus", "needs Debian's package prometheus")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, prometheus) -> Path:
    return tmp_path_factory.mktemp("watching")


@pytest.fixture(scope="module")
def ranks(folder: Path) -> Iterator[list[subprocess.Popen]]:
    started = [subprocess.Popen([sys.executable, "-c", RANK, str(rank), str(folder)]) for rank in range(2)]
    yield started
    for rank in started:
        rank.kill()
        rank.wait()


@pytest.fixture(scope="module")
def gpus(folder: Path) -> Iterator[None]:
    """An exporter of what DCGM exports by default, of two GPUs of which one hangs; the numbers are made up."""
    registry = CollectorRegistry()
    for row in watching.dcgm_fields():
        if row["on by default"] == "yes":
            gauge = Gauge(row["field"], row["meaning"], ["gpu", "Hostname"], registry=registry)
            for gpu in range(2):
                gauge.labels(gpu, "node0").set(
                    {"DCGM_FI_DEV_GPU_UTIL": 100, "DCGM_FI_DEV_XID_ERRORS": 0}.get(row["field"], gpu)
                )
    server, thread = start_http_server(0, "127.0.0.1", registry=registry)
    (folder / "gpus0.json").write_text(json.dumps([{"targets": [f"127.0.0.1:{server.server_port}"], "labels": {}}]))
    yield
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def server(folder: Path, gpus, ranks) -> Iterator[watching.Prometheus]:
    assert wait_until(lambda: len([*folder.glob("rank?.json")]) == 2, within_s=150), "the ranks did not come up"
    with watching.Prometheus(folder, SCRAPE_S) as running:
        running.wait_for("sum(train_steps_total) > 10")
        yield running


@pytest.fixture(scope="module")
def while_both_train(server) -> dict[str, list[watching.Sample]]:
    """What was seen before a rank is killed."""
    server.wait_for("count(up == 1) == 3")  # both ranks and the GPUs
    loss = server.wait_for('train_loss{rank="1"} < 1e9')
    return {"loss": loss, "up": server.query("up == 1"), "rate": server.wait_for("job:train_tokens_per_second:sum > 0")}


@pytest.fixture(scope="module")
def after_one_is_killed(while_both_train, server, ranks) -> dict[str, watching.Alert]:
    assert [alert for alert in server.alerts() if alert.name in ("RankDown", "NoStep")] == []
    ranks[1].send_signal(signal.SIGKILL)
    return {name: server.wait_for_alert(name, within_s=60) for name in ("RankDown", "NoStep")}


def test_both_ranks_are_seen_with_what_they_note(while_both_train) -> None:
    assert {sample.labels.get("rank") for sample in while_both_train["up"]} == {"0", "1", None}  # None: the GPUs
    assert while_both_train["loss"][0].labels["rank"] == "1"
    assert 0 < while_both_train["rate"][0].value < 16 / 0.05  # two ranks of 8 tokens in at least 50 ms


def test_a_rank_that_is_killed_is_down_and_the_other_one_takes_no_step(after_one_is_killed) -> None:
    down, waits = after_one_is_killed["RankDown"], after_one_is_killed["NoStep"]
    assert down.labels["rank"] == "1" and down.summary == "Rank 1 does not answer; the job has ended or hangs."
    assert waits.labels["rank"] == "0" and "Rank 0 has finished no step" in waits.summary


def test_every_query_of_the_dashboard_gives_something(after_one_is_killed, server) -> None:
    asked = watching.queries(watching.dashboard())
    assert len(asked) == len({query.panel for query in asked}) == 18
    silent = [query for query in asked if not server.query(query.expr)]
    assert silent == []


def test_every_rule_is_healthy_on_the_server(server) -> None:
    with urlopen(f"{server.url}/api/v1/rules") as answer:
        groups = json.load(answer)["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) == 11 and {rule["health"] for rule in rules} == {"ok"}


def test_a_query_that_is_not_promql_is_refused_with_the_servers_words(server) -> None:
    with pytest.raises(ValueError, match="parse error"):
        server.query("rate(train_loss)[")
    with pytest.raises(ValueError, match="expected type range vector"):
        server.query("rate(train_tokens_total)")


def test_a_number_is_a_sample_without_labels(server) -> None:
    assert server.query("1 + 1") == [watching.Sample({}, 2.0)]


def test_an_alert_that_does_not_come_says_which_did(server, after_one_is_killed) -> None:
    with pytest.raises(TimeoutError, match=r"Xid did not fire within 0.1 s; alerts are: .*RankDown"):
        server.wait_for_alert("Xid", within_s=0.1)


def test_tensorboard_shows_the_same_run(folder, after_one_is_killed, server) -> None:
    from tensorboard import program  # of the extra `dev`; it takes a second, which other tests need not wait for

    board = program.TensorBoard()
    logdir = f"--logdir={folder / 'tensorboard'}"
    board.configure(argv=["", logdir, "--port=0", "--host=127.0.0.1", "--load_fast=false", "--reload_interval=1"])
    url = board.launch()
    (exported,) = server.query('train_loss{rank="0"}')

    def points() -> list:
        with urlopen(f"{url}data/plugin/scalars/tags") as answer:
            if "loss" not in json.load(answer).get("rank0", {}):
                return []
        with urlopen(f"{url}data/plugin/scalars/scalars?run=rank0&tag=loss") as answer:
            return json.load(answer)

    (steps,) = server.query('train_steps_total{rank="0"}')
    assert wait_until(lambda: points()[-1:] != [] and points()[-1][1] == steps.value, within_s=60), points()[-1:]
    _, _, loss = points()[-1]
    assert loss == pytest.approx(exported.value, rel=1e-6)


def test_promtool_accepts_the_rules_and_their_own_tests(prometheus, tmp_path) -> None:
    for name in ("rules.yml", "rules_test.yml"):
        shutil.copy(FOLDER / name, tmp_path)
    for command in (["check", "rules", "rules.yml"], ["test", "rules", "rules_test.yml"]):
        done = subprocess.run(["promtool", *command], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    (tmp_path / "rules.yml").write_text(watching.rules().replace("== 0", "== 1", 1))  # up: now it says the contrary
    assert subprocess.run(["promtool", *command], cwd=tmp_path, capture_output=True).returncode == 1


def alerts(text: str) -> dict[str, dict]:
    """The alerting rules of a file, by name."""
    groups = yaml.safe_load(text)["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}


@pytest.mark.parametrize(("interval_s", "held"), [(5.0, "15s"), (1.0, "3000ms"), (60.0, "180000ms")])
def test_an_alert_waits_for_three_scrapes(interval_s: float, held: str) -> None:
    by_name = alerts(watching.rules(interval_s))
    assert by_name["RankDown"]["for"] == held and "for" not in by_name["Xid"]


FIRING = 'count(ALERTS{alertname="NoStep", alertstate="firing"}) or vector(0)'
PAGE = (ROOT / "docs/schedulers.md").read_text(encoding="utf-8")


def test_the_page_says_which_alerts_there_are_and_which_page() -> None:
    rows = re.findall(r"^\| `(\w+)` \| .* \| (\w+) \|$", PAGE, re.M)
    assert rows == [(name, rule["labels"]["severity"]) for name, rule in alerts(watching.rules()).items()]


def test_a_hang_pages_as_soon_as_the_page_says(prometheus, tmp_path) -> None:
    rows = [
        (float(step_s), int(within_s)) for step_s, within_s in re.findall(r"^\| (\S+) s \| (\d+) s \|$", PAGE, re.M)
    ]
    assert [step_s for step_s, _ in rows] == [0.5, 10, 30]
    (tmp_path / "rules.yml").write_text(watching.rules())
    labels = '{job="ranks", rank="0"}'
    tests = [
        {
            "interval": "5s",
            "input_series": [  # the step that ends at second 0 is the last
                {"series": f"train_step_seconds{labels}", "values": f"{step_s}x100"},
                {"series": f"train_last_step_timestamp_seconds{labels}", "values": "0x100"},
            ],
            "promql_expr_test": [
                {"expr": FIRING, "eval_time": f"{within_s - 5}s", "exp_samples": [{"labels": "{}", "value": 0}]},
                {"expr": FIRING, "eval_time": f"{within_s}s", "exp_samples": [{"labels": "{}", "value": 1}]},
            ],
        }
        for step_s, within_s in rows
    ]
    described = {"rule_files": ["rules.yml"], "evaluation_interval": "5s", "tests": tests}
    (tmp_path / "test.yml").write_text(json.dumps(described))
    done = subprocess.run(["promtool", "test", "rules", "test.yml"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("limit_s", "expected"), [(None, "> 900"), (3600, "> 3600"), (0.5, "> 0.5")])
def test_only_the_rule_on_phases_has_the_limit_of_a_phase(limit_s: float | None, expected: str) -> None:
    ours = alerts(watching.rules() if limit_s is None else watching.rules(phase_limit_s=limit_s))
    assert ours.pop("PhaseTooLong")["expr"] == f"time() - train_phase_start_timestamp_seconds {expected}"
    shipped = alerts(watching.rules())
    assert ours == {name: rule for name, rule in shipped.items() if name != "PhaseTooLong"}


@pytest.mark.parametrize("limit_s", [0, -1, float("nan")])
def test_a_limit_that_no_phase_can_keep_is_refused(limit_s: float) -> None:
    with pytest.raises(ValueError, match=r"phase_limit_s is .*; give the longest start or save in seconds"):
        watching.rules(phase_limit_s=limit_s)


IMPORTED = """
import sys
before = {name.partition(".")[0] for name in sys.modules}
from worldsize.course.watching import RankMetrics, rules
with RankMetrics(0, sys.argv[1]):
    rules()
after = {name.partition(".")[0] for name in sys.modules}
print(*sorted(after - before - sys.stdlib_module_names))
"""


def test_a_rank_needs_nothing_but_the_client_of_prometheus(tmp_path) -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTED, tmp_path], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.split() == ["prometheus_client", "worldsize"]


def test_every_field_of_a_gpu_that_is_asked_for_is_exported_by_default() -> None:
    exported = {row["field"] for row in watching.dcgm_fields() if row["on by default"] == "yes"}
    text = watching.rules() + json.dumps(watching.dashboard())
    asked = set(re.findall(r"DCGM_\w+", text))
    assert asked and asked <= exported


def test_no_gauge_of_a_gpu_is_asked_for_its_rate() -> None:
    gauges = {row["field"] for row in watching.dcgm_fields() if row["type"] == "gauge"}
    text = watching.rules() + json.dumps(watching.dashboard())
    rated = set(re.findall(r"(?:rate|increase)\((DCGM_\w+)", text))
    assert rated and not rated & gauges


def test_a_rank_that_ends_is_no_longer_looked_for(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("NODE_NAME", raising=False)
    with watching.RankMetrics(3, tmp_path) as metrics:
        (entry,) = json.loads((tmp_path / "rank3.json").read_text())
        assert entry["targets"] == [metrics.address]
        assert entry["labels"] == {"job": "ranks", "rank": "3", "Hostname": socket.gethostname()}
        metrics.step(loss=2.5, step_s=0.5, num_tokens=8)
        with urlopen(f"http://{metrics.address}/metrics") as answer:
            text = answer.read().decode()
        assert (
            "train_loss 2.5\n" in text and "train_steps_total 1.0\n" in text and "train_compute_seconds 0.5\n" in text
        )
    assert [*tmp_path.iterdir()] == []


def page(metrics: watching.RankMetrics) -> str:
    with urlopen(f"http://{metrics.address}/metrics") as answer:
        return answer.read().decode()


def phases(text: str) -> list[str]:
    return re.findall(r'train_phase_start_timestamp_seconds\{phase="(\w+)"\} 1\.\d+e\+09', text)


def clock(text: str) -> float:
    (value,) = re.findall(r"^train_last_step_timestamp_seconds (\S+)$", text, re.M)
    return float(value)


def test_a_rank_is_in_its_start_until_the_first_step(tmp_path) -> None:
    began_s = time.time()
    with watching.RankMetrics(0, tmp_path) as metrics:
        assert phases(page(metrics)) == ["start"] and clock(page(metrics)) >= began_s
        with metrics.busy("load"):
            assert phases(page(metrics)) == ["load"]
        assert phases(page(metrics)) == ["start"]
        metrics.step(loss=2.5, step_s=0.5)
        assert phases(page(metrics)) == []


def test_work_that_is_no_step_is_announced_while_it_lasts(tmp_path) -> None:
    with watching.RankMetrics(0, tmp_path) as metrics:
        metrics.step(loss=2.5, step_s=0.5)
        with metrics.busy("evaluation"):
            with metrics.busy("save"):
                assert phases(page(metrics)) == ["save"]
            assert phases(inside := page(metrics)) == ["evaluation"]
        assert phases(after := page(metrics)) == []
        assert clock(after) > clock(inside), "the time of the next step counts from the end of the work"
        with pytest.raises(OSError, match="disk full"), metrics.busy("save"):
            raise OSError("disk full")
        assert phases(page(metrics)) == []


def another_address() -> str:
    """An address of this machine that is not 127.0.0.1; Linux answers at all of 127.*."""
    return "127.0.0.2" if sys.platform == "linux" else socket.gethostbyname(socket.gethostname())


def test_a_rank_listens_at_the_address_that_other_nodes_reach(tmp_path) -> None:
    with watching.RankMetrics(0, tmp_path, host=another_address()) as metrics:
        (entry,) = json.loads((tmp_path / "rank0.json").read_text())
        host, port = entry["targets"][0].split(":")
        assert host == another_address() and "train_loss" in page(metrics)
        with pytest.raises(OSError, match="refused"):
            urlopen(f"http://127.0.0.1:{port}/metrics")


def test_a_rank_names_its_node_as_the_exporter_of_its_gpus_does(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("NODE_NAME", "node7")  # in a pod, whose own name is another
    with watching.RankMetrics(0, tmp_path):
        (entry,) = json.loads((tmp_path / "rank0.json").read_text())
    assert entry["labels"]["Hostname"] == "node7"


def test_a_rank_is_announced_by_the_name_it_is_given(tmp_path) -> None:
    with watching.RankMetrics(0, tmp_path, host="localhost") as metrics:
        assert metrics.address.startswith("localhost:") and "train_loss" in page(metrics)


def test_without_prometheus_the_error_says_what_to_install(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("worldsize.course.watching.prometheus.find", lambda program: "")
    assert watching.missing() == ["prometheus"]
    with pytest.raises(RuntimeError, match="apt-get install prometheus"):
        watching.Prometheus(tmp_path)


def test_without_tensorboard_the_error_says_what_to_install(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(RuntimeError, match="pip install tensorboard"):
        watching.RankMetrics(0, tmp_path, tensorboard=tmp_path / "events")


def test_without_the_client_of_prometheus_the_error_says_what_to_install(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(RuntimeError, match="pip install prometheus_client"):
        watching.RankMetrics(0, tmp_path)
