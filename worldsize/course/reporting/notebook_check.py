"""Whether each number in a report's text was computed in its notebook, or is cited.

An output is only a notebook's claim, and a printed literal looks like a computed number: this finds slips and
unsupported numbers, as an aid to somebody who reads the report. It runs nothing.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any

from worldsize.course.reporting.amounts import WrittenNumber, amounts, blanked

LEAST_COUNT = 3  # any sentence may have smaller whole numbers without a unit
_MOST_OUTPUT = 1_000_000  # characters of one output that are read
_LONGEST_TEXT = 20_000  # characters of a text cell
_RUBRIC = re.compile(r"^\*\*Rubric\*\*", re.MULTILINE)
_CODE = re.compile(r"^(```|~~~).*?^\1\s*$|`[^`\n]+`|<!--.*?-->", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(\s*https?://[^)\s]*\)|https?://[^\s)>\]]+")
_ID = re.compile(r"\b(?:doi:?\s*|arXiv:?\s*(?:id\s*)?)?(?:10\.\d{4,9}/\S+|\d{4}\.\d{4,5}(?:v\d+)?)\b", re.IGNORECASE)
_NAMED_ID = re.compile(r"\bdoi\b|\barxiv\b|10\.\d{4,9}/", re.IGNORECASE)
_REFERENCE = re.compile(r"\[\^?(\w{1,20})\](?!\()")
_DEFINITION = re.compile(r"^\s*(?:[-*]\s*)?\[\^?(\w{1,20})\]:?\s+\S", re.MULTILINE)
_LIST_NUMBER = re.compile(r"\s*(?:#+\s*\d{1,2}(?:\.\d{1,2})*[.)]?|\d{1,2}[.)])\s")  # at the start of a block
_FORMULA = re.compile(r"\$\$?[^$]+\$\$?")
_TAG = re.compile(r"<[^>]{0,2000}>")
_SENTENCE = re.compile(
    r"(?<=[.!?])(?<!\b[A-Z]\.)(?<!al\.)(?<!e\.g\.)(?<!i\.e\.)(?<!Fig\.)(?<!Tab\.)(?<!Sec\.)\s+(?=[A-Z*_\"(])"
)
_BLOCK = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*+]|\d+[.)]|\||#|\[\^?\w+\]:?)\s?)")
_ABOUT = re.compile(
    r"(?:\babout|\baround|\broughly|\bnearly|\balmost|\bsome|\bapproximately|\bca\.|[~≈])\s*$", re.IGNORECASE
)


@dataclass(frozen=True)
class Finding:
    """A number that was neither computed nor cited; `cell` counts all cells from 1. `nearest` was computed."""

    cell: int
    number: str
    sentence: str
    nearest: str = ""
    nearest_cell: int = 0

    def __str__(self) -> str:
        near = (
            f"nearest in an output: {self.nearest}, cell {self.nearest_cell}" if self.nearest else "no output is near"
        )
        where = f"cell {self.cell} from the top"
        return f"{where}: {self.number} is neither computed nor cited ({near})\n    {self.sentence}"


@dataclass(frozen=True)
class Checked:
    """The result of checking a report: how many numbers its text has, and which are unsupported."""

    num_numbers: int
    num_computed: int
    num_cited: int
    findings: Sequence[Finding]
    has_outputs: bool

    @property
    def is_clean(self) -> bool:
        """True if the notebook was run, and every number is computed or cited."""
        return self.has_outputs and not self.findings

    def __str__(self) -> str:
        if not self.has_outputs:
            return "No cell of this notebook has an output: run all cells, save it, and check again."
        total = f"{self.num_numbers} numbers: {self.num_computed} computed, {self.num_cited} cited, "
        return "\n".join([f"{total}{len(self.findings)} neither.", *map(str, self.findings)])


def read(path: Path) -> Mapping[str, Any]:
    """Read a notebook as data.

    Raises:
        ValueError: the file is missing or not JSON; the message names it and the reason.
    """
    try:
        notebook = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read as a notebook: {error}") from error
    if not isinstance(notebook, dict):
        raise ValueError(f"{path} is not a notebook: it holds no cells.")
    return notebook


def check(notebook: Mapping[str, Any]) -> Checked:
    """Look up every number of a notebook's text, as read by `json.load`, in its outputs and citations.

    Raises:
        ValueError: this is not a notebook, or a text cell of it is too long to be read.
    """
    cells = notebook.get("cells")
    if not isinstance(cells, list) or not all(isinstance(cell, Mapping) for cell in cells):
        raise ValueError("not a notebook: it has no list of cells")
    outputs = _Outputs(cells)
    texts = [(number, _source(cell)) for number, cell in enumerate(cells, 1) if cell.get("cell_type") == "markdown"]
    for number, text in texts:
        if len(text) > _LONGEST_TEXT:
            raise ValueError(
                f"cell {number} from the top has {len(text):,} characters of text: "
                f"split it into cells of at most {_LONGEST_TEXT:,}."
            )
    defined = {name for _, text in texts for name in _DEFINITION.findall(text)}
    num_all = num_computed = num_cited = 0
    findings = []
    for cell, sentence in ((cell, sentence) for cell, text in texts for sentence in _sentences(text)):
        is_cited = _is_cited(sentence, defined)
        for amount, is_rounded in _claims(sentence):
            num_all += 1
            if outputs.has(amount, is_rounded):
                num_computed += 1
            elif is_cited:
                num_cited += 1
            else:
                near, where = outputs.nearest(amount)
                findings.append(Finding(cell, amount.text, " ".join(sentence.split()), near, where))
    return Checked(num_all, num_computed, num_cited, findings, bool(outputs))


class _Outputs:
    """The numbers of all outputs, sorted by value, with their cells."""

    def __init__(self, cells: Sequence[Mapping[str, Any]]) -> None:
        found = [
            (amount, number)
            for number, cell in enumerate(cells, 1)
            if cell.get("cell_type") == "code"
            for text in _output_texts(cell)
            for amount in amounts(text)
        ]
        keyed = {
            (key, amount.text): (key, amount, cell) for amount, cell in found for key in (amount.bare, amount.value)
        }
        self._sorted = sorted(keyed.values(), key=lambda entry: entry[0])
        self._keys = [entry[0] for entry in self._sorted]

    def __bool__(self) -> bool:
        return bool(self._keys)

    def has(self, claim: WrittenNumber, is_rounded: bool) -> bool:
        """Whether an output has this number, to the digits that the claim shows."""
        return any(
            claim.is_from(amount, is_rounded)
            for at, half in ((claim.bare, claim.half), (claim.value, claim.half_value))
            for _, amount, _ in self._between(at, half, is_rounded)
        )

    def _between(self, at: float, half: float, is_rounded: bool) -> list[tuple[float, WrittenNumber, int]]:
        wide = max(half * 1.01, 0.5 * at if is_rounded else 0.0) + 1e-9 * at
        return self._sorted[bisect_left(self._keys, at - wide) : bisect_right(self._keys, at + wide)]

    def nearest(self, claim: WrittenNumber) -> tuple[str, int]:
        """Return the output's number with the nearest ratio to the claim, and its cell."""
        places = {bisect_left(self._keys, at) + by for at in (claim.bare, claim.value) for by in (-2, -1, 0, 1)}
        near = [self._sorted[index] for index in places if 0 <= index < len(self._sorted)]
        if not near:
            return "", 0
        _, amount, cell = min(near, key=lambda entry: claim.distance(entry[1]))
        return amount.text, cell


def _source(cell: Mapping[str, Any]) -> str:
    return _joined(cell.get("source", ""))


def _joined(text: Any) -> str:
    return "".join(map(str, text)) if isinstance(text, list) else str(text)


def _output_texts(cell: Mapping[str, Any]) -> Iterator[str]:
    """Yield the texts of a cell's outputs, without errors: streams, and tables in any form."""
    for output in cell.get("outputs") or ():
        if output.get("output_type") == "stream":
            yield _joined(output.get("text", ""))[:_MOST_OUTPUT]
        for kind, data in (output.get("data") or {}).items():
            if kind in ("text/plain", "text/markdown"):
                yield _joined(data)[:_MOST_OUTPUT]
            elif kind == "text/html":
                yield unescape(_TAG.sub(" ", _joined(data)[:_MOST_OUTPUT]))


def _sentences(text: str) -> Iterator[str]:
    """Yield the sentences, table rows, list items and footnotes of a cell, without code or rubrics."""
    text = _CODE.sub(" ", _RUBRIC.split(text)[0])
    for block in _BLOCK.split(text):
        block = _LIST_NUMBER.sub(" ", block, count=1) if _LIST_NUMBER.match(block) else block
        if block.lstrip().startswith("|") or _DEFINITION.match(block):
            yield block
        else:
            yield from _SENTENCE.split(block)


def _is_cited(sentence: str, defined: set[str]) -> bool:
    """Whether a sentence has a link, a DOI, an arXiv ID, or a reference that the notebook defines."""
    if _LINK.search(sentence) or _NAMED_ID.search(sentence):
        return True
    return any(name in defined for name in _REFERENCE.findall(sentence))


def _claims(sentence: str) -> Iterator[tuple[WrittenNumber, bool]]:
    """Yield the numbers of a sentence that need support, and whether it calls them "about"."""
    text = sentence
    for harmless in (_LINK, _ID, _REFERENCE):
        text = harmless.sub(lambda match: " " * len(match[0]), text)
    text = _FORMULA.sub(_large_only, text)
    text = blanked(text.replace("**", "").replace("\\%", "%").replace("\\$", " "))
    for amount in amounts(text):
        if amount.is_count and amount.bare < LEAST_COUNT:
            continue
        yield amount, bool(_ABOUT.search(text[max(0, amount.start - 20) : amount.start]))


def _large_only(match: re.Match[str]) -> str:
    """Remove small whole numbers, such as factors and exponents, from a formula."""
    text = re.sub(r"\\[a-zA-Z]+|[{}$^_\\]", " ", match[0].replace("\\%", "%"))
    return re.sub(r"(?<![\d.,])\d{1,2}(?![\d.,]|\s*%)", " ", text)
