"""Parts of a lab's own solution, for hidden checks: they judge each part of a submission with right other parts."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def take_from_solution(script: Path, *names: str) -> tuple[Any, ...]:
    """Return what an authored script defines under these names, with the solution filled in.

    Only the imports, functions, classes and constants in capitals that these need are executed, so that no cell runs
    anything. Ranks get what a check uses of it by value, with what that itself uses, and nothing else of the solution.
    """
    tree = ast.parse(script.read_text(encoding="utf-8"), str(script))
    defined: dict[str, Any] = {"__name__": f"solution of {script.stem}"}  # not a module that a rank could import
    exec(compile(ast.Module(_needed(tree, names), []), str(script), "exec"), defined)
    return tuple(defined[name] for name in names)


def _needed(tree: ast.Module, names: Iterable[str]) -> list[ast.stmt]:
    """The definitions of these names, and of what they use, in the order of the script."""
    needed, wanted = set[ast.stmt](), [*names]
    while wanted:
        name = wanted.pop()
        for node in tree.body:
            if name in _bound(node) and node not in needed:
                needed.add(node)
                wanted += [one.id for one in ast.walk(node) if isinstance(one, ast.Name)]
    return [node for node in tree.body if node in needed]


def _bound(node: ast.stmt) -> list[str]:
    match node:
        case ast.Import() | ast.ImportFrom():
            return [(alias.asname or alias.name).partition(".")[0] for alias in node.names]
        case ast.FunctionDef() | ast.ClassDef():
            return [node.name]
        case ast.Assign(targets=[ast.Name(id=name)]) if name.isupper():
            return [name]
    return []
