"""Sizes, times and counts: constants, formatting as short text, and parsing of numbers that people type."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

KB, MB, GB, TB = 10**3, 10**6, 10**9, 10**12
KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40

US, MS = 1e-6, 1e-3
MINUTE, HOUR, DAY = 60, 3600, 86_400
YEAR = 365.25 * DAY

_DECIMAL = [(1, "B"), (KB, "kB"), (MB, "MB"), (GB, "GB"), (TB, "TB"), (10**15, "PB")]
_BINARY = [(1, "B"), (KIB, "KiB"), (MIB, "MiB"), (GIB, "GiB"), (TIB, "TiB"), (2**50, "PiB")]
_TIMES = [
    (1e-9, "ns"),
    (US, "µs"),
    (MS, "ms"),
    (1, "s"),
    (MINUTE, "min"),
    (HOUR, "h"),
    (DAY, "days"),
    (YEAR, "years"),
]
_SPACES = re.compile(r"[\N{NO-BREAK SPACE}\N{THIN SPACE}\N{NARROW NO-BREAK SPACE}]")
_GROUPS = re.compile(r"[+-]?[1-9]\d{0,2}([, ]\d{3})+(\.\d+)?")  # 1,024 or 1 024
_DATA_UNIT = re.compile(r"(?P<prefix>([kmgtpe]i?)?)(?P<letter>b)(?P<rate>(/s)?)", re.IGNORECASE)
_POWER_UNIT = re.compile(r"(?P<prefix>m)(?P<rest>wh?)", re.IGNORECASE)
_MOST_RANKS = 8  # named in a sentence
_COUNTS = [(1, ""), (10**3, "K"), (10**6, "M"), (10**9, "B"), (10**12, "T")]


def format_bytes(size_bytes: float, binary: bool = False) -> str:
    """Format a size such as `2.80 TB` (powers of 1000, as in data sheets) or, with `binary`, `4.00 MiB`."""
    if not math.isfinite(size_bytes):
        return f"{size_bytes:g} B"
    factor, unit = scale(size_bytes, _BINARY if binary else _DECIMAL)
    return f"{round(size_bytes)} B" if unit == "B" else f"{significant(size_bytes / factor)} {unit}"


def format_time_s(time_s: float) -> str:
    """Format a time in seconds, such as `12.5 ms` or `32.0 years`."""
    if time_s == 0 or not math.isfinite(time_s):
        return f"{time_s:g} s"
    factor, unit = scale(time_s, _TIMES)
    return f"{significant(time_s / factor)} {unit}"


def format_times_s(low_s: float, high_s: float) -> str:
    """Format a range of seconds in the unit of its lower end, such as `6.3 to 10.1 s`."""
    factor, unit = time_scale(low_s)
    return f"{significant(low_s / factor)} to {significant(high_s / factor)} {unit}"


def format_count(count: float) -> str:
    """Format a count of parameters or tokens, such as `175B`, or `3.15e23` if no letter is customary."""
    if abs(_rounded(count, 3)) >= 10**15:
        return f"{count:.2e}".replace("e+", "e")
    factor, letter = scale(count, _COUNTS)
    if factor == 1:
        return f"{count:g}"
    return significant(count / factor).removesuffix(".00").removesuffix(".0") + letter


def number_of(count: int, noun: str) -> str:
    """Format a count with its noun, such as `1 rank` or `4 ranks`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def scale(value: float, units: Sequence[tuple[float, str]]) -> tuple[float, str]:
    """Return the largest of ascending (factor, unit) pairs in which the value, rounded to 3 digits, is 1 or more."""
    fitting = [unit for unit in units if abs(_rounded(value / unit[0], 3)) >= 1]
    return fitting[-1] if fitting else units[0]


def time_scale(time_s: float) -> tuple[float, str]:
    """Return the (factor, unit) that suits a time."""
    return scale(time_s, _TIMES)


def byte_scale(size_bytes: float) -> tuple[float, str]:
    """Return the decimal (factor, unit) that suits a size."""
    return scale(size_bytes, _DECIMAL)


def significant(value: float, digits: int = 3) -> str:
    """Format a number with this many significant digits, never in scientific notation."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    rounded = _rounded(value, digits)
    return f"{rounded:,.{max(_decimals(rounded, digits), 0)}f}"


def format_as(name: str, value: float, decimal: bool = False) -> str:
    """Format a number in the unit at the end of its name: `64 kB` for `size_bytes`, `3.2 ms` for `time_s`.

    Known endings are `_bytes`, `_s`, `_flops`, `_bytes_per_s`, `_flops_per_s` and `_fraction`. Whole numbers of KiB,
    MiB and so on are shown as such, unless `decimal`.
    """
    if not math.isfinite(value):
        return f"{value:g}"
    if name.endswith("_per_s"):
        return f"{format_as(name.removesuffix('_per_s'), value, decimal)}/s"
    kind = name.rpartition("_")[2]
    if kind == "bytes":
        is_binary = not decimal and value >= KIB and value % scale(value, _BINARY)[0] == 0  # 64 KiB; but 11.7 GB
        return _brief(format_bytes(value, binary=is_binary))
    if kind == "s" and name != "s":
        return _brief(format_time_s(value))
    if kind == "flops":
        return f"{_brief(format_count(value))} flops"
    if kind == "fraction":
        return f"{_brief(significant(100 * value))}%"
    if isinstance(value, int) and abs(value) < 10**6:
        return f"{value:,}"
    if abs(value) >= 10**6:
        return _brief(format_count(value))
    return _brief(significant(value)) if abs(value) >= 1e-3 or value == 0 else f"{value:.3g}"


def parse_number(text: str, unit: str = "") -> float:
    """Parse a number that a person typed, with or without its unit.

    - `1,024` is a thousand and twenty-four, and `0,5` a half: a comma before exactly three digits separates thousands.
    - The unit's case is forgiven except where it changes the meaning: b is a bit and B a byte; mW is not MW.
    - `us` is µs, and a number without a unit may be followed by `%`.

    Raises:
        ValueError: it is not a finite number in this unit. The text completes a sentence that begins "... is".
    """
    typed = _SPACES.sub(" ", text).replace("\N{MINUS SIGN}", "-").strip()
    suffix = unit or "%"
    is_in_unit = _plain_unit(typed[-len(suffix) :]) == _plain_unit(suffix)
    digits = typed[: -len(suffix)].rstrip() if is_in_unit else typed
    if _GROUPS.fullmatch(digits):
        digits = re.sub("[, ]", "", digits)
    elif "." not in digits:
        digits = digits.replace(",", ".", 1)
    try:
        value = float(digits)
    except ValueError:
        value = math.nan
    if math.isfinite(value) and "_" not in digits:
        return value
    is_other_case = not is_in_unit and typed[-len(suffix) :].lower() == suffix.lower()
    reason = ": b is a bit, B a byte" if is_other_case and _DATA_UNIT.fullmatch(suffix) else ""
    raise ValueError(f"not a number{f' in {unit}' if unit else ''}{reason}")


def _plain_unit(unit: str) -> str:
    """Normalise a unit for comparison: ignore case, unless it distinguishes bits from bytes or milli from mega."""
    # few keyboards have either sign for micro
    unit = unit.replace("\N{MICRO SIGN}", "u").replace("\N{GREEK SMALL LETTER MU}", "u")
    if match := _DATA_UNIT.fullmatch(unit):
        return match["prefix"].lower() + match["letter"] + match["rate"].lower()
    if match := _POWER_UNIT.fullmatch(unit):
        return match["prefix"] + match["rest"].lower()
    return unit.lower()


def _brief(text: str) -> str:
    """Remove trailing zeros from the number in a text: `64.0 kB` becomes `64 kB`."""
    return re.sub(r"\.0+(?!\d)|(\.\d*[1-9])0+(?!\d)", r"\1", text)


def _rounded(value: float, digits: int) -> float:
    return round(value, _decimals(value, digits)) if value and math.isfinite(value) else value


def _decimals(value: float, digits: int) -> int:
    """Return the number of decimals for this many significant digits; negative for a large number."""
    return digits - 1 - math.floor(math.log10(abs(value)))


def format_ranks(ranks: Sequence[int], least_run: int = 3) -> str:
    """Format as 'no ranks', 'rank 1', 'ranks 0 to 7' or 'ranks 0, 2 to 4 and 8'; of many parts, name only the first.

    As many ranks in a row as `least_run` are one part.
    """
    if not ranks:
        return "no ranks"
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    parts = [part for run in runs for part in ([run] if len(run) >= least_run else [[rank] for rank in run])]
    names = [f"{part[0]} to {part[-1]}" if len(part) > 1 else str(part[0]) for part in parts]
    if len(parts) > _MOST_RANKS + 1:
        names[_MOST_RANKS:] = [f"{sum(map(len, parts[_MOST_RANKS:]))} others"]
    return f"ranks {', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else f"ranks {names[0]}"
