"""What rules ask of the notes of all ranks: the same moment on every rank, and which tensors are meant to be equal."""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from worldsize.audit import sketches
from worldsize.audit.notes import Note, RankNotes
from worldsize.audit.sketches import Sketch
from worldsize.source import Line

ROUNDING = 1e-5  # relative difference of weights that reductions in a different order explain
UNREDUCED = 1e-3  # relative difference of gradients that they do not explain
OfRanks = Mapping[int, Sketch]  # rank -> sketch
Moment = Mapping[int, tuple[int, Mapping[str, Sketch]]]  # rank -> step, name -> sketch


class Evidence:
    """The notes of all ranks, read by moments."""

    def __init__(self, ranks: Sequence[RankNotes]) -> None:
        self.ranks = ranks
        self.world_size = max([note["world_size"] for one in ranks for note in one.of("started")], default=len(ranks))

    def all(self, kind: str) -> Iterator[Note]:
        """The notes of one kind, of one rank after the other."""
        for one in self.ranks:
            yield from one.of(kind)

    def first(self, kind: str) -> Note | None:
        """The earliest note of one kind: of the earliest step, of the lowest rank."""
        return min(self.all(kind), key=lambda note: (note.step, note.rank), default=None)

    def together(self, kind: str) -> list[dict[int, Note]]:
        """For each number n, the n-th note of one kind of every rank that has so many."""
        lists = {one.rank: one.of(kind) for one in self.ranks}
        most = max(map(len, lists.values()), default=0)
        return [{rank: notes[n] for rank, notes in lists.items() if n < len(notes)} for n in range(most)]

    @functools.cached_property
    def steps(self) -> list[dict[int, Note]]:
        """For each optimizer and each of its steps, the notes made before it on all ranks that took it."""
        moments: defaultdict[tuple[int, int], dict[int, Note]] = defaultdict(dict)
        for note in self.all("before step"):
            moments[note["count"], note["optimizer"]][note.rank] = note
        return [moments[key] for key in sorted(moments)]

    @functools.cached_property
    def local(self) -> dict[tuple[int, int], dict[str, Sketch]]:
        """The gradients that the last backward pass before a step left, by rank and step.

        Of those that are reduced inside the backward pass: as they were before it.
        """
        last: dict[tuple[int, int], dict[str, Sketch]] = {}
        for note in self.all("gradients after backward"):
            last[note.rank, note.step] = dict(note["of"])
        for note in self.all("gradients before hook"):
            last.setdefault((note.rank, note.step), {}).update(note["of"])
        return last

    def written(self, role: str, step: int) -> Line | None:
        """The line that has written into gradients, weights or buffers in a step: one of some ranks only, or the last.

        Those of the backward pass and of the optimizer are not among them.
        """
        notes = [note for note in self.all("written") if note["role"] == role and note.step == step]
        lines = {note.line: {n.rank for n in notes if n.line == note.line} for note in notes}
        return min(reversed(lines), key=lambda line: len(lines[line]), default=None)

    @functools.cached_property
    def weights(self) -> dict[str, list[tuple[int, OfRanks]]]:
        """For each weight, the step and the sketches of its ranks, from the first moment to the end."""
        moments: list[Moment] = []
        start = self.together("weights before backward")
        moments += [{rank: (note.step, note["of"]) for rank, note in of.items()} for of in start]
        moments += [{rank: (note.step, note["weights"]) for rank, note in of.items()} for of in self.steps]
        end = self.together("weights at the end")[-1:]
        moments += [{rank: (note.step, note["of"]) for rank, note in of.items()} for of in end]
        return self._by_name(moments)

    @functools.cached_property
    def buffers(self) -> dict[str, list[tuple[int, OfRanks]]]:
        """The same for buffers."""
        moments = [*self.together("buffers"), *self.together("buffers at the end")[-1:]]
        return self._by_name([{rank: (note.step, note["of"]) for rank, note in of.items()} for of in moments])

    @functools.cached_property
    def gradients(self) -> dict[str, list[tuple[int, OfRanks]]]:
        """For each weight, its gradients before every step; without optimizers, after every backward pass."""
        moments = [{rank: (note.step, note["gradients"]) for rank, note in of.items()} for of in self.steps]
        if not moments:
            together = self.together("gradients after backward")
            moments = [{rank: (note.step, note["of"]) for rank, note in of.items()} for of in together]
        return self._by_name(moments)

    @functools.cached_property
    def of_ddp(self) -> set[str]:
        """The names of the weights that DDP reduces."""
        return {self._key(note.rank, name) for note in self.all("DDP") for name in note["names"] if name}

    @functools.cached_property
    def reduced(self) -> set[str]:
        """The names of weights whose gradients are reduced over ranks, as far as can be seen."""
        names = set(self.of_ddp)
        for note in self.all("call"):
            if note.get("name", "").startswith("gradient of ") and "reduce" in note["op"]:
                names.add(self._key(note.rank, note["name"].removeprefix("gradient of ")))
        for name, moments in self.gradients.items():
            if any(
                len(of) > 1 and _has_content(of) and is_equal(of) and self._did_differ(name, s) for s, of in moments
            ):
                names.add(name)
        return names

    def made(self, step: Note | None) -> Note | None:
        """The note of where the optimizer of a step was made."""
        return next((n for n in self.all("optimizer") if step and n["number"] == step["optimizer"]), step)

    @property
    def is_data_parallel(self) -> bool:
        """Whether any gradient is reduced, by DDP, FSDP or the program itself."""
        return bool(self.reduced) or any(note["mesh"] for note in self.all("forward"))

    @functools.cached_property
    def differ_by_design(self) -> set[str]:
        """Names of modules that have a weight that was never equal on all ranks that have one."""
        modules: set[str] = set()
        for name, moments in self.weights.items():
            if all(len(of) < 2 or not is_equal(of) for _, of in moments) and any(len(of) > 1 for _, of in moments):
                modules.add(module_of(name))
        return modules

    @functools.cached_property
    def drifted(self) -> dict[str, tuple[tuple[int, OfRanks], tuple[int, OfRanks]]]:
        """Weights that were equal on all ranks and never are again, with the first such moment and the last one."""
        drifted = {}
        for name, moments in self.weights.items():
            known = [(step, of) for step, of in moments if len(of) > 1]
            if len(known) < 2 or not is_equal(known[0][1]) or module_of(name) in self.differ_by_design:
                continue
            first = next((i for i, (_, of) in enumerate(known) if not is_equal(of)), None)
            if first is not None and not any(is_equal(of) for _, of in known[first:]):
                drifted[name] = known[first], known[-1]
        return drifted

    @functools.cached_property
    def is_expected(self) -> bool:
        """Whether the program has said that ranks may differ."""
        return any(note["is_expected"] for note in self.all("before step"))

    def is_unchanged(self, name: str) -> bool:
        """Whether a weight is at the end what it was at first."""
        moments = self.weights.get(name, [])
        return len(moments) < 2 or all(moments[0][1].get(rank) == one for rank, one in moments[-1][1].items())

    def is_averaged(self, name: str) -> bool:
        """Whether a step with different gradients has changed a weight, and left it equal on all ranks."""
        apart = {step for step, of in self.gradients.get(name, []) if len(of) > 1 and not is_equal(of, UNREDUCED)}
        return any(
            step in apart and before != after and is_equal(after, 0.0)
            for (step, before), (_, after) in itertools.pairwise(self.weights.get(name, []))
        )

    def _did_differ(self, name: str, step: int) -> bool:
        """Whether a gradient differed between ranks right after the backward pass of a step."""
        of = self._local_by_name.get((name, step), {})
        return len(of) > 1 and not is_equal(of, UNREDUCED)

    @functools.cached_property
    def _local_by_name(self) -> dict[tuple[str, int], dict[int, Sketch]]:
        of: defaultdict[tuple[str, int], dict[int, Sketch]] = defaultdict(dict)
        for (rank, step), named in self.local.items():
            for own, one in named.items():
                of[self._key(rank, own), step][rank] = one
        return dict(of)

    @functools.cached_property
    def _groups(self) -> dict[tuple[int, str], str]:
        """The groups over which gradients are reduced, by rank and name, where they are a part of all ranks."""
        groups: dict[tuple[int, str], str] = {}
        for note in self.all("DDP"):
            if len(note["ranks"]) < self.world_size:
                groups.update({(note.rank, name): f" of {ranks_text(note['ranks'])}" for name in note["names"]})
        for note in self.all("call"):
            is_gradient = note.get("name", "").startswith("gradient of ") and "reduce" in note["op"]
            if is_gradient and note["group"] and len(note["group"]) < self.world_size:
                own = note["name"].removeprefix("gradient of ")
                groups[note.rank, own] = f" of {ranks_text(note['group'])}"
        return groups

    def _key(self, rank: int, name: str) -> str:
        """The name under which a rank's tensor is compared with those of other ranks."""
        return name + self._groups.get((rank, name), "")

    def _by_name(self, moments: Sequence[Moment]) -> dict[str, list[tuple[int, OfRanks]]]:
        """For each name, the moments at which ranks have it."""
        names: defaultdict[str, list[tuple[int, OfRanks]]] = defaultdict(list)
        for moment in moments:
            of_name: defaultdict[str, dict[int, Sketch]] = defaultdict(dict)
            step = max((step for step, _ in moment.values()), default=0)
            for rank, (_, named) in moment.items():
                for name, one in named.items():
                    of_name[self._key(rank, name)][rank] = one
            for name, of in of_name.items():
                names[name].append((step, of))
        return dict(names)


def is_equal(of: OfRanks, tolerance: float = ROUNDING) -> bool:
    """Whether all ranks have the same tensor, to within a relative difference."""
    return sketches.spread(list(of.values())) <= tolerance


def _has_content(of: OfRanks) -> bool:
    return all(sketches.norm(one) > 0 and sketches.is_finite(one) for one in of.values())


def module_of(name: str) -> str:
    """The name of the module that a weight belongs to."""
    return name.partition(" ")[0].rpartition(".")[0]


def short(name: str) -> str:
    """A weight's name without that of the outermost module's class."""
    first, _, rest = name.partition(" of rank")[0].partition(".")
    return rest if rest and first[:1].isupper() else name


def listed(names: Sequence[str], most: int = 3) -> str:
    """Some names, and how many more there are."""
    shown = ", ".join(map(short, names[:most]))
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")


def ranks_text(ranks: Sequence[int]) -> str:
    """Ranks in words."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
