"""Which hidden checks can notice that cells of an answer changed, found by reading code and running none.

A check can notice a change when it, or a function of its file that it uses, names something that the changed cells
define, or something made of that. Where the code leaves a doubt, all checks can.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence

from autograder.authoring import python_parser

_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
# through these, code may reach a name that it does not spell out
_DYNAMIC = {"__dict__", "__import__", "dir", "eval", "exec", "getmembers", "globals", "import_module", "locals", "vars"}
# decorators that change nothing but what they decorate
_HARMLESS = {"cache", "classmethod", "contextmanager", "dataclass", "lru_cache", "no_grad", "property", "staticmethod"}
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class _Unsure(Exception):
    """The code may do more than can be read from it."""


def reach(
    source: str, checks: set[str], before: Sequence[tuple[str, str]], after: Sequence[tuple[str, str]]
) -> set[str] | None:
    """Those of a file's `checks` that can see a difference between cells `before` and `after`; None for all.

    Cells are (name, source).
    """
    try:
        names = _changed_names(dict(before), dict(after))
        return _checks_naming(names, python_parser.parse(source), checks)
    except (_Unsure, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _changed_names(before: Mapping[str, str], after: Mapping[str, str]) -> set[str]:
    """The names that the changed cells define, and those that other cells make of them."""
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    sources = [cells[name] for cells in (before, after) for name in changed & cells.keys()]
    names = {name for source in sources for statement in _statements(source) for name in _bound(statement)}
    others = [statement for name, source in after.items() if name not in changed for statement in _statements(source)]
    while users := [one for one in others if _named(one) & names]:
        names |= {name for statement in users for name in _bound(statement)}
        others = [one for one in others if one not in users]
    if any(name.startswith("__") for name in names) or any(_is_dynamic(statement) for statement in others):
        raise _Unsure
    return names


def _statements(source: str) -> list[ast.stmt]:
    return python_parser.parse(source).body


def _bound(statement: ast.stmt) -> set[str]:
    """The names that a statement defines. Raises: _Unsure where running it may do anything else."""
    names = set(_targets(statement))
    names |= {name for node in ast.walk(statement) if isinstance(node, ast.Global) for name in node.names}
    run = (node for expression in _run_at_once(statement) for node in ast.walk(expression))
    if "*" in names or any(isinstance(node, ast.Call | ast.NamedExpr) for node in run):
        raise _Unsure
    return names


def _targets(statement: ast.stmt) -> Iterator[str]:
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield statement.name
        case ast.Import() | ast.ImportFrom():
            yield from ((alias.asname or alias.name).split(".")[0] for alias in statement.names)
        case ast.Assign(targets=targets):
            for target in targets:
                yield from _target_names(target)
        case ast.AnnAssign(target=target):
            yield from _target_names(target)
        case ast.Expr(value=ast.Constant()) | ast.Pass():
            return
        case _:
            raise _Unsure


def _target_names(target: ast.expr) -> Iterator[str]:
    match target:
        case ast.Name(id=name):
            yield name
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            for part in parts:
                yield from _target_names(part)
        case _:  # part of an object that others may hold too
            raise _Unsure


def _run_at_once(statement: ast.stmt) -> Iterator[ast.expr]:
    """The expressions that are evaluated when a statement runs: of a function, all but its body."""
    match statement:
        case ast.FunctionDef(args=args) | ast.AsyncFunctionDef(args=args):
            yield from (one for one in statement.decorator_list if not _is_harmless(one))
            yield from (default for default in (*args.defaults, *args.kw_defaults) if default)
            yield from (arg.annotation for arg in ast.walk(args) if isinstance(arg, ast.arg) and arg.annotation)
            yield from [statement.returns] if statement.returns else []
        case ast.ClassDef():
            yield from (one for one in statement.decorator_list if not _is_harmless(one))
            yield from (*statement.bases, *(keyword.value for keyword in statement.keywords))
            for inner in statement.body:
                _bound(inner)  # refuses what does more than define
        case _:
            yield from (node for node in ast.iter_child_nodes(statement) if isinstance(node, ast.expr))


def _is_harmless(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
    if name not in _HARMLESS:
        raise _Unsure
    return True


def _named(node: ast.AST) -> set[str]:
    """Every identifier in code and in its strings, but not in docstrings."""
    docstrings = {id(one.body[0]) for one in ast.walk(node) if isinstance(one, _Definition) and ast.get_docstring(one)}
    inside = {id(one.value) for one in ast.walk(node) if isinstance(one, ast.Expr) and id(one) in docstrings}
    texts = (one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and id(one) not in inside)
    return _spelled(node) | {name for text in texts if isinstance(text, str) for name in _IDENTIFIER.findall(text)}


def _spelled(node: ast.AST) -> set[str]:
    """Every identifier in code itself."""
    found: set[str] = set()
    for one in ast.walk(node):
        match one:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                found.add(name)
            case ast.alias(name=name):
                found.update(name.split("."))
    return found


def _is_dynamic(node: ast.AST) -> bool:
    """True where code may reach a student's names without spelling them out."""
    calls = (one for one in ast.walk(node) if isinstance(one, ast.Call) and isinstance(one.func, ast.Name))
    by_name = [one for one in calls if _spelled(one.func) & {"getattr", "setattr"}]
    unclear = [one for one in by_name if not isinstance(one.args[1], ast.Constant) and not _is_torch(one.args[0])]
    return bool(_spelled(node) & _DYNAMIC or {"sys", "modules"} <= _spelled(node) or unclear)


def _is_torch(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "torch"


def _checks_naming(names: set[str], tree: ast.Module, known: set[str]) -> set[str]:
    """The checks that name one of these, and all that need such a check."""
    definitions = {name: statement for statement in tree.body for name in _defined(statement)}
    checks = {name: node for name, node in definitions.items() if name.startswith("check_")}
    if checks.keys() != known:  # some are made otherwise than by a function at the top of the file
        raise _Unsure
    used = {name: _used(node, definitions) for name, node in checks.items()}
    found = {name for name, nodes in used.items() if any(_named(node) & names or _is_dynamic(node) for node in nodes)}
    needs = {name: _needs(node, definitions) & checks.keys() for name, node in checks.items()}
    while more := {name for name in checks.keys() - found if needs[name] & found}:
        found |= more
    return found


def _defined(statement: ast.stmt) -> set[str]:
    stored = (node for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    return {statement.name} if isinstance(statement, _Definition) else {node.id for node in stored}


def _used(node: ast.stmt, definitions: Mapping[str, ast.stmt]) -> list[ast.stmt]:
    """A check and everything in its file that it uses, except other checks, which it names only as required."""
    found, names = [node], _named(node)
    while more := {name for name in names & definitions.keys() if not name.startswith("check_")} - {
        name for one in found for name in _defined(one)
    }:
        found += [definitions[name] for name in more]
        names |= {name for one in found for name in _named(one)}
    return found


def _needs(node: ast.stmt, definitions: Mapping[str, ast.stmt]) -> set[str]:
    """Every name in the decorators of a check, and in the constants that they name."""
    named = {name for one in getattr(node, "decorator_list", []) for name in _named(one)}
    return named | {name for one in named & definitions.keys() for name in _named(definitions[one])}
