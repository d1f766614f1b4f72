"""Reading the scripts of lessons and labs, and reporting mistakes in them with file and line."""

import ast
import math
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from IPython.core.inputtransformer2 import TransformerManager
from jupytext.cell_reader import DoublePercentScriptCellReader
from nbformat.validator import NotebookValidationError

from autograder.authoring import locked_parser
from worldsize.check import TODO

ID = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
CELL_MARKER = re.compile(r"\s*# ?%%(?:\s|$)")
MAGIC = re.compile(r"^# (%%?[a-z_]{2,}(?:\s.*)?)$", re.MULTILINE)
PYTHON_CELL_MAGICS = ("torchrun", "time", "timeit", "capture")
OPTIONS = {"title", "tags", "points"}
INSTEAD = re.compile(r"\s*### INSTEAD\s*$")
MAX_TURN_LINES = 8

Problem = tuple[int, str]


class AuthoringError(ValueError):
    """All problems of the scripts that were read, each as `file:line: sentence`."""

    def __init__(self, problems: list[str]):
        super().__init__("\n".join(problems))
        self.problems = problems


@dataclass(frozen=True)
class Cell:
    kind: str
    id: str
    title: str
    source: str
    line: int
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def tags(self) -> list[str]:
        return self.options.get("tags", [])

    @property
    def points(self) -> float | None:
        return self.options.get("points")

    @property
    def is_solution(self) -> bool:
        """Whether students write this cell."""
        return "solution" in self.tags

    @property
    def is_turn(self) -> bool:
        """Whether readers of a lesson write this cell, or find a bug in it."""
        return "turn" in self.tags

    @property
    def check(self) -> str:
        """The title of the cell that checks this one."""
        return f"check_{self.title}"

    @property
    def is_check(self) -> bool:
        """Whether this is a code cell with points."""
        return self.kind == "code" and "points" in self.options


@dataclass(frozen=True)
class Script:
    path: Path
    preamble: list[str]
    cells: list[Cell]


def read_week(path: Path) -> Script:
    """Read the cells of a lesson, in order. Raises: AuthoringError."""
    script = parse(path)
    _refuse(located(path, _problems(script, WEEK_RULES)))
    return script


def read_lab(path: Path) -> Script:
    """Read the cells of a lab, in order, and compare its points with checks.py. Raises: AuthoringError."""
    script = parse(path)
    problems = located(path, _problems(script, LAB_RULES))
    _refuse(problems + _points_problems(script, path.with_name("checks.py")))
    return script


def parse(path: Path) -> Script:
    """Parse the cells of a script, in order, without applying rules. Raises: AuthoringError."""
    return parse_lines(path, path.read_text(encoding="utf-8").splitlines())


def parse_lines(path: Path, lines: list[str], first: int = 1) -> Script:
    """Parse the cells in lines of a script, numbered from `first`. Raises: AuthoringError."""
    preamble, cells, start = [], [], 0
    while start < len(lines):
        # jupytext ignores a `# %%` in a string or a fence; reading cell by cell keeps the line numbers
        reader = DoublePercentScriptCellReader({"extension": ".py", "comment_magics": False})
        try:
            node, length = reader.read(lines[start:])
        except NotebookValidationError as error:
            text = f"The options of this cell cannot be used: {error.message}."
            raise AuthoringError(located(path, [(start + first, text)])) from error
        if CELL_MARKER.match(lines[start]):
            cells.append(_cell(node, start + first, cells))
        else:
            preamble = lines[start : start + length]
        start += length
    return Script(path, preamble, cells)


def split_solution(source: str) -> tuple[list[str], list[str]]:
    """The lines that students are given and the lines of the solution, both without the solution markers."""
    lines = list(split_regions(source))
    return [line for line, inside, _ in lines if not inside], [line for line, inside, _ in lines if inside]


def split_regions(source: str) -> Iterator[tuple[str, bool, bool]]:
    """Every line except markers: its text, whether it is part of a solution, and whether it begins one."""
    inside = is_first = False
    for line in source.split("\n"):
        if marker := _marker(line):
            inside = is_first = marker == "BEGIN"
        else:
            yield line, inside, is_first
            is_first = False


def without_markers(source: str) -> str:
    """The source with its solution, without marker lines and without the lines given instead of the solution."""
    return "\n".join(line for line, part in _parts(source) if part in ("given", "solution"))


def is_buggy(source: str) -> bool:
    """Whether readers get wrong lines in place of the solution."""
    return any(part == "instead" for _, part in _parts(source))


def as_given_in_lesson(source: str) -> str:
    """A turn cell as readers get it: with wrong lines, or with a line that raises, in place of the solution."""
    return "\n".join(line for line in _given(source) if line is not None)


def _given(source: str) -> Iterator[str | None]:
    """For every line of a turn cell, the line that readers get; None if they get none."""
    is_to_do = not is_buggy(source)
    for line, part in _parts(source):
        if part == "given":
            yield line
        elif part == "instead":
            yield re.sub(r"^(\s*)# ?", r"\1", line).rstrip()
        elif part == "BEGIN" and is_to_do:
            yield f'{line[: len(line) - len(line.lstrip())]}raise NotImplementedError("{TODO}")'
        else:
            yield None


def _parts(source: str) -> Iterator[tuple[str, str]]:
    """Every line and its kind: given, solution, instead, or the name of a marker."""
    part = "given"
    for line in source.split("\n"):
        if marker := _marker(line):
            yield line, marker
            part = "solution" if marker == "BEGIN" else "given"
        elif INSTEAD.match(line):
            yield line, "INSTEAD"
            part = "instead"
        else:
            yield line, part


def located(path: Path, problems: Iterable[Problem]) -> list[str]:
    """The problems in the order of lines, each as `file:line: sentence`."""
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return [f"{shown}:{line}: {text}" for line, text in sorted(problems)]


def _refuse(problems: list[str]) -> None:
    if problems:
        raise AuthoringError(problems)


def _cell(node: Any, line: int, before: list[Cell]) -> Cell:
    options = {name: value for name, value in node.metadata.items() if name != "lines_to_next_cell"}
    title = options.pop("title", "")
    source = node.source.rstrip()
    if node.cell_type == "code":
        source = MAGIC.sub(r"\1", source)
    cell_id = _slug(title) if title else _untitled_id(node.cell_type, before)
    return Cell(node.cell_type, cell_id, title, source, line, options)


def _slug(title: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]+", "-", title).strip("-")[:64]


def _untitled_id(kind: str, before: list[Cell]) -> str:
    # counted from the last titled cell, so that a new paragraph does not rename cells of other sections;
    # not derived from the text, so that correcting a typo does not rename the cell
    since = 1
    for cell in reversed(before):
        if cell.title:
            return f"{cell.id[:52]}-{kind}-{since}"
        since += 1
    return f"top-{kind}-{since}"


def _marker(line: str) -> str:
    found = re.search(r"(BEGIN|END) SOLUTION", line)
    return found[1] if found else ""


def _problems(script: Script, rules: Iterable[Callable[[list[Cell]], Iterator[Problem]]]) -> list[Problem]:
    problems = [problem for rule in rules for problem in rule(script.cells)]
    for line, text in enumerate(script.preamble, start=1):
        if text.strip() and not text.startswith("#"):
            problems.append((line, "This code stands before the first cell: put a `# %%` line above it."))
            break
    if not script.cells:
        problems.append((1, "This script has no cell: start each with a `# %%` line."))
    return problems


def _options_are_known(cells: list[Cell]) -> Iterator[Problem]:
    for cell in cells:
        if cell.kind not in ("code", "markdown"):
            yield cell.line, f"A cell is code or markdown, not {cell.kind}."
        for name in cell.options.keys() - OPTIONS:
            unread = cell.options[name] if name == "incorrectly_encoded_metadata" else name
            yield (
                cell.line,
                f"The option `{unread}` cannot be read: a cell takes a title, tags=[...] and points=N.",
            )


def _ids_are_unique(cells: list[Cell]) -> Iterator[Problem]:
    first: dict[str, int] = {}
    for cell in cells:
        if cell.id in first:
            yield (
                cell.line,
                f"The id `{cell.id}` is taken by the cell on line {first[cell.id]}: rename one of them.",
            )
        first.setdefault(cell.id, cell.line)


def _titles_make_ids(cells: list[Cell]) -> Iterator[Problem]:
    for cell in cells:
        if cell.title and not cell.id:
            yield cell.line, f"The title `{cell.title}` has no letter or digit to make an id of."


def _titles_are_ids(cells: list[Cell]) -> Iterator[Problem]:
    for cell in cells:
        if cell.kind == "code" and not cell.title:
            yield cell.line, "A code cell of a lab needs a title, which becomes its id: `# %% setup`."
        if cell.title and not ID.fullmatch(cell.title):
            yield (
                cell.line,
                f"The title `{cell.title}` is not a valid id: use at most 64 letters, digits, `_` and `-`, "
                "a letter first.",
            )


def _solution_markers_pair(cells: list[Cell]) -> Iterator[Problem]:
    for cell in cells:
        opened, regions = 0, 0
        for line, text in enumerate(cell.source.split("\n"), start=cell.line + 1):
            marker = _marker(text)
            if marker and not (cell.is_solution or cell.is_turn):
                yield (
                    line,
                    f'`{marker} SOLUTION` stands outside a solution cell: add tags=["solution"] to its cell, or, in a'
                    ' lesson, tags=["turn"].',
                )
            elif marker == "BEGIN" and opened:
                yield line, f"`BEGIN SOLUTION` stands inside the solution that begins on line {opened}."
            elif marker == "BEGIN":
                opened, regions = line, regions + 1
            elif marker == "END" and not opened:
                yield line, "`END SOLUTION` closes a solution that was never begun."
            elif marker == "END":
                opened = 0
        if opened and (cell.is_solution or cell.is_turn):
            yield opened, "This `BEGIN SOLUTION` has no `END SOLUTION` in its cell."
        if cell.kind == "code" and cell.is_solution and not regions:
            yield (
                cell.line,
                "This solution cell has no `### BEGIN SOLUTION`, so students would be given no signature.",
            )


def _nbgrader_markers_are_unused(cells: list[Cell]) -> Iterator[Problem]:
    for cell in cells:
        for line, text in enumerate(cell.source.split("\n"), start=cell.line + 1):
            if found := re.search(r"(BEGIN|END) (HIDDEN TESTS|MARK SCHEME)|### AUTOTEST", text):
                yield line, f"`{found[0]}` has no use here: hidden checks belong in checks.py."


def _points_are_numbers(cells: list[Cell]) -> Iterator[Problem]:
    for cell in cells:
        if "points" in cell.options and not _is_positive(cell.options["points"]):
            yield cell.line, f"points={cell.options['points']!r} is not a number above 0."


def _is_positive(points: object) -> TypeGuard[float]:
    if isinstance(points, bool) or not isinstance(points, int | float):
        return False
    return math.isfinite(points) and points > 0


def _points_are_in_place(cells: list[Cell]) -> Iterator[Problem]:
    for cell in cells:
        has_points = "points" in cell.options
        if cell.kind == "code" and cell.is_solution and has_points:
            yield (
                cell.line,
                f"The solution cell `{cell.title}` cannot have points: give them to `check_{cell.title}`.",
            )
        if cell.kind == "code" and cell.title.startswith("check_") and not has_points and not cell.is_solution:
            yield cell.line, f"The check cell `{cell.title}` has no points: add points=N to its line."
        if cell.kind == "markdown" and has_points != cell.is_solution:
            yield cell.line, 'A question answered in words needs both points=N and tags=["solution"].'


def _solutions_are_checked(cells: list[Cell]) -> Iterator[Problem]:
    for place, cell in enumerate(cells):
        checked = any(later.is_check and later.title == cell.check for later in cells[place:])
        if cell.kind == "code" and cell.is_solution and cell.title and not checked:
            yield cell.line, f"No cell after this one checks it: add `# %% {cell.check} points=N`."


def _nothing_is_graded(cells: list[Cell]) -> Iterator[Problem]:
    for cell in cells:
        if "points" in cell.options or cell.is_solution:
            yield cell.line, "A lesson is not graded: points and solution cells belong in solutions/."


def _numbers_have_their_heading(cells: list[Cell]) -> Iterator[Problem]:
    for cell in cells:
        if cell.title == "numbers_to_remember" and not cell.source.startswith("## Numbers to remember\n"):
            yield cell.line, "The numbers to remember are a markdown cell that begins with `## Numbers to remember`."


def _labs_have_no_turns(cells: list[Cell]) -> Iterator[Problem]:
    for cell in cells:
        if cell.is_turn:
            yield cell.line, 'Only a lesson has cells with tags=["turn"]: in a lab, write tags=["solution"].'


def _turns_are_whole(cells: list[Cell]) -> Iterator[Problem]:
    for place, cell in enumerate(cells):
        if not cell.is_turn:
            continue
        if cell.kind != "code":
            yield cell.line, "A turn is a code cell: its text belongs in the cell above."
            continue
        if f"def {cell.title}(" not in cell.source or not cell.title.isidentifier():
            yield cell.line, f"A turn is called like the function that it defines, and `{cell.title}` defines no such."
        parts = [part for _, part in _parts(cell.source)]
        if parts.count("BEGIN") != 1:
            yield cell.line, "A turn has one `### BEGIN SOLUTION` and one `### END SOLUTION` round what readers write."
        num_lines = sum(part == "solution" and bool(line.strip()) for line, part in _parts(cell.source))
        if not 1 <= num_lines <= MAX_TURN_LINES:
            yield cell.line, f"The solution of a turn has 1 to {MAX_TURN_LINES} lines; this one has {num_lines}."
        check = next((later for later in cells[place:] if later.kind == "code" and later.title == cell.check), None)
        if check is None:
            yield cell.line, f"No cell after this one checks it: add `# %% {cell.check}`."
        elif f'check.turn("{cell.title}")' not in check.source:
            yield (
                check.line,
                f'This check stops the lesson where it fails: put it in `with check.turn("{cell.title}"):`.',
            )


def _bugs_are_in_place(cells: list[Cell]) -> Iterator[Problem]:
    for cell in cells:
        inside, since = False, 0
        for line, text in enumerate(cell.source.split("\n"), start=cell.line + 1):
            if marker := _marker(text):
                inside, since = marker == "BEGIN", 0
            elif INSTEAD.match(text) and (not inside or not cell.is_turn):
                yield line, "`### INSTEAD` stands outside the solution of a turn: it parts right lines from wrong ones."
            elif INSTEAD.match(text) and since:
                yield line, f"This solution has an `### INSTEAD` on line {since} already."
            elif INSTEAD.match(text):
                since = line
            elif since and text.strip() and not text.lstrip().startswith("#"):
                yield (
                    line,
                    "What stands below `### INSTEAD` is given to readers: write each line as a comment, `# line`.",
                )


def _code_compiles(cells: list[Cell]) -> Iterator[Problem]:
    for cell in cells:
        if cell.kind != "code":
            continue
        # line for line, so that an error keeps its line number
        given = "\n".join(line or "" for line in _given(cell.source)) if cell.is_turn else _as_given(cell.source)
        error = _syntax_error(cell.source) or _syntax_error(given)
        if error:
            yield cell.line + (error.lineno or 2) - 1, f"This code has a syntax error: {error.msg}."


def _as_given(source: str) -> str:
    lines, inside = [], False
    for line in source.split("\n"):
        marker = _marker(line)
        if marker:
            inside = marker == "BEGIN"
        # line for line, so that an error keeps its line number
        lines.append(re.sub(r"\S.*", "..." if marker == "BEGIN" else "", line) if marker or inside else line)
    return "\n".join(lines)


def _syntax_error(source: str) -> SyntaxError | None:
    cell_magic = re.match(r"%%(\w+).*", source)
    if cell_magic and cell_magic[1] not in PYTHON_CELL_MAGICS:
        return None
    if cell_magic:
        source = "#" + source[cell_magic.end() :]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            # IPython would drop blank lines at the top, which would shift the line numbers of errors
            code = TransformerManager().transform_cell(f"#\n{source}")
            compile(code, "cell", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    except SyntaxError as error:
        return error
    return None


def _points_problems(script: Script, checks: Path) -> list[str]:
    cells = {cell.title: cell for cell in script.cells if cell.is_check and _is_positive(cell.points)}
    if not checks.exists():
        text = "This cell has points, but there is no checks.py next to the script to award them."
        return located(script.path, [(cell.line, text) for cell in cells.values()])
    earned = dict.fromkeys(cells, 0.0)
    problems = []
    try:
        awards = list(_awards(locked_parser.parse(checks.read_text(encoding="utf-8"))))
    except SyntaxError as error:
        return located(checks, [(error.lineno or 1, f"This code has a syntax error: {error.msg}.")])
    for line, number, title in awards:
        if not (_is_positive(number) and isinstance(title, str)):
            problems.append((line, 'Write this as @points(N, cell="check_..."), with a number above 0.'))
        elif title not in earned:
            problems.append((line, f"There is no cell `{title}` with points in {script.path.name}."))
        else:
            earned[title] += number
    unequal = [
        (
            cell.line,
            f"`{title}` has points={cell.points}, but its checks in checks.py add up to {earned[title]:g}.",
        )
        for title, cell in cells.items()
        if not math.isclose(earned[title], cell.points or 0)
    ]
    return located(script.path, unequal) + located(checks, problems)


def _awards(tree: ast.Module) -> Iterator[tuple[int, object, object]]:
    """The line, points and cell title of every `@points(N, cell=...)`."""
    for function in ast.walk(tree):
        for call in getattr(function, "decorator_list", []):
            if isinstance(call, ast.Call) and ast.unparse(call.func).split(".")[-1] == "points":
                number = next((_literal(value) for value in call.args), None)
                title = next((_literal(word.value) for word in call.keywords if word.arg == "cell"), None)
                yield call.lineno, number, title


def _literal(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


SHARED_RULES = (_options_are_known, _ids_are_unique, _solution_markers_pair, _bugs_are_in_place, _code_compiles)
WEEK_RULES = (*SHARED_RULES, _titles_make_ids, _nothing_is_graded, _turns_are_whole, _numbers_have_their_heading)
LAB_RULES = (
    *SHARED_RULES,
    _labs_have_no_turns,
    _titles_are_ids,
    _nbgrader_markers_are_unused,
    _points_are_numbers,
    _points_are_in_place,
    _solutions_are_checked,
)
