"""Numbers in prose and in outputs: their values, how exactly they are written, and which are only names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_PREFIXES = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_SMALL = {"m": 1e-3, "u": 1e-6, "µ": 1e-6, "μ": 1e-6, "n": 1e-9, "": 1.0}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
_LARGE = {"": 1.0} | _PREFIXES
_WORDS = {"thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12, "quadrillion": 1e15}
_TIMES = {"min": 60.0, "minute": 60.0, "h": 3600.0, "hour": 3600.0, "day": 86400.0, "week": 604800.0}
# a written unit -> what it measures, and its size in the base unit
UNITS: dict[str, tuple[str, float]] = {
    "%": ("part", 0.01),
    "percent": ("part", 0.01),
    "per cent": ("part", 0.01),
    **{word: ("", size) for word, size in _WORDS.items()},
    **{prefix: ("", size) for prefix, size in _PREFIXES.items()},
    **{f"{prefix}s": ("time", size) for prefix, size in _SMALL.items()},
    **{f"{word}{end}": ("time", size) for word, size in _TIMES.items() for end in ("", "s")},
    "second": ("time", 1.0),
    "seconds": ("time", 1.0),
    "milliseconds": ("time", 1e-3),
    "microseconds": ("time", 1e-6),
    **{f"{prefix}B": ("bytes", size) for prefix, size in (_LARGE | _BINARY).items() if prefix},
    **{f"{prefix}B/s": ("bytes/s", size) for prefix, size in (_LARGE | _BINARY).items()},
    **{f"{prefix}b/s": ("bits/s", size) for prefix, size in _LARGE.items()},
    **{f"{prefix}bit/s": ("bits/s", size) for prefix, size in _LARGE.items()},
    **{f"{prefix}{name}": ("flops/s", size) for prefix, size in _LARGE.items() for name in ("FLOP/s", "FLOPS")},
    **{f"{prefix}FLOP": ("flops", size) for prefix, size in _LARGE.items()},
    **{f"{prefix}FLOPs": ("flops", size) for prefix, size in _LARGE.items()},
    **{f"{prefix}W": ("power", size) for prefix, size in _LARGE.items()},
    **{f"{prefix}Wh": ("energy", size) for prefix, size in _LARGE.items()},
}
_UNIT = "|".join(re.escape(unit) for unit in sorted(UNITS, key=len, reverse=True))
_AMOUNT = re.compile(
    r"(?P<digits>\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d{1,3}(?:[\u2009\u202f ]\d{3})+(?!\d|[.,]\d)|\d+(?:\.\d+)?|\.\d+)"
    r"(?:[eE](?P<power>[+-]?\d+)|\s?[·×x]\s?10\^?\{?(?P<ten>[-−]?\d+)\}?)?"
    rf"(?:[ \u00a0\u2009\u202f-]?(?P<unit>{_UNIT})(?![\w/]))?"
)


@dataclass(frozen=True)
class WrittenNumber:
    """A number as it is written: `bare` without its unit, `value` with it, both within `half` and `half_value`."""

    text: str
    start: int
    bare: float
    half: float
    value: float
    half_value: float
    measure: str

    @property
    def is_count(self) -> bool:
        """True for a whole number without a unit."""
        return self.text.isdigit()

    def is_from(self, other: WrittenNumber, is_rounded: bool = False) -> bool:
        """True if this may be the other number, rounded to the digits shown here.

        `is_rounded`: the sentence says "about", so zeros at the end are not significant.
        """
        if self.measure and other.measure and self.measure != other.measure:
            return False
        half, half_value = self.half, self.half_value
        digits = re.sub(r"\D", "", self.text)
        if is_rounded and self.half == 0.5 and digits.endswith("0"):
            wider = 10 ** (len(digits) - len(digits.rstrip("0")))
            half, half_value = half * wider, half_value * wider
        pairs = [(self.value, half_value, other.value, other.half_value)]
        if not (self.measure and other.measure):  # a bare output does not name its unit
            pairs += [(self.bare, half, other.bare, other.half), (self.bare, half, other.value, other.half_value)]
            pairs += [(self.value, half_value, other.bare, other.half)]
        return any(
            abs(mine - theirs) <= 1e-9 * abs(mine)
            or (abs(mine - theirs) <= within * (1 + 1e-9) and theirs_within <= within * 1.001)
            for mine, within, theirs, theirs_within in pairs
        )

    def distance(self, other: WrittenNumber) -> float:
        """Return how far apart two numbers are, relative to the larger, with or without units, whichever is nearer."""
        readings = [(self.bare, other.bare), (self.value, other.value)]
        return min(abs(a - b) / max(abs(a), abs(b), 1e-300) for a, b in readings)


def amounts(text: str) -> Iterator[WrittenNumber]:
    """Yield every number of a text, in order."""
    for match in _AMOUNT.finditer(text):
        digits = re.sub(r"[,\s\u2009\u202f]", "", match["digits"])
        power = 10.0 ** int((match["power"] or match["ten"] or "0").replace("−", "-"))
        bare, half = float(digits) * power, 0.5 * 10.0 ** -len(digits.partition(".")[2]) * power
        measure, size = UNITS.get(match["unit"] or "", ("", 1.0))
        yield WrittenNumber(match[0].strip(), match.start(), bare, half, bare * size, half * size, measure)


_MODELS = (
    "Llama|LLaMA|GPT|GPT-NeoX|BLOOM|PaLM|OPT|Megatron|Megatron-LM|MT-NLG|Turing-NLG|Mixtral|Mistral|Qwen|DeepSeek|"
    "Chinchilla|Gopher|Falcon|MPT|T5|BERT|Gemini|Gemma|Grok|Claude|Phi|OLMo|Nemotron|ZeRO|CUDA|PyTorch|torch|NCCL|PCIe|"
    "NVLink|Gen|SC|HBM|V"
)
_PLACES = (
    "sections?|sec\\.|tables?|tab\\.|figures?|fig\\.|equations?|eq\\.|chapters?|appendix|weeks?|labs?|projects?|"
    "lines?|pages?|version|part|algorithm|no\\.|volume|vol\\.|cells?|questions?"
)
_NAMES = re.compile(
    # glued to letters: A100, bf16, 1F1B, tp4; behind a hyphen: GPT-3, ZeRO-3, GPT-530B
    r"(?<![\w.])[A-Za-z_][\w]*(?:-[A-Za-z]+){0,4}-?\d[\w.-]*\w(?:\s\d+(?:\.\d+)?[BMT]\b)*|(?<![\w.])[A-Za-z_]\w*-?\d(?![\w.]*\d)(?:\s\d+(?:\.\d+)?[BMT]\b)*"
    r"|(?<![\w.,])\d+[A-Z]\d+[A-Z]\b"
    r"|\b(?:dp|tp|pp|cp|ep)[ =]\d+\b"
    rf"|\b(?:{_MODELS})[ -]\d[\w.]*(?:\s\d+(?:\.\d+)?[BMT]\b)*"
    rf"|\b(?i:{_PLACES})\s?\d[\d.]*(?:(?:,\s?|\s?(?:and|to|or|–|-)\s?)\d[\d.]*)*"
    r"|\b\d+(?:\.\d+)?[BMT](?=[ -]model)"
)
_MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October"]
_MONTHS += ["November", "December"]
_BEFORE_A_YEAR = "|".join(
    rf"(?<=\b{word} )"
    for word in [
        "in",
        "In",
        "since",
        "Since",
        "from",
        "until",
        "by",
        "of",
        "early",
        "late",
        "between",
        "Between",
        *_MONTHS,
    ]
)
_BEFORE_A_YEAR += r"|(?<=\b(?:19|20)\d\d and )|(?<=\b(?:19|20)\d\d to )"
_YEARS = re.compile(
    rf"(?:{_BEFORE_A_YEAR}|(?<=\()|(?<=, )|(?<=al\. )|(?<=[A-Z][a-z][a-z] ))(?:19[89]\d|20[0-3]\d)(?![\w%]|[.,]\d"
    r"|\s(?:GPU|step|token|node|sequence|sample|s\b|ms\b|GB|TB|layer|rank|hour|day))"
)
_DATES = re.compile(
    r"\b(?:19|20)\d\d-\d\d-\d\d\b|\b\d{1,2}(?=\s(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*)"
)
_ORDINALS = re.compile(r"\b\d+(?:st|nd|rd|th)\b")


def blanked(text: str) -> str:
    """Replace names, references into documents, years, dates and ordinals by spaces."""
    for harmless in (_DATES, _NAMES, _YEARS, _ORDINALS):
        text = harmless.sub(lambda match: " " * len(match[0]), text)
    return text
