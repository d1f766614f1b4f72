"""Executing lessons and labs from top to bottom, and reading the outputs of their cells."""

import ast
import symtable
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Self

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


class UntouchedWeek:
    """An untouched week's turns and checks, and the cells that these need, run in a kernel that then tries answers.

    Each check says that its turn is not written yet or, of a bug to find, what is not yet right.

    Attributes:
        outputs: the outputs of every cell that ran, by id.
    """

    def __init__(self, script: Path, folder: Path) -> None:
        lesson = read_week(script)
        self._turns = [cell for cell in lesson.cells if cell.is_turn]
        self._notebook = _around(self._turns, lesson)
        self._checks = {cell.id: cell.source for cell in self._notebook.cells}
        self._client = _client(self._notebook, folder)
        self._closing = ExitStack()
        self.outputs: dict[str, list] = {}

    def __enter__(self) -> Self:
        with self._closing:  # ends the kernel if a cell fails
            self._closing.enter_context(self._client.setup_kernel())
            for place, cell in enumerate(self._notebook.cells):
                self._client.execute_cell(cell, place)
                self.outputs[cell.id] = cell.outputs
            for turn in self._turns:
                _assert_asks(turn, self.outputs[turn.check])
            self._closing = self._closing.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._closing.close()

    def shown_for(self, answers: Collection[str], turn: str) -> list[str]:
        """The output of a turn's check for each of these answers."""
        return [self._shown(answer, self._checks[f"check_{turn}"]) for answer in answers]

    def _shown(self, answer: str, check: str) -> str:
        outputs = []
        for source in (answer, check):
            cell = nbformat.v4.new_code_cell(source)
            self._notebook.cells.append(cell)
            outputs = self._client.execute_cell(cell, len(self._notebook.cells) - 1).outputs
        return "".join(str(part.get("text") or part["data"]) for part in outputs)


def _assert_asks(turn: Cell, said: list) -> None:
    assert not errors(said)
    if is_buggy(turn.source):
        texts = [output.get("data", {}).get("text/plain", "") for output in said]
        assert any(text.startswith("Not yet:") for text in texts), f"{turn.check} passes, or says {said}"
    else:
        assert f"{turn.title} is not written yet" in stream(said), f"{turn.check} says {said}"


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
    names = {cell.id: names_of(TransformerManager().transform_cell(cell.source)) for cell in cells}
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


def names_of(source: str) -> tuple[set[str], set[str]]:
    """The names that a cell takes from cells above it, and those that its top level defines, imports or adds to."""
    top = symtable.symtable(source, "cell", "exec")
    made = {one.get_name() for one in top.get_symbols() if one.is_assigned() or one.is_imported()}
    read = {one.get_name() for table in _scopes(top) for one in table.get_symbols() if one.is_global()}
    items = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Subscript)]
    added_to = {node.value.id for node in items if isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name)}
    return read - made, made | (added_to & read)


def _scopes(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for inner in table.get_children():
        yield from _scopes(inner)


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
    _client(notebook, folder, allow_errors).execute()
    return {cell.id: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}


def _client(notebook: NotebookNode, folder: Path, allow_errors: bool = False) -> NotebookClient:
    resources = {"metadata": {"path": str(folder)}}
    return NotebookClient(notebook, timeout=900, allow_errors=allow_errors, resources=resources)


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
            names["show"] = lambda *_: None
            try:
                exec(cell.source, names)
            except Exception as error:  # whatever a student would see
                return f"{type(error).__name__}: {error}"
            return "nothing"
        if not cell.title.startswith("check_"):
            exec(cells.get(cell.title, cell.source), names)
    raise AssertionError(f"no {check} in {lab}")
