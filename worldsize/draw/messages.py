"""Who sends what to whom: the steps of a run side by side, or animated if a page may run scripts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from worldsize import units
from worldsize.draw._message_panels import WIDTH, StepPanels
from worldsize.draw._message_player import animated
from worldsize.draw._message_steps import Round, rounds
from worldsize.draw.picture import Picture
from worldsize.timeline import Timeline

_MOST_LISTED = 3  # steps, or series of equal steps


class Messages(Picture):
    """A still picture of a run's messages, which becomes an animation on a page that may run scripts."""

    def __init__(self, ranks: Sequence[int], steps: Sequence[Round], total: int, title: str, alt: str) -> None:
        panels = StepPanels(ranks, steps)
        super().__init__(WIDTH, panels.height, alt, layout=None)
        more = f": the first {len(panels.steps)} of {total} steps" if len(panels.steps) < total else ""
        panels.draw(self.add_axes((0, 0, 1, 1)), (title or "Messages") + more)
        self._of = ranks, steps, total, title

    def _html(self, encoded: str) -> str:
        return animated(super()._html(encoded), *self._of)


def messages(run: Timeline, title: str = "", num_steps: int = 64) -> Messages:
    """Draw who sends what to whom in each step of a run: ranks on a circle, one arrow per message.

    In a notebook and in its HTML it is an animation with play, pause, single steps and a slider, which needs no kernel
    and loads nothing; elsewhere, the first steps side by side. `rounds` describes how messages are grouped into steps.
    A collective whose messages are not recorded is a spoke from each of its ranks. At most `num_steps` steps are shown.

    Raises:
        ValueError: the run has no communication with known peers.
    """
    steps = rounds(run.events)
    if not steps:
        raise ValueError(
            "The run has no messages to draw: let its ranks send and receive, or call collectives, in `ws.run(...)`."
        )
    ranks = sorted(
        {rank for step in steps for transfer in step.transfers for rank in transfer.ranks}
        | {e.rank for e in run.events}
    )
    return Messages(ranks, steps[:num_steps], len(steps), title, _alt(ranks, steps, title))


def _alt(ranks: Sequence[int], steps: Sequence[Round], title: str) -> str:
    every = [transfer for step in steps for transfer in step.transfers]
    size = units.format_bytes(sum(transfer.size_bytes for transfer in every if transfer.is_message))
    num_messages = sum(transfer.is_message for transfer in every)
    counts = [f"{units.number_of(num_messages, 'message')}, {size} in all"] if num_messages else []
    counts += [units.number_of(len(every) - num_messages, "collective")] if len(every) > num_messages else []
    about = f"Messages ({title})" if title else "Messages"
    among, in_steps = units.number_of(len(ranks), "rank"), units.number_of(len(steps), "step")
    return f"{about} among {among} in {in_steps}: {' and '.join(counts)}. {_describe_first(steps)}"


def _describe_first(steps: Sequence[Round]) -> str:
    """Describe the first steps, equal ones in one sentence."""
    sentences, number = [], 1
    for text, same in groupby(step.describe() for step in steps):
        until = number + len(list(same)) - 1
        sentences.append(f"{f'Step {number}' if until == number else f'Steps {number} to {until}'}: {text}.")
        number = until + 1
    return " ".join(sentences[:_MOST_LISTED])
