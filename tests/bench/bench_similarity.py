"""How many copies `autograder similar` finds among generated independent answers, and how many of those it suspects."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from figures import Figure, scaled
from planted_copies import copied, independent, pool
from repository import ROOT

from autograder.course import open_course
from autograder.similarity.pairs import LINE, ComparedWork, compare
from autograder.similarity.works import given

CHOSEN_BY = ("lab01", "lab03", "lab05", "lab02", "lab07", "lab09")  # the line was chosen by these, all of them
# by none of these; that parts are cut where a definition ends was found by labs 6 and 8
OTHERS = ("lab04", "lab06", "lab08", "lab10", "lab11", "lab12", "lab13b")
NUM_INDEPENDENT, NUM_COPIES = 180, 20


def similarity(scale: float) -> Iterator[Figure]:
    """Copies found and honest pairs above the line, in a class of 200 for each lab."""
    yield from _of(CHOSEN_BY[: scaled(len(CHOSEN_BY), scale)], "labs that the line was chosen by", scale)
    yield from _of(OTHERS[: scaled(len(OTHERS), scale)], "other labs", scale)


def _of(labs: Sequence[str], which: str, scale: float) -> Iterator[Figure]:
    num_independent, num_copies = scaled(NUM_INDEPENDENT, scale, least=8), scaled(NUM_COPIES, scale, least=2)
    planted: list[float] = []
    others: list[float] = []
    num_small = num_works = 0
    for lab in labs:
        found = planted_and_others(lab, given(open_course(ROOT), lab).sources, num_independent, num_copies)
        margin = f"copies {min(found.planted):.2f} and more, other pairs {max(found.others, default=0):.2f} and less"
        print(lab, margin, f"{found.num_small} too small", file=sys.stderr)
        planted, others = planted + found.planted, others + found.others
        num_small, num_works = num_small + found.num_small, num_works + num_independent
    share = sum(value >= LINE for value in planted) / len(planted)
    how = f"{len(planted)} copies, renamed, reordered and typed anew, among {num_independent} works of each lab"
    yield Figure(f"copies found, {which}", 100 * share, "%", "at least 95", share >= 0.95, how)
    num_wrong = sum(value >= LINE for value in others)
    how = f"of {len(others)} pairs of generated independent works, line {LINE}"
    yield Figure(f"honest pairs above the line, {which}", float(num_wrong), "pairs", "0", num_wrong == 0, how)
    how = f"of {num_works}: nearly all of it is the solution's; none of these was copied"
    yield Figure(f"works with too little of their own, {which}", float(num_small), "", "", None, how)


@dataclass(frozen=True)
class Planted:
    """The similarity of each copy with its original, and those of all other pairs that share anything."""

    planted: list[float]
    others: list[float]
    num_small: int


def planted_and_others(lab: str, sources: Sequence[str], num_independent: int, num_copies: int) -> Planted:
    """What comparing a class with copies in it gives; copied is only what can be compared."""
    answers = pool(ROOT / "solutions" / lab)
    works = [ComparedWork(f"honest{n:03}", independent(answers, n)) for n in range(num_independent)]
    too_small = set(compare(works, sources).too_small)
    originals = random.Random(0).sample([one for one in works if one.name not in too_small], num_copies)
    copies = [ComparedWork(f"copy of {one.name}", copied(one.parts, n)) for n, one in enumerate(originals)]
    found = dict(compare([*works, *copies], sources).similarities)
    planted = [found.pop((one.name, f"copy of {one.name}"), 0.0) for one in originals]
    return Planted(planted, [*found.values()], len(too_small))
