"""Converting the bank's Markdown to HTML with MathML, and to Typst; gaps become blanks that the format draws."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from html import escape
from typing import Any

import mistune

from autograder.markdown.formulas import typst_of
from autograder.markdown.typst_source import escaped, quoted
from worldsize.formulas import mathml

Node = dict[str, Any]
_MARKDOWN = mistune.create_markdown(renderer="ast", plugins=["math", "table"])
_GAP = re.compile(r"\[\[[a-z][a-z0-9_]*\]\]")
_FIRST_BLANK = 0xE000  # in Unicode's private use area: not used in texts, not changed by converters
_BLANK = re.compile(r"[\ue000-\ue0ff]")


def html(markdown: str, blank: Callable[[int], str] = str) -> str:
    """Convert Markdown to HTML; `blank(number)` is the HTML of a gap, counted from 1.

    Raises:
        ValueError: a formula cannot be read, or the text has something that a quiz cannot show, such as a linked image.
    """
    return _filled(_html(markdown), blank)


def inline_html(markdown: str) -> str:
    """Convert one paragraph of Markdown to HTML, without an enclosing `<p>`."""
    text = _html(markdown)
    is_one = text.startswith("<p>") and text.endswith("</p>") and text.count("<p>") == 1
    return text[3:-4] if is_one else text


def typst(markdown: str, blank: Callable[[int], str] = str) -> str:
    """Convert Markdown to Typst markup; `blank(number)` is the code of a gap. Raises: ValueError, like `html`."""
    return _filled(_typst(markdown), blank)


def _filled(text: str, blank: Callable[[int], str]) -> str:
    return _BLANK.sub(lambda found: blank(ord(found[0]) - _FIRST_BLANK + 1), text)


def _nodes(markdown: str) -> list[Node]:
    places = iter(range(_FIRST_BLANK, _FIRST_BLANK + 0x100))
    nodes = _MARKDOWN(_GAP.sub(lambda _: chr(next(places)), _BLANK.sub("", markdown)))
    assert isinstance(nodes, list)  # our renderer returns a list
    return nodes


@lru_cache(maxsize=2048)
def _html(markdown: str) -> str:
    return "".join(map(_html_of, _nodes(markdown))).strip()


@lru_cache(maxsize=2048)
def _typst(markdown: str) -> str:
    return "".join(map(_typst_of, _nodes(markdown))).strip()


_NOT_SHOWN = {"image": "an image", "thematic_break": "a rule"}
_HTML_TAGS = {
    "paragraph": "p",
    "emphasis": "em",
    "strong": "strong",
    "block_quote": "blockquote",
    "list_item": "li",
    "table": "table",
    "table_head": "thead",
    "table_body": "tbody",
    "table_row": "tr",
}


def _html_of(node: Node) -> str:
    kind, raw = node["type"], node.get("raw", "")
    inner = "".join(map(_html_of, node.get("children", ())))
    if kind in _HTML_TAGS:
        inner = f"<tr>{inner}</tr>" if kind == "table_head" else inner
        return f"<{_HTML_TAGS[kind]}>{inner}</{_HTML_TAGS[kind]}>"
    match kind:
        case "text" | "inline_html" | "block_html":  # banks contain no HTML, so `<b>` is text
            return escape(raw)
        case "softbreak" | "blank_line":
            return "\n"
        case "linebreak":
            return "<br>"
        case "block_text":
            return inner
        case "heading":
            return f"<p><strong>{inner}</strong></p>"  # real headings on the page are for questions
        case "codespan":
            return f"<code>{escape(raw)}</code>"
        case "block_code":
            return f"<pre><code>{escape(raw)}</code></pre>"
        case "inline_math" | "block_math":
            return mathml(raw.strip(), "block" if kind == "block_math" else "inline")
        case "list":
            tag = "ol" if node["attrs"].get("ordered") else "ul"
            return f"<{tag}>{inner}</{tag}>"
        case "table_cell":
            tag = "th" if node["attrs"].get("head") else "td"
            return f"<{tag}>{inner}</{tag}>"
        case "link":
            return f'<a href="{escape(node["attrs"]["url"])}">{inner}</a>'
    raise ValueError(_cannot_be_shown(kind))


def _typst_of(node: Node) -> str:
    kind, raw = node["type"], node.get("raw", "")
    inner = "".join(map(_typst_of, node.get("children", ())))
    match kind:
        case "text" | "inline_html" | "block_html":
            return escaped(raw)
        case "softbreak" | "blank_line":
            return "\n"
        case "linebreak":
            return " \\\n"
        case "paragraph" | "block_text":
            return f"{inner}\n\n"
        case "heading" | "strong":
            return f"#strong[{inner}]" + ("\n\n" if kind == "heading" else "")
        case "emphasis":
            return f"#emph[{inner}]"
        case "block_quote":
            return f"#quote(block: true)[{inner}]\n\n"
        case "codespan":
            # raw text would show a blank as a character, so split it there
            return "".join(part if _BLANK.fullmatch(part) else _raw(part) for part in _cut(raw))
        case "block_code":
            return f"{_raw(raw.rstrip(), block=True)}\n\n"
        case "inline_math" | "block_math":
            is_block = kind == "block_math"
            latex = quoted(_BLANK.sub("gap", raw.strip()))  # alternative text for screen readers
            said = f"alt: {latex}, block: {str(is_block).lower()}"
            return f"#math.equation({said}, ${typst_of(raw.strip())}$)" + ("\n\n" if is_block else "")
        case "list":
            items = ", ".join(f"[{''.join(map(_typst_of, item['children']))}]" for item in node["children"])
            return f"#{'enum' if node['attrs'].get('ordered') else 'list'}({items})\n\n"
        case "list_item" | "table_body" | "table_row":
            return inner
        case "table":
            return f"#table(columns: {len(node['children'][0]['children'])}, {inner})\n\n"
        case "table_head":
            return f"table.header({inner}), "
        case "table_cell":
            return f"[{inner}], "
        case "link":
            return inner
    raise ValueError(_cannot_be_shown(kind))


def _cut(raw: str) -> list[str]:
    return [part for part in re.split(f"({_BLANK.pattern})", raw) if part]


def _raw(code: str, block: bool = False) -> str:
    return f"#raw({quoted(code)}{', block: true' if block else ''})"


def _cannot_be_shown(kind: str) -> str:
    return f"a question's text cannot have {_NOT_SHOWN.get(kind, kind)}; for a picture give it a figure"
