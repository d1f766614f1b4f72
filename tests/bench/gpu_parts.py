"""The parts of `make gpu`: each runs one path that uses GPUs where there are some, and gives tables or data."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import lxml.html
import nbformat
import torch
import torch.distributed as dist
from nbclient import NotebookClient
from nbformat import NotebookNode
from repository import ROOT

import worldsize as ws
from autograder.authoring import programs
from autograder.authoring.known_answers import compose, solution_cells
from autograder.authoring.notebooks import find_sources, notebook
from autograder.authoring.scripts import read_week
from autograder.bench.recorded import RecordTable
from worldsize import bench

SIZES_BYTES = tuple(4**power for power in range(5, 15))  # 1 kB to 268 MB
_CELL_TIMEOUT_S = 600


@dataclass(frozen=True)
class Setting:
    """How many ranks run, and by which backend they talk."""

    num_ranks: int
    backend: Literal["nccl", "gloo"]


class Skipped(Exception):
    """This machine has not what a part needs."""


def tests(setting: Setting) -> dict[str, Any]:
    """The tests that are marked for GPUs, and how each ended."""
    with tempfile.TemporaryDirectory() as folder:
        to = Path(folder, "tests.xml")
        command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", "gpu", f"--junitxml={to}", "tests"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        cases = lxml.html.fromstring(to.read_bytes()).xpath("//testcase")
    ended = {case.get("name"): (case[0].tag if len(case) else "passed") for case in cases}
    if done.returncode:
        raise RuntimeError(done.stdout[-1500:])
    return {"data": ended}


def launcher(setting: Setting) -> dict[str, Any]:
    """All-reduces of many sizes by the launcher's own ranks."""
    where = {"world_size": setting.num_ranks, "backend": setting.backend}
    run = ws.run(all_reduce_s, SIZES_BYTES, **where, echo=False, timeout_s=300)
    slowest_s = [max(times) for times in zip(*run.values, strict=True)]
    busy = 2 * (setting.num_ranks - 1) / setting.num_ranks
    rows = [
        {"size_bytes": size, "time_s": took, "bus_bytes_per_s": busy * size / took}
        for size, took in zip(SIZES_BYTES, slowest_s, strict=True)
    ]
    return {"data": {"backend": run.backend, "rows": rows}}


def all_reduce_s(sizes_bytes: Sequence[int], num_times: int = 10) -> list[float]:
    """Seconds of an all-reduce of each size on this rank, the mean of several."""
    where, found = ws.device(), []
    wait = torch.cuda.synchronize if where.type == "cuda" else lambda: None
    for size_bytes in sizes_bytes:
        tensor = torch.ones(size_bytes // 4, device=where)
        dist.all_reduce(tensor)
        wait()
        start_s = time.perf_counter()
        for _ in range(num_times):
            dist.all_reduce(tensor)
        wait()
        found.append((time.perf_counter() - start_s) / num_times)
    return found


def week(script: Path, setting: Setting) -> dict[str, Any]:
    """A week from top to bottom, solved, and its tables of what was measured."""
    lesson = notebook(read_week(script), graded=False, solved=True)
    place = next(index for index, cell in enumerate(lesson.cells) if cell.id == "parameters")
    if setting.num_ranks > 1 and "\nworld_size =" in f"\n{lesson.cells[place].source}":
        given = nbformat.v4.new_code_cell(f"world_size = {setting.num_ranks}", id="injected")
        lesson.cells.insert(place + 1, given)
    return {"tables": list(measured_tables(_executed(lesson)))}


def lab(name: str, setting: Setting) -> dict[str, Any]:
    """A lab as a student has solved it: every open check passes."""
    release = nbformat.read(ROOT / "labs" / name / f"{name}.ipynb", as_version=4)
    solved = compose(release, solution_cells(ROOT / "solutions" / name / f"{name}.py"))
    return {"tables": list(measured_tables(_executed(solved)))}


def project1(setting: Setting) -> dict[str, Any]:
    """The reference program of project 1 on 1 to `num_ranks` ranks."""
    sizes = [size for size in (1, 2, 4) if size <= setting.num_ranks]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "train.py")
        path.write_text(programs.solved(ROOT / "solutions/project1/train.py"))
        result = bench.measure(bench.ScriptHere(path), bench.sha256_of(path), bench.Task(), sizes, num_repeats=3)
    return {"data": result.model_dump(mode="json")}


def calibration(setting: Setting) -> dict[str, Any]:
    """The machine's processor and links by Gloo, as `ws.calibrate` measures them."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "machine.json")
        ws.calibrate(world_size=2).save(path)
        return {"data": json.loads(path.read_text())}


def measured_tables(executed: NotebookNode) -> Iterator[RecordTable]:
    """The tables in a notebook whose titles say that they are measured."""
    for cell in executed.cells:
        for output in cell.get("outputs", []):
            html = output.get("data", {}).get("text/html", "")
            if html.startswith("<table"):
                (table,) = lxml.html.fragments_fromstring(f"<div>{html}</div>")[0].xpath("./table")
                title = table.findtext("caption") or ""
                if "measured" in title and "not measured" not in title:
                    heads = [head.text_content() for head in table.xpath("./thead//th")]
                    rows = [[one.text_content() for one in row.xpath("./td")] for row in table.xpath("./tbody/tr")]
                    yield RecordTable(cell=cell.id, title=title, columns=heads, rows=rows)


def _executed(lesson: NotebookNode) -> NotebookNode:
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        return NotebookClient(lesson, timeout=_CELL_TIMEOUT_S, resources=resources).execute()


_SOURCES = find_sources(ROOT)
PARTS: dict[str, Callable[[Setting], dict[str, Any]]] = {
    "tests": tests,
    "launcher": launcher,
    **{script.stem.partition("_")[0]: functools.partial(week, script) for script in _SOURCES.weeks},
    **{
        script.stem: functools.partial(lab, script.stem)
        for script in _SOURCES.labs
        if script.stem == script.parent.name and script.stem.startswith("lab")
    },
    "project1": project1,
    "calibration": calibration,
}
