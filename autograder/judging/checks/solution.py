"""Parts of a lab's own solution, for hidden checks: they judge each part of a submission with right other parts."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def take_from_solution(script: Path, *names: str) -> tuple[Any, ...]:
    """Return what an authored script defines under these names, with the solution filled in.

    Only its imports, functions, classes and constants in capitals are executed, so that no cell runs anything. Ranks
    get what a check uses of it by value, with what that itself uses, and nothing else of the solution.
    """
    tree = ast.parse(script.read_text(encoding="utf-8"), str(script))
    defined: dict[str, Any] = {"__name__": f"solution of {script.stem}"}  # not a module that a rank could import
    exec(compile(ast.Module(list(_definitions(tree)), []), str(script), "exec"), defined)
    return tuple(defined[name] for name in names)


def _definitions(tree: ast.Module) -> Iterator[ast.stmt]:
    for node in tree.body:
        match node:
            case ast.Import() | ast.ImportFrom() | ast.FunctionDef() | ast.ClassDef():
                yield node
            case ast.Assign(targets=[ast.Name(id=name)]) if name.isupper():
                yield node
