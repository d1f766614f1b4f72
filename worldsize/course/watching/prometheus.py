"""A private Prometheus server: on a free port, scraping the ranks that announce themselves in a folder."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

from worldsize.course.ports import free_ports
from worldsize.course.programs import find
from worldsize.course.watching.files import rules
from worldsize.course.watching.rank_metrics import JOB

PROGRAM = "prometheus"
_STARTS_WITHIN_S = 30


@dataclass(frozen=True)
class Sample:
    """One answer to a query: the labels of a series, and its value now."""

    labels: dict[str, str]
    value: float


@dataclass(frozen=True)
class Alert:
    """An alert that is firing, or pending because its condition has not held long enough."""

    name: str
    state: str
    labels: dict[str, str]
    summary: str


def missing() -> list[str]:
    """Return the missing Debian packages without which Prometheus cannot run here."""
    return [] if find(PROGRAM) else ["prometheus"]


class Prometheus:
    """A server that every `scrape_interval_s` scrapes all ranks with a file in `folder`, and evaluates the rules.

    It finds other exporters, such as DCGM's, through files of the same form, named gpus*.json.

    Raises:
        RuntimeError: Prometheus is not installed, or did not start; the message has the end of its log.
    """

    def __init__(self, folder: Path | str, scrape_interval_s: float = 5.0) -> None:
        if missing():
            raise RuntimeError(f"Prometheus is not installed: apt-get install {' '.join(missing())} (Debian, Ubuntu)")
        self.folder = Path(folder).resolve()
        self.scrape_interval_s = scrape_interval_s
        self.url = ""
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Prometheus:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def query(self, expr: str) -> list[Sample]:
        """Evaluate a PromQL query now; a single number is a sample without labels.

        Raises:
            ValueError: Prometheus cannot read the query; the message is its own.
        """
        result = self._ask("query", {"query": expr})
        if result["resultType"] in ("scalar", "string"):
            return [Sample({}, float(result["result"][1]))]
        return [Sample(series["metric"], float(series["value"][1])) for series in result["result"]]

    def alerts(self) -> list[Alert]:
        """Return the alerts that are pending or firing."""
        return [
            Alert(
                alert["labels"]["alertname"],
                alert["state"],
                {name: value for name, value in alert["labels"].items() if name != "alertname"},
                alert["annotations"].get("summary", ""),
            )
            for alert in self._ask("alerts")["alerts"]
        ]

    def wait_for_alert(self, name: str, within_s: float = 30.0) -> Alert:
        """Wait for the first alert of this name that fires.

        Raises:
            TimeoutError: none fires in time; the message lists those that are pending or firing.
        """
        firing = _first(
            lambda: [alert for alert in self.alerts() if (alert.name, alert.state) == (name, "firing")], within_s
        )
        if not firing:
            others = ", ".join(f"{one.name} ({one.state})" for one in self.alerts()) or "none"
            raise TimeoutError(f"{name} did not fire within {within_s} s; alerts are: {others}")
        return firing[0]

    def wait_for(self, expr: str, within_s: float = 30.0) -> list[Sample]:
        """Wait until a query returns samples.

        Raises:
            TimeoutError: it returns none in time.
        """
        samples = _first(lambda: self.query(expr), within_s)
        if not samples:
            raise TimeoutError(f"the query {expr} returned nothing within {within_s} s")
        return samples

    def close(self) -> None:
        """End the server; its data stays in its folder."""
        if self._process:
            self._process.terminate()
            try:
                self._process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def _start(self) -> None:
        from worldsize.launch.protocol.process import die_with_parent  # needs torch; RankMetrics must not

        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "rules.yml").write_text(rules(self.scrape_interval_s))
        (self.folder / "prometheus.yml").write_text(json.dumps(self._config(), indent=2))  # JSON is YAML
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        command = [
            find(PROGRAM),
            f"--config.file={self.folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self.folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        log = self.folder / "prometheus.log"
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                preexec_fn=partial(die_with_parent, signal_number=signal.SIGTERM),
            )
        if not _first(self._is_ready, _STARTS_WITHIN_S) or self._process.poll() is not None:
            lines = log.read_text(errors="replace").splitlines()
            raise RuntimeError(f"Prometheus did not start: {' '.join(lines[-3:])}")

    def _config(self) -> dict[str, Any]:
        every = f"{round(self.scrape_interval_s * 1000)}ms"
        return {
            "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
            "rule_files": ["rules.yml"],
            "scrape_configs": [
                {
                    "job_name": name,
                    "file_sd_configs": [{"files": [f"{self.folder}/{files}"], "refresh_interval": "5s"}],
                }
                for name, files in ((JOB, "rank*.json"), ("gpus", "gpus*.json"))
            ],
        }

    def _is_ready(self) -> bool:
        try:
            with urlopen(f"{self.url}/-/ready", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    def _ask(self, path: str, fields: dict[str, str] | None = None) -> Any:
        body = urlencode(fields).encode() if fields else None  # a POST: queries may be long
        try:
            with urlopen(f"{self.url}/api/v1/{path}", data=body, timeout=20) as answer:
                return json.load(answer)["data"]
        except URLError as error:
            if hasattr(error, "read"):  # the server answered, and says what is wrong
                raise ValueError(json.loads(error.read())["error"]) from None  # pyright: ignore[reportAttributeAccessIssue]
            raise


def _first(look: Callable[[], Any], within_s: float) -> Any:
    """Return the first answer that is not empty, or the last answer when time is up."""
    deadline_s = time.monotonic() + within_s
    while not (answer := look()) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    return answer
