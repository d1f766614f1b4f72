"""Executing lessons and labs from top to bottom, and reading the outputs of their cells."""

import ast
from collections.abc import Collection, Mapping
from pathlib import Path

import nbformat
from IPython.core.inputtransformer2 import TransformerManager
from nbclient import NotebookClient
from nbformat import NotebookNode
from repository import ROOT

from autograder.authoring.known_answers import compose
from autograder.authoring.notebooks import notebook
from autograder.authoring.scripts import Cell, Script, is_buggy, parse, read_week


def week_outputs(script: Path, folder: Path, parameters: str) -> dict[str, list]:
    """The outputs of every code cell by id, after one run of the whole week, solved, with these parameters."""
    week = notebook(read_week(script), graded=False, solved=True)
    place = next(index for index, cell in enumerate(week.cells) if cell.id == "parameters")
    week.cells.insert(place + 1, nbformat.v4.new_code_cell(parameters, id="injected"))
    return executed(week, folder)


def unsolved_outputs(script: Path, folder: Path) -> dict[str, list]:
    """The outputs of an untouched week's turns and checks, and of the cells that these need, by id.

    Each check says that its turn is not written yet or, of a bug to find, what is not yet right.
    """
    lesson = read_week(script)
    turns = [cell for cell in lesson.cells if cell.is_turn]
    outputs = executed(_around(turns, lesson), folder)
    for turn in turns:
        _assert_asks(turn, outputs[turn.check])
    return outputs


def _assert_asks(turn: Cell, said: list) -> None:
    assert not errors(said)
    if is_buggy(turn.source):
        texts = [output.get("data", {}).get("text/plain", "") for output in said]
        assert any(text.startswith("Not yet:") for text in texts), f"{turn.check} passes, or says {said}"
    else:
        assert f"{turn.title} is not written yet" in stream(said), f"{turn.check} says {said}"


def shown_for(answers: Collection[str], turn: str, script: Path, folder: Path) -> list[str]:
    """The output of a turn's check for each of these answers, from one run of the cells that it needs."""
    lesson = read_week(script)
    week = _around([cell for cell in lesson.cells if cell.title == turn], lesson)
    check = next(cell for cell in week.cells if cell.id == f"check_{turn}")
    for number, answer in enumerate(answers):
        shown = nbformat.v4.new_code_cell(check.source, id=f"shown-{number}")
        week.cells += [nbformat.v4.new_code_cell(answer), shown]
    outputs = executed(week, folder)
    return [
        "".join(str(part.get("text") or part["data"]) for part in outputs[f"shown-{number}"])
        for number in range(len(answers))
    ]


def _around(turns: list[Cell], lesson: Script) -> NotebookNode:
    """The untouched lesson with these turns alone, their checks, and the cells that these need."""
    wanted = _needed(turns, [cell for cell in lesson.cells if cell.kind == "code"])
    week = notebook(lesson, graded=False)
    week.cells = [cell for cell in week.cells if cell.id in wanted]
    return week


def _needed(turns: list[Cell], cells: list[Cell]) -> set[str]:
    """The ids of the turns, of their checks, and of cells that define a name that one of these reads.

    They are earlier ones, unless none is: a function may read a name that is defined below it.
    """
    titles = {"parameters", "setup", *(cell.check for cell in turns)}
    names = {cell.id: _names(ast.parse(TransformerManager().transform_cell(cell.source))) for cell in cells}
    wanted = {cell.id for cell in cells if cell in turns or cell.title in titles}
    while True:
        read, more = set(), set(wanted)
        for cell in reversed(cells):
            reads, makes = names[cell.id]
            if cell.id in wanted or makes & read:
                more.add(cell.id)
                read |= reads
        unknown = read.difference(*(names[one][1] for one in more))
        more |= {one for one, (_, makes) in names.items() if makes & unknown}
        if more == wanted:
            return wanted
        wanted = more


def _names(tree: ast.Module) -> tuple[set[str], set[str]]:
    """The names that a cell takes from cells above it, and those that its top level defines, imports or adds to."""
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Lambda)]
    inside = {id(node) for function in functions for node in ast.walk(function)}
    made = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    made |= {(node.asname or node.name).split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.alias)}
    made |= {node.id for node in names if isinstance(node.ctx, ast.Store) and id(node) not in inside}
    items = [node for node in ast.walk(tree) if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)]
    added_to = {item.value.id for item in items if isinstance(item.value, ast.Name) and id(item) not in inside}
    return {node.id for node in names if isinstance(node.ctx, ast.Load)} - made, made | added_to


def lab_outputs(
    lab: str, folder: Path, cells: Mapping[str, str], last: str | None = None, without: Collection[str] = ()
) -> dict[str, list]:
    """The outputs of every code cell of a student's lab by id, with these cells filled in, up to the cell `last`."""
    filled = compose(nbformat.read(ROOT / "labs" / lab / f"{lab}.ipynb", as_version=4), cells)
    ids = [cell.id for cell in filled.cells]
    end = len(ids) if last is None else ids.index(last) + 1
    filled.cells = [cell for cell in filled.cells[:end] if cell.id not in without]
    return executed(filled, folder, allow_errors=True)


def executed(notebook: NotebookNode, folder: Path, allow_errors: bool = False) -> dict[str, list]:
    """The outputs of every code cell of a notebook by id, after one run of it in this folder."""
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=240, allow_errors=allow_errors, resources=resources).execute()
    return {cell.id: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}


def errors(outputs: list) -> list:
    """A cell's errors."""
    return [output for output in outputs if output.output_type == "error"]


def failures(cells: Mapping[str, list]) -> dict[str, str]:
    """The message of the last error of each failed cell, by the cell's id."""
    failed = {name: errors(outputs) for name, outputs in cells.items() if errors(outputs)}
    return {name: f"{found[-1].ename}: {found[-1].evalue}" for name, found in failed.items()}


def stream(outputs: list) -> str:
    """The text that a cell printed."""
    return "".join(output.text for output in outputs if output.output_type == "stream")


def printed(outputs: list) -> str:
    """The text that a cell printed, without the predictions that it revealed."""
    lines = stream(outputs).splitlines(keepends=True)
    return "".join(line for line in lines if not line.endswith(" derives it.\n"))


def words(outputs: list) -> str:
    """The last output of a cell as plain text."""
    return outputs[-1]["data"]["text/plain"]


def pictures(outputs: Mapping[str, list]) -> list[dict[str, str]]:
    """The figures of all cells, each in all its forms."""
    bundles = (output.get("data", {}) for cell in outputs.values() for output in cell)
    return [bundle for bundle in bundles if "image/png" in bundle]


def assert_quiet(outputs: Mapping[str, list]) -> None:
    """Assert that nothing is written to stderr and that nothing warns."""
    noise = {name: output.text for name, cell in outputs.items() for output in cell if output.get("name") == "stderr"}
    assert noise == {}
    assert [name for name, cell in outputs.items() if "Warning" in stream(cell)] == []


def assert_figures_have_words(outputs: Mapping[str, list], num_figures: int) -> None:
    """Assert that there are this many figures, each described in words for readers who do not see it."""
    shown = pictures(outputs)
    assert len(shown) == num_figures
    for bundle in shown:
        assert len(bundle["text/plain"]) > 60 and not bundle["text/plain"].startswith(("Figure", "<"))
        assert bundle["text/html"].count("alt=") == 1


def message(lab: str, cells: Mapping[str, str], check: str) -> str:
    """The message of a lab's open check on these cells, run in this process without a kernel."""
    names: dict[str, object] = {}
    for cell in parse(ROOT / "solutions" / lab / f"{lab}.py").cells:
        if cell.kind != "code" or cell.title.startswith("all_"):
            continue
        if cell.title == check:
            names["show"] = lambda picture: None
            try:
                exec(cell.source, names)
            except Exception as error:  # whatever a student would see
                return f"{type(error).__name__}: {error}"
            return "nothing"
        if not cell.title.startswith("check_"):
            exec(cells.get(cell.title, cell.source), names)
    raise AssertionError(f"no {check} in {lab}")
