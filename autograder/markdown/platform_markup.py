"""Converting Markdown with LaTeX to the XHTML that learning platforms accept, and functions that write XML.

Platforms strip unknown elements and QTI forbids them, so only plain elements remain: anything else that looks like a
tag is shown as written. Most texts of a class's forms are the same, so each is converted only once.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from html import escape, unescape
from html.parser import HTMLParser
from typing import Any

from worldsize.formulas import mathml

_BLOCKS = {"p", "pre", "blockquote", "ul", "ol", "li", "table", "thead", "tbody", "tr", "th", "td", "hr", "div"}
_INLINE = {"a", "img", "br", "em", "strong", "code", "sub", "sup", "span", "b", "i", "kbd", "q"}
_KEPT = _BLOCKS | _INLINE | {f"h{level}" for level in range(1, 7)}
_DROPPED = {"del", "s", "u", "ins", "mark", "font", "center"}  # their content stays
_VOID = {"br", "hr", "img"}
_ATTRIBUTES = {"a": ("href",), "img": ("src", "alt")}
# placeholders for a numbered formula or gap, which is inserted later: characters that do not occur in texts
_FORMULA, _GAP, _END = "\ue000", "\ue001", "\ue002"
_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def tag(name: str, /, *children: str, **attributes: Any) -> str:
    """An XML element; children are XML. A `_` at the end of an attribute is dropped, any other becomes `:`."""
    given = "".join(
        f' {key.rstrip("_").replace("_", ":")}="{words(str(value), quote=True)}"' for key, value in attributes.items()
    )
    content = "".join(children)
    return f"<{name}{given}>{content}</{name}>" if content else f"<{name}{given}/>"


def words(text: str, *, quote: bool = False) -> str:
    """Escape text for XML; characters that XML does not allow are left out."""
    return escape(_ILLEGAL.sub("", text), quote=quote)


def html(markdown: str) -> str:
    r"""Markdown as XHTML, with formulas between `\(` and `\)`, which every platform's MathJax renders."""
    return _filled(markdown, as_mathml=False)


def html_with_mathml(markdown: str) -> str:
    """Markdown as XHTML, with formulas as MathML."""
    return _filled(markdown, as_mathml=True)


@lru_cache(maxsize=2048)
def line(markdown: str) -> str:
    """Markdown as one line of plain text, for fields without markup; formulas stay LaTeX."""
    text, formulas = _converted(markdown)
    text = unescape(re.sub(r"<[^>]*>", " " if "<br" in text else "", text))
    return " ".join(_with_formulas(text, [latex for latex, _ in formulas]).split())


def is_plain(markdown: str) -> bool:
    """Whether `line` keeps the whole text."""
    text, formulas = _converted(markdown)
    return not formulas and not re.search("<(?!/?p>)", text) and text.count("<p>") <= 1


def mark_gaps(markdown: str, names: list[str]) -> str:
    """Replace the gaps `[[name]]` with marks that survive conversion; `put_in` fills them."""
    for place, name in enumerate(names):
        markdown = markdown.replace(f"[[{name}]]", f"{_GAP}{place}{_END}")
    return markdown


def put_in(text: str, fields: list[str]) -> str:
    """Insert these fields at the marks of a converted text."""
    return re.sub(f"{_GAP}([0-9]+){_END}", lambda found: fields[int(found[1])], text)


@lru_cache(maxsize=2048)
def _filled(markdown: str, *, as_mathml: bool) -> str:
    text, formulas = _converted(markdown)
    return _with_formulas(text, [_as_mathml(*one) if as_mathml else _as_latex(*one) for one in formulas])


def _with_formulas(text: str, formulas: list[str]) -> str:
    return re.sub(f"{_FORMULA}([0-9]+){_END}", lambda found: formulas[int(found[1])], text)


def _as_latex(latex: str, is_block: bool) -> str:
    return words(rf"\[{latex}\]" if is_block else rf"\({latex}\)")


def _as_mathml(latex: str, is_block: bool) -> str:
    """The formula as MathML with its LaTeX as an annotation; as LaTeX if it cannot be converted."""
    try:
        converted = mathml(latex, "block" if is_block else "inline")
    except ValueError:
        return _as_latex(latex, is_block)
    return converted.replace("<math ", f'<math alttext="{words(latex, quote=True)}" ', 1)


@lru_cache(maxsize=2048)
def _converted(markdown: str) -> tuple[str, list[tuple[str, bool]]]:
    """XHTML with numbered marks for formulas, and for each formula its LaTeX and whether it is a block."""
    markdown_to_html, renderer = _converter()
    renderer.formulas = []
    html = markdown_to_html(_ILLEGAL.sub("", markdown))
    cleaner = _Cleaner()
    cleaner.feed(html)
    cleaner.close()
    return cleaner.result(), renderer.formulas


@cache
def _converter() -> Any:
    from mistune import HTMLRenderer
    from nbconvert.filters.markdown_mistune import MarkdownWithMath  # takes a second to import

    class Renderer(HTMLRenderer):
        """Markdown renderer that puts marks in place of formulas."""

        formulas: list[tuple[str, bool]]

        def inline_math(self, text: str) -> str:
            return self._kept(text, False)

        def block_math(self, text: str) -> str:
            return self._kept(text, True)

        def multiline_math(self, text: str) -> str:
            return text

        def latex_environment(self, name: str, body: str) -> str:
            return self._kept(rf"\begin{{{name}}}{body}\end{{{name}}}", True)

        def _kept(self, latex: str, is_block: bool) -> str:
            self.formulas.append((latex.strip(), is_block))
            return f"{_FORMULA}{len(self.formulas) - 1}{_END}"

    renderer = Renderer(escape=False)
    return MarkdownWithMath(renderer=renderer), renderer


class _Cleaner(HTMLParser):
    """Parser that turns HTML into well-formed XHTML with only the allowed elements."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._parts: list[str] = []
        self._open: list[str] = []

    def result(self) -> str:
        """The XHTML of everything fed so far, with all elements closed."""
        return ("".join(self._parts) + "".join(f"</{name}>" for name in reversed(self._open))).strip()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _DROPPED:
            return
        if tag not in _KEPT:
            self._parts.append(words(self.get_starttag_text() or ""))
            return
        given = dict(attrs)
        kept = {name: given.get(name) or "" for name in _ATTRIBUTES.get(tag, ())}
        self._parts.append(f"<{tag}" + "".join(f' {name}="{words(value, quote=True)}"' for name, value in kept.items()))
        if tag in _VOID:
            self._parts.append("/>")
        else:
            self._parts.append(">")
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag in _KEPT - _VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self._open:
            while (name := self._open.pop()) != tag:
                self._parts.append(f"</{name}>")
            self._parts.append(f"</{tag}>")
        elif tag not in _KEPT | _DROPPED:
            self._parts.append(f"&lt;/{tag}&gt;")

    def handle_data(self, data: str) -> None:
        self._parts.append(words(data, quote=False))

    def handle_comment(self, data: str) -> None:
        self._parts.append(words(f"<!--{data}-->"))

    def handle_decl(self, decl: str) -> None:
        self._parts.append(words(f"<!{decl}>"))

    def handle_pi(self, data: str) -> None:
        self._parts.append(words(f"<?{data}>"))

    def unknown_decl(self, data: str) -> None:
        self._parts.append(words(f"<![{data}]]>"))
