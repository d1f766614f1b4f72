"""Conversion of LaTeX formulas to MathML, which browsers draw without loading anything."""

from __future__ import annotations

import re
from functools import lru_cache
from xml.etree.ElementTree import Element, fromstring

from latex2mathml.converter import convert

_NUM_PARTS = {
    "mfrac": 2,
    "mover": 2,
    "mroot": 2,
    "msub": 2,
    "msubsup": 3,
    "msup": 2,
    "munder": 2,
    "munderover": 3,
}
_ARG = re.compile(r"\\arg(?![a-zA-Z])")  # the one function name of LaTeX that latex2mathml does not know


@lru_cache(maxsize=4096)
def mathml(latex: str, display: str = "inline") -> str:
    """Convert a formula to MathML.

    Raises:
        ValueError: it cannot be read, is incomplete, or has an unknown command.
    """
    try:
        made = convert(_ARG.sub(r"\\operatorname{arg}", latex), display=display)
        nodes = list(fromstring(made).iter())
    except Exception as error:  # latex2mathml raises errors of many kinds
        raise ValueError(f"the formula {latex!r} cannot be read: {error!r}") from error
    for node in nodes:
        text = node.text or ""
        if len(node) != _NUM_PARTS.get(tag(node), len(node)):
            raise ValueError(f"the formula {latex!r} is incomplete")
        if len(text) > 1 and text.startswith("\\"):
            raise ValueError(f"the formula {latex!r} has {text!r}, which is unknown")
    return made


def tag(node: Element) -> str:
    """Return the name of an element without its namespace."""
    return node.tag.rpartition("}")[2]
