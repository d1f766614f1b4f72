"""Pages made from what stands in the course: schedule, checklist, self-checks, reference, commands, records."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

import typer
from calculators import NAMES, calculator
from extensions import measured, slides
from typer.cli import get_docs_for_click

from autograder.authoring.scripts import Script, parse
from autograder.cli import app

_PREREQUISITES = (
    "Prerequisites: to have trained a network in PyTorch. You need not have run anything on two processes or two GPUs. "
    "The head of each week names the weeks that it needs."
)
_HEADING = re.compile(r"^# (.+)$", re.M)
_MINUTES = re.compile(r"\b(\d+) min\b")
_LAB_OF = re.compile(r"lab(\d+)[a-z]?$")
_TIME = re.compile(r"about (\d+(?= minutes)|two(?= hours))")
_ROW = re.compile(r"^\| (?P<name>[^|]+?) \| (?P<text>[^|]+?) \|$", re.M)


def all_of(root: Path, weeks: Sequence[str]) -> dict[str, str]:
    """Every made page by its place; `weeks` are the lessons on the site."""
    scripts = [parse((root / week).with_suffix(".py")) for week in sorted(weeks)]
    return {
        "schedule.md": schedule(root, scripts),
        "outcomes.txt": outcomes(root, scripts),
        "checklist.md": checklist(root, scripts),
        "self_checks.md": self_checks(scripts),
        "commands.md": commands(),
        **({"measured.md": recorded} if (recorded := measured.page(root)) else {}),
        **calculators(),
        **reference(root),
    }


def schedule(root: Path, weeks: Sequence[Script]) -> str:
    """The weeks in a table, with what each takes and what comes after it; and the labs, with time and points."""
    rows = [_row(script) for script in weeks]
    head = ["| week | reading and doing | afterwards | to teach from |", "|---|---|---|---|"]
    labs = [_lab_row(path, root) for path in _labs(root)]
    of_labs = ["| lab | work | points | of them by hand |", "|---|---|---|---|"]
    said = "The work is the sum of what each lab says of its functions; points by hand are for answers in words."
    projects = [_project_row(path, root) for path in sorted(root.glob("labs/*/report.ipynb"))]
    of_projects = ["| project | work | points | of them by hand |", "|---|---|---|---|"]
    tree = "```{toctree}\n:hidden:\n:glob:\n\nlabs/lab*/*\nlabs/project*/report\nlabs/report/report\n```\n"
    return "\n".join(
        [
            "# Schedule",
            "",
            _PREREQUISITES,
            "",
            *head,
            *rows,
            "",
            "## Labs",
            "",
            said,
            "",
            *of_labs,
            *labs,
            "",
            "## Projects",
            "",
            *of_projects,
            *projects,
            "",
            tree,
        ]
    )


def outcomes(root: Path, weeks: Sequence[Script]) -> str:
    """A table for the home page: what a student can do after each week, and how long its lesson and labs take."""
    labs: dict[int, list[Path]] = {}
    for path in _labs(root):
        number = _LAB_OF.search(path.stem)
        assert number, path
        labs.setdefault(int(number[1]), []).append(path)
    rows, minutes = [], 0
    for script in weeks:
        number = int(_name(script).removeprefix("week"))
        of_week = labs.get(number, [])
        spent = _minutes(script) + sum(map(_lab_minutes, of_week))
        minutes += spent
        text = " ".join("\n".join(cell.source for cell in script.cells[:4]).replace("# ", "").split())
        outcome = re.search(r"Afterwards you can ([^.]+)\.", text)
        assert outcome, f"{script.path} does not say what its reader can do afterwards"
        links = ", ".join(f"[{path.stem}]({path.relative_to(root).as_posix()})" for path in of_week)
        rows.append(
            f"| [{title(script)}](weeks/{script.path.stem}.ipynb) | {outcome[1]} | {links} | {_hours(spent)} h |"
        )
    head = ["| week | afterwards you can | lab | both |", "|---|---|---|---|"]
    return "\n".join([*head, *rows, f"| all weeks and labs | | | {minutes / 60:.0f} h |", ""])


def checklist(root: Path, weeks: Sequence[Script]) -> str:
    """What there is to do, with a box for each thing; `static/checklist.js` keeps the marks."""
    due = [one for week in weeks for one in ((title(week), f"weeks/{week.path.stem}.ipynb"), _self_check(week))]
    labs = sorted(path for path in root.glob("labs/*/*.ipynb") if path.stem in (path.parent.name, "report"))
    due += [(_notebook_title(path), path.relative_to(root).as_posix()) for path in labs]
    lines = [
        f'- <input type="checkbox" class="done" id="done-{page}" aria-label="{escape(name)}: done"> [{name}]({page})'
        for name, page in due
    ]
    head = "Your browser keeps the marks on this machine, and sends them to nobody. They are not your grades."
    return "\n".join(["# Checklist", "", head, "", *lines, ""])


def self_checks(weeks: Sequence[Script]) -> str:
    """The self-checks of all weeks on one page."""
    parts = [f"## {title(script)}\n\n```{{self-check}} {_name(script)}\n```\n" for script in weeks]
    head = "Five questions a week, as at the end of each lesson. Each answer is explained; none is sent anywhere.\n"
    return "\n".join(["# Self-checks", "", head, *parts])


def calculators() -> dict[str, str]:
    """A page for each calculator, and one that lists them."""
    form = "```{{calculator}} {}\n```"
    pages = {
        f"calculators/{name}.md": f"# {calculator.title(name)}\n\n{form.format(name)}\n\n{calculator.text(name)}\n"
        for name in NAMES
    }
    head = (
        "Each asks for a guess, computes in your browser with the code of the library, and sends nothing anywhere. "
        "Nothing needs to be installed."
    )
    rows = [f"| [{calculator.title(name)}]({name}.md) | {calculator.teaser(name)} |" for name in NAMES]
    listed = ["# Calculators", "", head, "", "| page | guess first |", "|---|---|", *rows]
    tree = "```{toctree}\n:hidden:\n\n" + "\n".join(NAMES) + "\n```\n"
    return {**pages, "calculators/index.md": "\n".join(listed) + f"\n\n{tree}"}


def commands() -> str:
    """What each command says of itself."""
    command = typer.main.get_command(app)
    text = get_docs_for_click(obj=command, ctx=typer.Context(command, info_name="autograder"), name="autograder")
    return text.replace("# `autograder`", "# Commands of `autograder`", 1)


def reference(root: Path) -> dict[str, str]:
    """A page for each public module of the library, from its docstrings, and one that lists them."""
    modules = {module: ast.parse(path.read_text(encoding="utf-8")) for module, path in _modules(root / "worldsize")}
    first = _exported(modules["worldsize"])
    pages = {f"reference/{module}.md": _module_page(module, tree, first) for module, tree in modules.items()}
    rows = [f"| [`{module}`]({module}.md) | {_first_line(tree)} |" for module, tree in modules.items()]
    head = "What students import, from its docstrings. `import worldsize as ws` gives what the first row has."
    listed = ["# Reference of `worldsize`", "", head, "", "| module | what it is for |", "|---|---|", *rows]
    tree = "```{toctree}\n:hidden:\n:glob:\n\n*\n```\n"
    return {**pages, "reference/index.md": "\n".join(listed) + f"\n\n{tree}"}


def _module_page(module: str, tree: ast.Module, first: Sequence[str]) -> str:
    """The page of a module: what it exports, or else what it defines; what `worldsize` itself has is there."""
    options = [":members:"]
    exported = _exported(tree)
    again = [] if module == "worldsize" else [name for name in exported or _defined(tree) if name in first]
    if exported:
        options.append(":imported-members:")
    if again:
        options.append(f":exclude-members: {', '.join(again)}")
    if module.rpartition(".")[2] in first:
        options.append(":no-index:")  # the function of this name has it
    lines = "\n".join([f".. automodule:: {module}", *(f"   {option}" for option in options)])
    also = ", ".join(f"[`{name}`](worldsize.md#worldsize.{name})" for name in again)
    note = f"In [`worldsize`](worldsize.md) itself: {also}.\n\n" if again else ""
    return f"# `{module}`\n\n{note}```{{eval-rst}}\n{lines}\n```\n"


def title(script: Script) -> str:
    """A lesson's title."""
    return next(found[1] for cell in script.cells if (found := _HEADING.search(cell.source)))


def _self_check(week: Script) -> tuple[str, str]:
    return f"Self-check of {title(week).partition('.')[0].lower()}", f"self_checks.md#{_name(week)}-question-1"


def _notebook_title(path: Path) -> str:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return next(found[1] for cell in cells if (found := _HEADING.search("".join(cell["source"]))))


def _labs(root: Path) -> list[Path]:
    return [path for path in sorted(root.glob("labs/lab*/lab*.ipynb")) if path.stem == path.parent.name]


def _about(script: Script) -> dict[str, str]:
    """The table at the head of a lesson."""
    return {found["name"]: found["text"] for found in _ROW.finditer(script.cells[0].source)}


def _minutes(script: Script) -> int:
    """The minutes that the head of a lesson says."""
    about = _about(script)
    said = _TIME.match(about.get("Reading and doing") or about.get("Reading", ""))
    assert said, f"the head of {script.path} has no row such as: Reading and doing | about 90 minutes"
    return 120 if said[1] == "two" else int(said[1])


def _lab_minutes(path: Path) -> int:
    """The sum of what a lab says of its functions."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    table = next(text for cell in cells if "| Function |" in (text := "".join(cell["source"])))
    return sum(int(found[1]) for found in _MINUTES.finditer(table))


def _hours(minutes: int) -> str:
    return f"{round(minutes / 30) / 2:g}"


def _row(script: Script) -> str:
    about = _about(script)
    takes = (about.get("Reading and doing") or about.get("Reading", "")).partition(":")[0]
    shown = f'<a href="{slides.place(script.path.stem)}">slides</a>'
    return f"| [{title(script)}](weeks/{script.path.stem}.ipynb) | {takes} | {about.get('Afterwards', '')} | {shown} |"


def _lab_row(path: Path, root: Path) -> str:
    return _graded_row(path, root, f"about {_hours(_lab_minutes(path))} hours")


def _project_row(path: Path, root: Path) -> str:
    about = "".join(json.loads(path.read_text(encoding="utf-8"))["cells"][0]["source"])
    return _graded_row(path, root, next(row["text"] for row in _ROW.finditer(about) if row["name"] == "Working"))


def _graded_row(path: Path, root: Path, work: str) -> str:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    graded = [cell for cell in (one["metadata"].get("nbgrader", {}) for one in cells) if cell.get("grade")]
    points, by_hand = (sum(cell["points"] for cell in some) for some in (graded, [c for c in graded if c["solution"]]))
    link = f"[{_notebook_title(path)}]({path.relative_to(root).as_posix()})"
    return f"| {link} | {work} | {points:g} | {by_hand:g} |"


def _name(script: Script) -> str:
    return script.path.stem.partition("_")[0]


def _modules(library: Path) -> Iterator[tuple[str, Path]]:
    """The modules that a student may import, the whole library first."""
    patterns = ("[a-z]*.py", "[a-z]*/__init__.py", "course/[a-z]*.py", "course/[a-z]*/__init__.py")
    found = [library / "__init__.py", *sorted(path for pattern in patterns for path in library.glob(pattern))]
    for path in found:
        yield ".".join(path.relative_to(library.parent).with_suffix("").parts).removesuffix(".__init__"), path


def _exported(tree: ast.Module) -> list[str]:
    """The names in a module's `__all__`."""
    found = (
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    return next(map(ast.literal_eval, found), [])


def _defined(tree: ast.Module) -> list[str]:
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]


def _first_line(tree: ast.Module) -> str:
    return (ast.get_docstring(tree) or "").partition("\n")[0]
