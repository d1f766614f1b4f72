"""Converting LaTeX formulas to Typst's mathematics, via MathML."""

from __future__ import annotations

import re
from functools import lru_cache
from xml.etree.ElementTree import Element, fromstring

from autograder.markdown.typst_source import escaped, quoted
from worldsize.formulas import mathml, tag

_BRACES = {"⏟": "underbrace", "⏞": "overbrace", "_": "underline", "¯": "overline", "―": "overline"}


@lru_cache(maxsize=4096)
def typst_of(latex: str) -> str:
    """Convert a formula to Typst, without the dollar signs. Raises: ValueError, like `mathml`."""
    return _of(fromstring(mathml(latex)))


def _of(node: Element) -> str:
    name, text = tag(node), (node.text or "").strip()
    parts = [_of(child) for child in node]
    match name:
        case "math" | "mrow" | "mstyle" | "mpadded" | "mtd":
            return _fenced(node, parts)
        case "mi":
            return _identifier(text, node.get("mathvariant") == "normal")
        case "mn" | "mo":
            return _operator(text)
        case "mtext":
            return quoted(text)
        case "mspace":
            return f"#h({node.get('width', '0em')})" if node.get("width", "0em").endswith("em") else "quad"
        case "mfrac":
            return f"frac({', '.join(parts)})"
        case "msqrt":
            return f"sqrt({_joined(parts)})"
        case "mroot":
            return f"root({parts[1]}, {parts[0]})"
        case "msub":
            return f"attach({parts[0]}, b: {parts[1]})"
        case "msup":
            return f"attach({parts[0]}, t: {parts[1]})"
        case "msubsup":
            return f"attach({parts[0]}, b: {parts[1]}, t: {parts[2]})"
        case "munder" | "mover":
            return _over_or_under(name, node, parts)
        case "munderover":
            return f"attach(limits({parts[0]}), b: {parts[1]}, t: {parts[2]})"
        case "mtable":
            return f"mat(delim: #none, {'; '.join(', '.join(map(_of, row)) for row in node)})"
        case "mtr":
            return ""  # its table reads it
    raise ValueError(f"a formula uses <{name}>, which cannot be converted to Typst: write it in a different way")


def _over_or_under(name: str, node: Element, parts: list[str]) -> str:
    sign = (node[1].text or "").strip()
    if sign in _BRACES:
        return f"{_BRACES[sign]}({parts[0]})"
    if node.get("accent") == "true":
        return f"accent({parts[0]}, {quoted(sign)})"
    return f"attach(limits({parts[0]}), {'b' if name == 'munder' else 't'}: {parts[1]})"


def _fenced(node: Element, parts: list[str]) -> str:
    """Join parts in a row; group them with `lr` if a fence at either end stretches."""
    stretch = [child.get("stretchy") == "true" for child in node]
    return f"lr({_joined(parts)})" if any(stretch[:1] + stretch[-1:]) and len(parts) > 1 else _joined(parts)


def _joined(parts: list[str]) -> str:
    """Join parts with spaces, except next to quoted text, where a space would be visible."""
    row = ""
    for part in parts:
        row += ("" if not row or part.startswith('"') or row.endswith('"') else " ") + part
    return row or '""'  # an argument in Typst must not be empty


def _identifier(text: str, is_upright: bool) -> str:
    if len(text) == 1:
        return f"upright({_operator(text)})" if is_upright else _operator(text)
    return f"op({quoted(text)})"


def _operator(text: str) -> str:
    if len(text) > 1 and text.isalpha():
        return f"op({quoted(text)})"
    return text if re.fullmatch(r"\d+(\.\d+)?", text) else escaped(text)
