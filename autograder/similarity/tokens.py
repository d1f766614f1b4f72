"""Python source as tokens that do not change when names, comments, layout or quotes change.

Only `tokenize` reads the source: it neither runs nor parses untrusted code, and takes time linear in its length.
"""

from __future__ import annotations

import builtins
import io
import keyword
import re
import token
import tokenize
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

_KEPT = frozenset(keyword.kwlist) | frozenset(dir(builtins))
_LAYOUT = {token.NEWLINE, token.NL, token.INDENT, token.DEDENT, token.COMMENT, token.ENCODING, token.ENDMARKER}
_BREAKS = {token.NEWLINE, token.NL, token.INDENT, token.DEDENT, token.COMMENT, token.ENCODING}
_IMPORTED = re.compile(r"^[ \t]*(?:from[ \t]+\S+[ \t]+)?import[ \t]+([^#\n;]+)", re.MULTILINE)
_OPENING, _CLOSING, _ASSIGNS = ("(", "[", "{"), (")", "]", "}"), ("=", "+=", "-=", "*=", "/=", ":")
_NAME, _ATTRIBUTE, _STRING = "name", "attribute", '""'


class Token(NamedTuple):
    """A token in the form that is compared, its line, counted from 1, and whether a part of the source begins here.

    Parts are definitions with their decorators, and the code between definitions.
    """

    text: str
    line: int
    is_first: bool = False


def imported_names(source: str) -> set[str]:
    """The names that imports bind, which a copy cannot change without changing its imports."""
    found: set[str] = set()
    for names in _IMPORTED.findall(source):
        words = [part.strip("() ").split() for part in names.split(",")]
        found |= {one[-1].split(".")[0] for one in words if one}  # none after a last comma
    return found


def tokens(source: str, imported: Collection[str] = (), own: Collection[str] = ()) -> list[Token]:
    """The tokens of a source, up to the first that is not valid Python.

    All names are equal unless they are built in or imported, and so are the work's own attributes: those in `own` and
    those that the source binds. Comments, docstrings, layout and commas before a closing bracket are left out.
    """
    raw = [*_raw(source)]
    modules = imported_names(source) | {*imported}
    attributes = _bound(raw) | {*own}
    firsts = _first_of_parts(raw)
    found: list[Token] = []
    for place, one in enumerate(raw):
        if one.type in _LAYOUT or one.type == token.ERRORTOKEN or _is_docstring(raw, place):
            continue
        text = one.string
        if one.type == token.NAME and text not in _KEPT:
            is_attribute = bool(found) and found[-1].text == "."
            text = _attribute(text, attributes) if is_attribute else text if text in modules else _NAME
        elif one.type == token.STRING or token.tok_name[one.type] == "FSTRING_START":
            text = _STRING
        elif token.tok_name[one.type].startswith("FSTRING"):
            continue
        elif text in ")]}" and found and found[-1].text == ",":
            found.pop()
        found.append(Token(text, one.start[0], place in firsts))
    return found


def _first_of_parts(raw: Sequence[tokenize.TokenInfo]) -> set[int]:
    """The indices at which a definition begins, with its first decorator, or the code after a definition begins."""
    found: set[int] = set()
    depth, open_at = 0, [-1]  # the depths of the definitions that a place is in
    is_statement, is_decorated = True, False
    for place, one in enumerate(raw):
        if one.type in (token.NL, token.COMMENT, token.ENCODING):
            continue
        if one.type in (token.NEWLINE, token.INDENT, token.DEDENT):
            depth += (one.type == token.INDENT) - (one.type == token.DEDENT)
            is_statement = True
            continue
        if not is_statement:
            continue
        is_statement = False
        while open_at[-1] >= depth:
            open_at.pop()
            found.add(place)
        words = [one.string for one in raw[place : place + 2]]
        is_definition = words[0] in ("def", "class") or words == ["async", "def"]
        if is_definition or one.string == "@":
            found |= set() if is_decorated else {place}
            open_at += [depth] if is_definition else []
        is_decorated = one.string == "@"
    return found


def _attribute(name: str, own: Collection[str]) -> str:
    return _ATTRIBUTE if name in own else name


def _raw(source: str) -> Iterator[tokenize.TokenInfo]:
    try:
        yield from tokenize.generate_tokens(io.StringIO(source).readline)
    except (tokenize.TokenError, SyntaxError):
        return


def own_attributes(source: str) -> set[str]:
    """The names of functions and classes that a source defines, and of attributes that it assigns."""
    return _bound([*_raw(source)])


def _bound(raw: Sequence[tokenize.TokenInfo]) -> set[str]:
    found = {name.string for before, name in pairwise(raw) if before.string in ("def", "class")}
    statement: list[tokenize.TokenInfo] = []
    for one in raw:
        if one.type in (token.NEWLINE, token.ENDMARKER):
            found |= _targets(statement)
            statement = []
        elif one.type not in _LAYOUT:
            statement.append(one)
    return found


def _targets(statement: Sequence[tokenize.TokenInfo]) -> set[str]:
    """The attributes that a statement assigns: `x.one, x.two = ...`, `x.one += ...` or `x.one: int`."""
    depth, last = 0, 0
    for place, one in enumerate(statement):
        depth += (one.string in _OPENING) - (one.string in _CLOSING)
        if depth == 0 and one.string in _ASSIGNS:
            last = place
    before = [one.string for one in statement[: last + 1]]
    places = range(1, len(before) - 1)
    return {before[at] for at in places if before[at - 1] == "." and before[at + 1] in (",", ")", *_ASSIGNS)}


def _is_docstring(raw: list[tokenize.TokenInfo], place: int) -> bool:
    """Whether this token is a string that is a whole statement."""
    if raw[place].type != token.STRING:
        return False
    before = raw[place - 1].type if place else token.NEWLINE
    after = raw[place + 1].type if place + 1 < len(raw) else token.NEWLINE
    return before in _BREAKS and after in (token.NEWLINE, token.NL, token.COMMENT, token.ENDMARKER)
