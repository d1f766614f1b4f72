"""The figures of a design as tables and pictures, for a terminal, a notebook or an HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from worldsize import draw
from worldsize.capstone import bill, saves
from worldsize.capstone.design import Design, changed
from worldsize.capstone.figures import CALLED, Figures, run
from worldsize.capstone.impossible import over_budget
from worldsize.capstone.sensitivity import Gain, gains
from worldsize.draw import Picture, Table
from worldsize.draw.page import page
from worldsize.outages import Policy
from worldsize.planning import bounds, memory_estimate
from worldsize.planning.search import Cost
from worldsize.published import BOUND, find_range, nearest_range
from worldsize.units import DAY, format_bytes, format_count, format_time_s, significant

_OFTEN = (1 / 4, 1 / 2, 1, 2, 4, 8)  # time between checkpoints, relative to the design's own
_LEAST_SHARE = 0.0005  # of the time: smaller shares are not shown


@dataclass(frozen=True)
class DesignReport:
    """A design's figures and what they follow from; it prints as tables, and notebooks add pictures."""

    figures: Figures
    gains: Sequence[Gain]
    saves: Picture

    @classmethod
    def of(cls, design: Design, cost: Cost, policy: Policy | None = None) -> DesignReport:
        """Run a design, and compute everything that the report shows.

        Raises:
            ValueError: a cost is not a number, or a policy cannot be followed.
        """
        figures = run(design, cost, policy)
        return cls(figures, gains(figures, cost, policy), saves_picture(figures, cost, policy))

    @property
    def tables(self) -> list[Table]:
        published = [published_table(self.figures)] if self.figures.design.published else []
        return [summary(self.figures), *published, time_table(self.figures), gain_table(self.gains)]

    @property
    def pictures(self) -> list[Picture]:
        return [time_picture(self.figures), self.saves, gains_picture(self.figures, self.gains)]

    def page(self) -> str:
        """An HTML page that loads nothing."""
        return page(self.figures.design.name, self._html())

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.tables))

    __repr__ = __str__

    def _html(self) -> str:
        return "\n".join(part._repr_mimebundle_()["text/html"] for part in (*self.tables, *self.pictures))

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": self._html(), "text/plain": str(self)}


def verdict(design: Design, problems: Sequence[str]) -> str:
    """Say that a design adds up, or list what does not."""
    if not problems:
        return f"{design.name}: it adds up."
    num = "one thing does" if len(problems) == 1 else f"{len(problems)} things do"
    return "\n".join([f"{design.name}: {num} not add up.", *(f"- {problem}" for problem in problems)])


def summary(of: Figures) -> Table:
    """Make a table of what a design achieves and costs."""
    design = of.design
    has_s, gpu_bytes = saves.mean_s_to_failure(design), design.cluster.gpu.memory_bytes
    pays = "owned" if design.budget.pays == "own" else "rented"
    rows = {
        "GPUs": f"{design.cluster.world_size:,} {design.cluster.gpu.name}, {design.nodes.num_spares} nodes in spare",
        "model": f"{format_count(design.shape.num_parameters)} parameters",
        "plan": str(design.layout),
        "memory": f"{format_bytes(of.held_bytes)} of {format_bytes(gpu_bytes)}",
        "step": f"{format_time_s(of.step_s)}, {format_count(design.layout.num_tokens)} tokens",
        "throughput": f"{format_count(of.tokens_per_s)} tokens/s",
        "MFU": f"{of.mfu_fraction:.1%}",
        "a failure": f"every {format_time_s(has_s)}, in the mean",
        "a save": f"{format_time_s(saves.stall_s(design))} of standing still, whole after "
        f"{format_time_s(saves.write_s(design))}",
        "goodput": f"{of.goodput_fraction:.1%}",
        "days": f"{of.days:.1f} for {format_count(design.data.num_tokens)} tokens, {of.training_days:.1f} of them "
        "if nothing failed",
        "power": f"{of.power_w / 1e6:.2f} MW at most",
        "energy": f"{of.energy_kwh / 1e6:,.1f} GWh",
        "cost": f"{_millions(of.usd)} million dollars, {pays}: {_parts(of)}",
        **_at_published_steps(of),
    }
    margin = memory_estimate.margin(of.held_bytes, gpu_bytes)
    step = f"The step {bounds.describe_step(of.step_s, design.layout, design.software.precision)}"
    notes = [of.bottleneck, step, *([f"The plan {margin}."] if margin else [])]
    note = "\n".join([*notes, *over_budget(design, of.days)])
    return draw.table([{design.name: name, " ": text} for name, text in rows.items()], note=note)


def time_table(of: Figures) -> Table:
    """Make a table of where the time goes."""
    rows = [
        {"what": CALLED.get(name, name), "of_all_time_fraction": share, "days": round(share * of.days, 1)}
        for name, share in of.shares.items()
        if share >= _LEAST_SHARE
    ]
    return draw.table(rows, "Where the time goes")


def gain_table(gains: Sequence[Gain]) -> Table:
    """Make a table of what more of each resource would buy."""
    rows = [
        {
            "more of": gain.resource,
            "how much": gain.unit,
            "days saved": f"{gain.saved_days:.2f}",
            "thousand dollars saved": f"{gain.saved_usd / 1e3:,.0f}",
        }
        for gain in gains
    ]
    return draw.table(rows, "What one more unit of each resource buys", "The price of faster parts is not in it.")


def published_table(of: Figures) -> Table:
    """Make a table of a system's published figures next to the ones computed here.

    Raises:
        ValueError: the design has no published figures.
    """
    known, design = of.design.published, of.design
    if known is None:
        raise ValueError(f"{design.name} has no [published] figures to compare with")
    at_their_step = of.mfu_fraction * of.step_s / known.step_s
    their_days = design.num_steps * known.step_s / DAY
    compared = [
        ("step, s", known.step_s, of.step_s),
        ("MFU, %, counted alike", 100 * at_their_step, 100 * of.mfu_fraction),
        ("days of training, at the step", their_days, of.training_days),
        ("days of training, as published", known.training_days, of.training_days),
        ("days in all, as published", known.calendar_days, of.days),
    ]
    rows = [
        {
            design.name: name,
            "published": significant(theirs),
            "here": significant(ours),
            "error": f"{ours / theirs - 1:+.1%}",
        }
        for name, theirs, ours in compared
        if theirs is not None
    ]
    return draw.table(rows, note=known.source)


def time_picture(of: Figures) -> Picture:
    """Draw where the time goes, as bars."""
    shown = {CALLED.get(name, name): share for name, share in of.shares.items() if share >= _LEAST_SHARE}
    return draw.shares(shown, f"Where the time of {of.design.name} goes")


def saves_picture(of: Figures, cost: Cost, policy: Policy | None = None) -> Picture:
    """Draw total days against the time between checkpoints, with the design's failures."""
    own_s = of.design.checkpoint.every_s
    days = [run(changed(of.design, checkpoint__every_s=own_s * often), cost).days for often in _OFTEN]
    series = {"with its failures": days}
    if policy is not None:
        series["your policy"] = [of.days] * len(days)
    minutes = [own_s * often / 60 for often in _OFTEN]
    return draw.curves(series, "days in all", "minutes of training between saves", "How often to save", x=minutes)


def gains_picture(of: Figures, gains: Sequence[Gain]) -> Picture:
    """Draw days against dollars: the design, and the design with more of each resource."""
    more = {
        gain.resource: (of.days - gain.saved_days, (of.usd - gain.saved_usd) / 1e6)
        for gain in gains
        if abs(gain.saved_days) >= _LEAST_SHARE * of.days
    }
    points = {"as designed": {of.design.name: (of.days, of.usd / 1e6)}}
    if more:
        points["with more of"] = more
    return draw.scatter(points, x_label="days", y_label="million dollars", title="What more of each resource buys")


def _at_published_steps(of: Figures) -> dict[str, str]:
    """What the run takes and costs if its step is as far above the least as published steps were."""
    layout = of.design.layout
    known = find_range(BOUND, layout.family, layout.cluster.gpu.architecture, layout.cluster.world_size)
    name = "at published steps" if known else "at the nearest published steps"
    known = known or nearest_range(BOUND, layout.family, layout.cluster.world_size)
    least_s = bounds.least(layout, of.design.software.precision).seconds
    low, high = (replace(of, step_s=step_s) for step_s in known.around(least_s))
    dollars = f"{_millions(low.usd)} to {_millions(high.usd)} million dollars"
    mfu = f"MFU {high.mfu_fraction:.0%} to {low.mfu_fraction:.0%}"
    return {name: f"{low.days:.1f} to {high.days:.1f} days, {dollars}, {mfu}"}


def _millions(usd: float) -> str:
    return significant(usd / 1e6) if usd < 1e8 else f"{usd / 1e6:,.1f}"


def _parts(of: Figures) -> str:
    parts = bill.usd(of.design, of.days).items()
    return ", ".join(f"{name} {_millions(usd)}" for name, usd in parts)
