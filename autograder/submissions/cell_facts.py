"""Facts about cells of Python source, such as their definitions, found in the syntax tree without running them.

Imports only the standard library: it runs in a separate process with limits on memory and time.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from typing import NamedTuple

# names with which code could look beyond its task; a submission that uses one is shown to the instructor
# fmt: off
_ANYWHERE = (
    "_getframe", "_current_frames", "currentframe", "f_back", "f_globals", "f_locals", "f_builtins", "tb_frame",
    "gi_frame", "cr_frame", "settrace", "setprofile", "__subclasses__", "__globals__", "__builtins__", "__closure__",
    "__import__", "import_module", "get_objects", "get_referrers", "get_referents", "ctypes", "cffi", "mmap",
    "memfd_create", "walk_stack", "walk_tb", "capture_locals", "StackSummary", "from_file", "_get_default_store",
    "InteractiveInterpreter", "InteractiveConsole",
)
_DOTTED = (
    "gc.freeze", "gc.unfreeze", "gc.disable", "gc.callbacks", "sys.modules", "sys.meta_path", "sys.path_hooks",
    "sys.monitoring", "sys.stdout", "sys.stderr", "os.fork", "os.forkpty", "os.kill", "os._exit", "os.system",
    "os.popen", "os.dup2", "os.open", "os.getppid", "resource", "builtins.exec", "builtins.eval", "builtins.compile",
    "inspect.stack", "inspect.getsource", "linecache", "atexit", "signal", "subprocess", "multiprocessing", "socket",
    "marshal", "tempfile", "os.pipe", "codeop",
    "autograder", "worldsize.emulate", "worldsize.launch", "worldsize.timeline", "worldsize.check",
    "worldsize.pricing", "worldsize.memory", "worldsize.framing",
)
# fmt: on
_CALLED = ("exec", "eval", "compile", "globals")  # only as plain names: other objects have methods of these names
_PATHS = r"/proc\b|/dev/shm\b|/dev/fd\b|/sys\b|/tmp\b"
_TEXTS = re.compile(rf"{_PATHS}|\b(?:{'|'.join(map(re.escape, (*_ANYWHERE, *_DOTTED)))})\b")
_DEFINITIONS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_MAX_SIGHTINGS = 20  # per cell
_MAX_OWNERS = 10  # nested attributes before a dot
_MAX_CHARS = 80  # per sighting
_UNPARSE_DEPTH = 20_000  # Python frames, which need no C stack; a sum of a thousand terms is that deep


class CellFacts(NamedTuple):
    """The facts about one cell.

    `definitions` are its imports, functions, classes and literal constants as source; `sightings` are the names in it
    that an instructor should see; `is_unwritten` is True if a function only raises NotImplementedError.
    """

    definitions: str = ""
    sightings: tuple[str, ...] = ()
    is_unwritten: bool = False


def facts(sources: list[str]) -> Iterator[CellFacts]:
    """Find the facts about each of a notebook's cells, in order; names imported in a cell are known in later cells.

    A cell that is not Python has no facts.

    Raises:
        RecursionError, MemoryError: a cell is nested too deeply for Python's parser, or needs too much memory.
    """
    modules: dict[str, str] = {}
    for source in sources:
        try:
            tree = ast.parse(source)
            text = _definitions(tree)
        except (SyntaxError, ValueError):  # ValueError: a number with too many digits to be converted to text
            yield CellFacts()
            continue
        modules |= _imported(tree)
        found = tuple(dict.fromkeys(one[:_MAX_CHARS] for one in _sightings(tree, modules)))[:_MAX_SIGHTINGS]
        yield CellFacts(text, found, _is_unwritten(tree))


def _definitions(tree: ast.Module) -> str:
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(_UNPARSE_DEPTH)
    try:
        return "\n".join(ast.unparse(node) for node in tree.body if _defines(node))
    finally:
        sys.setrecursionlimit(usual)


def _defines(node: ast.stmt) -> bool:
    if isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
        try:
            ast.literal_eval(node.value)
        except (ValueError, TypeError, ArithmeticError):  # such as a sum that no float can hold
            return False
        return True
    return isinstance(node, _DEFINITIONS)


def _is_unwritten(tree: ast.Module) -> bool:
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return any(_only_raises(function) for function in functions)


def _only_raises(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether the body, apart from a docstring, is only `raise NotImplementedError`."""
    first = function.body[0]
    has_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    rest = function.body[has_docstring:]
    if len(rest) != 1 or not isinstance(rest[0], ast.Raise):
        return False
    error = rest[0].exc
    error = error.func if isinstance(error, ast.Call) else error
    return isinstance(error, ast.Name) and error.id == "NotImplementedError"


def _imported(tree: ast.Module) -> dict[str, str]:
    """Map the names that imports bind to their full names."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname: alias.name for alias in node.names if alias.asname}
            names |= {one: one for alias in node.names if not alias.asname for one in [alias.name.partition(".")[0]]}
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return names


def _sightings(tree: ast.Module, modules: dict[str, str]) -> Iterator[str]:
    docstrings = {id(text) for text in _docstrings(tree)}
    for node in ast.walk(tree):
        for name in _names(node, modules):
            yield from _known(name)
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load) and _is_of(node, modules):
            yield f"{ast.unparse(node)} is set"
        if isinstance(node, ast.Name) and node.id in _CALLED and isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.Constant) and isinstance(node.value, str | bytes) and id(node) not in docstrings:
            text = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
            yield from (found[0] for found in _TEXTS.finditer(text))


def _docstrings(tree: ast.Module) -> Iterator[ast.expr]:
    """The strings that are whole statements, such as docstrings."""
    return (node.value for node in ast.walk(tree) if isinstance(node, ast.Expr))


def _names(node: ast.AST, modules: dict[str, str]) -> Iterator[str]:
    """The full names in one node of a tree."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Name):
        yield modules.get(node.id, node.id)
    elif isinstance(node, ast.Attribute):
        yield f"{_owner(node.value, modules)}.{node.attr}"
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
        match node.args:
            case [owner, ast.Constant(value=str(name)), *_]:
                yield f"{_owner(owner, modules)}.{name}"


def _is_of(node: ast.expr, modules: dict[str, str]) -> bool:
    """Whether an attribute belongs to a module or a part of one: setting it changes it for all code."""
    depth = 0
    while isinstance(node, ast.Attribute) and depth < _MAX_OWNERS:
        node, depth = node.value, depth + 1
    return isinstance(node, ast.Name) and node.id in modules


def _owner(node: ast.expr, modules: dict[str, str]) -> str:
    """The name before a dot: at most a module and two names, because no known name is longer."""
    names: list[str] = []
    while isinstance(node, ast.Attribute) and len(names) < 2:
        names.append(node.attr)
        node = node.value
    first = modules.get(node.id, "") if isinstance(node, ast.Name) else ""
    return ".".join([first, *reversed(names)])


def _known(name: str) -> Iterator[str]:
    """The listed names that a full name begins with or contains."""
    yield from (known for known in _DOTTED if f"{name}.".startswith(f"{known}."))
    yield from (part for part in name.split(".") if part in _ANYWHERE)
