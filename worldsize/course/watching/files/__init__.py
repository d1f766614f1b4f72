"""Rules for Prometheus, a dashboard for Grafana and the fields of DCGM, as files that a site can take."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
_SCRAPE_INTERVAL_S, _PHASE_LIMIT_S = 5.0, 900.0  # for which rules.yml is written
_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Query:
    """One query of a dashboard, in PromQL, and the title of its panel."""

    panel: str
    expr: str


def rules(scrape_interval_s: float = _SCRAPE_INTERVAL_S, phase_limit_s: float = _PHASE_LIMIT_S) -> str:
    """Read the recording and alerting rules, rules.yml.

    Every `for`, how long a condition must hold before its alert fires, grows and shrinks with the scrape interval.
    `PhaseTooLong` fires when a start, a save or another announced phase has lasted `phase_limit_s`.

    Raises:
        ValueError: the limit of a phase is not more than 0.
    """
    if not phase_limit_s > 0:
        raise ValueError(f"phase_limit_s is {phase_limit_s}; give the longest start or save in seconds")
    text = (FOLDER / "rules.yml").read_text(encoding="utf-8")
    text = text.replace(f"_seconds > {_PHASE_LIMIT_S:g}\n", f"_seconds > {phase_limit_s:.10g}\n")
    factor = scrape_interval_s / _SCRAPE_INTERVAL_S

    def scaled(match: re.Match[str]) -> str:
        return f"{match[1]}{round(int(match[2]) * _SECONDS[match[3]] * factor * 1000)}ms"

    return text if factor == 1 else re.sub(r"^(    for: )(\d+)(ms|s|m|h)$", scaled, text, flags=re.M)


def dashboard() -> dict[str, Any]:
    """Read the dashboard for Grafana, dashboard.json, to import there with "Dashboards", "New", "Import"."""
    return json.loads((FOLDER / "dashboard.json").read_text(encoding="utf-8"))


def queries(board: dict[str, Any], rate_interval: str = "1m") -> list[Query]:
    """Return the queries of a dashboard as Grafana sends them, with the window of its rates filled in."""
    return [
        Query(panel["title"], target["expr"].replace("$__rate_interval", rate_interval))
        for panel in board["panels"]
        for target in panel["targets"]
    ]


def dcgm_fields() -> list[dict[str, str]]:
    """List what NVIDIA's dcgm-exporter exports per GPU: field, type, unit, whether it is on by default, and meaning.

    Source: NVIDIA/dcgm-exporter, etc/default-counters.csv.
    """
    with (FOLDER / "dcgm_fields.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
