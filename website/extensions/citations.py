"""Links from a lesson's citations to what they cite: papers of the reading list, and issues of public repositories."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

_AUTHOR = re.compile(r"^\| [\d, ]+ \| (?P<initials>(?:[A-Z]\. )+)(?P<name>[\w-]+)(?P<row>.*)$", re.M)
_ARXIV = re.compile(r"\((?P<url>https://arxiv\.org/abs/(?P<year>\d\d)[^)]+)\)")
_KNOWN_AS = {"Llama Team": "Grattafiori"}
_PAPER = re.compile(
    r"(?<!, )(?P<author>Llama Team|[A-Z][\w-]+)(?: et al\.,?| and [A-Z][\w-]+)? \(?(?P<year>(?:19|20)\d\d)\b"
)
_ISSUE = re.compile(r"(?P<owner>pytorch)(?:/(?P<name>[\w.-]+))? (?:issue|pull request) #?(?P<number>\d+)")
_YEARS = 1  # between an arXiv number and the publication that a lesson cites
Papers = dict[str, list[tuple[int, str]]]  # first author -> year and address of each paper


def setup(app: Sphinx) -> dict[str, Any]:
    """Link the citations of every lesson."""
    app.connect("builder-inited", _read)
    app.connect("doctree-resolved", _link)
    return {"parallel_read_safe": True}


def papers(reading_list: str) -> Papers:
    """The papers of the reading list that are on arXiv, by their first authors' names, unless two authors share one."""
    initials, found = defaultdict(set), defaultdict(list)
    for author in _AUTHOR.finditer(reading_list):
        initials[author["name"]].add(author["initials"])
        found[author["name"]] += [(2000 + int(one["year"]), one["url"]) for one in _ARXIV.finditer(author["row"])]
    return {name: of for name, of in found.items() if of and len(initials[name]) == 1}


def links(text: str, of: Papers) -> list[tuple[int, int, str]]:
    """Where a text cites what has an address: start, end and address of each; none where two papers fit."""
    found = []
    for match in _PAPER.finditer(text):
        author = _KNOWN_AS.get(match["author"], match["author"])
        fitting = [url for year, url in of.get(author, ()) if abs(year - int(match["year"])) <= _YEARS]
        if len(fitting) == 1:
            found.append((*match.span(), fitting[0]))
    for match in _ISSUE.finditer(text):
        repository = f"{match['owner']}/{match['name'] or match['owner']}"
        found.append((*match.span(), f"https://github.com/{repository}/issues/{match['number']}"))
    return sorted(found)


def _read(app: Sphinx) -> None:
    app.env.papers = papers(Path(app.srcdir, "docs/reading.md").read_text(encoding="utf-8"))  # type: ignore[attr-defined]


def _link(app: Sphinx, page: nodes.document, name: str) -> None:
    if not name.startswith("weeks/"):
        return
    for node in [*page.findall(nodes.Text)]:
        if any(
            isinstance(node.parent, kind) for kind in (nodes.reference, nodes.literal, nodes.literal_block, nodes.raw)
        ):
            continue
        text, parts, at = node.astext(), [], 0
        for start, end, url in links(text, app.env.papers):  # type: ignore[attr-defined]
            parts += [nodes.Text(text[at:start]), nodes.reference("", text[start:end], refuri=url, internal=False)]
            at = end
        if parts:
            node.parent.replace(node, [*parts, nodes.Text(text[at:])])
