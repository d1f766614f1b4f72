"""A generated class: independent answers, and disguised copies.

Independent students take each function from the known answers of a lab, at random, and write it their own way: other
statements for the same thing, at random places. Copies are renamed, their functions reordered, and everything between
the tokens typed anew.
"""

from __future__ import annotations

import ast
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeGuard

from autograder.authoring.known_answers import read_known_answers, solution_cells

ONES_OWN_WAY = (0.15, 0.6)  # at how many of the places where there is a choice a student writes it otherwise
_TORCHS = {"data", "grad", "requires_grad"}  # attributes that are assigned, and that no copy can rename
_COMMENTS = ("now the next step", "see the text of the lab", "this took me an hour", "works", "check the shapes here")


def pool(lab: Path) -> dict[str, list[str]]:
    """Every known answer to each cell of a lab that is Python, the solution's first."""
    found: dict[str, list[str]] = defaultdict(list)
    answers = [solution_cells(lab / f"{lab.name}.py")]
    answers += [answer.cells for answer in read_known_answers(lab)]
    for cells in answers:
        for name, source in cells.items():
            if _is_code(source) and source not in found[name]:
                found[name].append(source)
    return {name: sources for name, sources in found.items() if sources}


def _is_code(source: str) -> bool:
    try:
        return any(not isinstance(one, ast.Expr) for one in ast.parse(source).body)
    except SyntaxError:
        return False


def independent(answers: Mapping[str, Sequence[str]], seed: int) -> dict[str, str]:
    """The cells of a student who wrote every one alone: half the functions are the solution's, written another way."""
    chance = random.Random(seed)
    share = chance.uniform(*ONES_OWN_WAY)
    cells = {}
    for name, sources in answers.items():
        chosen = sources[0] if chance.random() < 0.5 else chance.choice(sources)
        tree = _Rewritten(chance, share).visit(ast.parse(chosen))
        cells[name] = ast.unparse(ast.fix_missing_locations(_Renamed(tree, {}, chance).visit(tree)))
    return cells


def copied(cells: Mapping[str, str], seed: int) -> dict[str, str]:
    """The same cells, disguised: other names, functions and cells in another order, typed anew."""
    chance = random.Random(seed)
    names = [*cells]
    chance.shuffle(names)
    trees = [ast.parse(source) for source in cells.values()]
    bound = {node.attr for tree in trees for node in ast.walk(tree) if _is_bound_attribute(node)}
    attributes = {one: f"_{chance.choice('pqrst')}{number}" for number, one in enumerate(sorted(bound))}
    return {name: _disguised(cells[name], attributes, chance) for name in names}


def _is_bound_attribute(node: ast.AST) -> TypeGuard[ast.Attribute]:
    return isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr not in _TORCHS


def _disguised(source: str, attributes: Mapping[str, str], chance: random.Random) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef):
            node.body = _reordered(node.body, chance)
    text = ast.unparse(ast.fix_missing_locations(_Renamed(tree, attributes, chance).visit(tree)))
    lines: list[str] = []
    for line in text.split("\n"):
        indent = line[: len(line) - len(line.lstrip())]
        if chance.random() < 0.2 and not line.lstrip().startswith((")", "]", "}")):
            lines.append(f"{indent}# {chance.choice(_COMMENTS)}")
        spaced = line.replace(" = ", "=") if chance.random() < 0.3 and " = " in line else line
        lines += [spaced, *([""] if chance.random() < 0.1 else [])]
    return "\n".join(lines)


def _reordered(body: list[ast.stmt], chance: random.Random) -> list[ast.stmt]:
    """The statements with their functions in another order."""
    places = [place for place, one in enumerate(body) if isinstance(one, ast.FunctionDef | ast.ClassDef)]
    functions = [body[place] for place in places]
    chance.shuffle(functions)
    shuffled = list(body)
    for place, function in zip(places, functions, strict=True):
        shuffled[place] = function
    return shuffled


class _Renamed(ast.NodeTransformer):
    """New names for whatever the source binds itself, attributes of its own included."""

    def __init__(self, tree: ast.AST, attributes: Mapping[str, str], chance: random.Random):
        own: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                own.add(node.id)
            elif isinstance(node, ast.arg):
                own.add(node.arg)
        self._names = {one: f"{chance.choice('abcdefgh')}{number}" for number, one in enumerate(sorted(own))}
        self._attributes = attributes

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = self._names.get(node.id, node.id)
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.arg = self._names.get(node.arg, node.arg)
        return self.generic_visit(node)

    def visit_keyword(self, node: ast.keyword) -> ast.AST:
        return self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        node.attr = self._attributes.get(node.attr, node.attr)
        return self.generic_visit(node)


class _Rewritten(ast.NodeTransformer):
    """Other statements for the same thing, at a share of the places where there is a choice."""

    def __init__(self, chance: random.Random, share: float):
        self._chance, self._share, self._num_names = chance, share, 0

    def _otherwise(self) -> bool:
        return self._chance.random() < self._share

    def _new_name(self) -> str:
        self._num_names += 1
        return f"_part_{self._num_names}"

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for field in ("body", "orelse", "finalbody"):
            body = getattr(node, field, None)
            if isinstance(body, list):
                setattr(node, field, [new for one in body for new in self._statements(one)])
        return node

    def _statements(self, node: ast.stmt) -> list[ast.stmt]:
        """One statement, or several that do the same."""
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Call | ast.BinOp) and self._otherwise():
            name = self._new_name()
            return [_assign(name, node.value), ast.Return(_load(name))]
        if isinstance(node, ast.Assign | ast.Expr) and isinstance(node.value, ast.Call) and self._otherwise():
            return [*self._arguments_first(node.value), node]
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) and self._otherwise():
            value = ast.BinOp(_load(node.target.id), node.op, node.value)
            return [ast.Assign([ast.Name(node.target.id, ast.Store())], value)]
        if isinstance(node, ast.For) and not node.orelse and self._otherwise():
            return self._loop(node)
        if isinstance(node, ast.Assert) and self._otherwise():
            return [ast.If(ast.UnaryOp(ast.Not(), node.test), [_raise("AssertionError")], [])]
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.ListComp) and self._otherwise():
            return self._appended(node)
        return [node]

    def _arguments_first(self, call: ast.Call) -> list[ast.stmt]:
        """Names for arguments that are computed, which then stand in the call."""
        before: list[ast.stmt] = []
        for place, argument in enumerate(call.args):
            if isinstance(argument, ast.Call | ast.BinOp | ast.Subscript) and self._otherwise():
                name = self._new_name()
                before.append(_assign(name, argument))
                call.args[place] = _load(name)
        return before

    def _loop(self, node: ast.For) -> list[ast.stmt]:
        """A loop over a list that was made first, or one that counts."""
        if self._chance.random() < 0.5:
            name = self._new_name()
            made = ast.Call(_load("list"), [node.iter], [])
            node.iter = _load(name)
            return [_assign(name, made), node]
        name = self._new_name()
        counted = ast.Tuple([ast.Name(name, ast.Store()), node.target], ast.Store())
        node.target, node.iter = counted, ast.Call(_load("enumerate"), [node.iter], [])
        return [node]

    def _appended(self, node: ast.Assign) -> list[ast.stmt]:
        """A loop that appends, in place of a comprehension of one loop."""
        assert isinstance(node.value, ast.ListComp)
        comprehension, name = node.value, self._new_name()
        if len(comprehension.generators) > 1:
            return [node]
        one = comprehension.generators[0]
        append = ast.Expr(ast.Call(ast.Attribute(_load(name), "append", ast.Load()), [comprehension.elt], []))
        body: list[ast.stmt] = [append]
        for condition in reversed(one.ifs):
            body = [ast.If(condition, body, [])]
        loop = ast.For(one.target, one.iter, body, [])
        return [_assign(name, ast.List([], ast.Load())), loop, ast.Assign(node.targets, _load(name))]

    def visit_If(self, node: ast.If) -> ast.AST:
        self.generic_visit(node)
        if node.orelse and self._otherwise():
            node.test = ast.UnaryOp(ast.Not(), node.test)
            node.body, node.orelse = node.orelse, node.body
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        turned = {ast.Lt: ast.Gt, ast.Gt: ast.Lt, ast.LtE: ast.GtE, ast.GtE: ast.LtE, ast.Eq: ast.Eq}
        if len(node.ops) == 1 and type(node.ops[0]) in turned and self._otherwise():
            left, (right,) = node.left, node.comparators
            return ast.Compare(right, [turned[type(node.ops[0])]()], [left])
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.op, ast.Mult) and self._otherwise():
            return ast.BinOp(node.right, node.op, node.left)
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self.generic_visit(node)
        if self._otherwise():
            return ast.IfExp(ast.UnaryOp(ast.Not(), node.test), node.orelse, node.body)
        return node


def _load(name: str) -> ast.expr:
    return ast.Name(name, ast.Load())


def _assign(name: str, value: ast.expr) -> ast.stmt:
    return ast.Assign([ast.Name(name, ast.Store())], value)


def _raise(name: str) -> ast.stmt:
    return ast.Raise(ast.Call(_load(name), [], []))
