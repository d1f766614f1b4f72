"""How far programs on paper are from published training steps and peaks of memory; every row is printed."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

import published_memory
import published_ranges
import published_steps
from figures import Figure


def predicting(scale: float) -> Iterator[Figure]:
    """The errors of steps by source, nothing fitted, and of memory; H100's sources apart."""
    found = published_steps.steps(None if scale else 1)
    by_source = published_steps.errors(found)
    print(published_steps.report(found, by_source))
    print(published_ranges.report(published_ranges.read()))
    others = [one for one in by_source if not one.source.endswith("H100")]
    how = f"median of {len(others)} sources' medians, {sum(one.num_rows for one in others)} rows"
    error = statistics.median(one.median for one in others)
    yield Figure("published steps on paper", 100 * error, "% off", "at most 12", error <= 0.12, how)
    error = statistics.median(one.corrected for one in others)
    yield Figure("and with one factor of the other sources", 100 * error, "% off", "", None, how)
    if anchored := [one.anchored for one in others if one.anchored is not None]:
        error = statistics.median(anchored)
        how = f"median of {len(anchored)} sources' medians"
        yield Figure("and with a source's first row as anchor", 100 * error, "% off", "at most 8", error <= 0.08, how)
    error = statistics.median(one.constant for one in others)
    yield Figure("one HFU of the other sources instead", 100 * error, "% off", "", None, "the null")
    for one in by_source:
        if one.source.endswith("H100"):
            yield Figure(one.source, 100 * one.median, "% off", "", None, f"{one.num_rows} rows")
    peaks = list(published_memory.compared(is_smallest=not scale))
    print(published_memory.report(peaks))
    errors = [abs(one.error_fraction) for one in peaks]
    how = f"median of {len(peaks)} peaks; {100 * max(errors):.0f}% at worst"
    error = statistics.median(errors)
    yield Figure("published peaks of memory on paper", 100 * error, "% off", "at most 10", error <= 0.1, how)
    now = {step.name: step.paper_s for step in found} | {peak.name: peak.paper_bytes for peak in peaks}
    kept = {row.id: row.on_paper for row in published_ranges.read() if row.figure != "bound"}
    num_changed = sum(abs(value / kept[name] - 1) > 1e-5 for name, value in now.items())
    how = f"of {len(now)}, from those that the shipped ranges were made of"
    yield Figure("figures on paper that have changed", num_changed, "", "0", not num_changed, how)
