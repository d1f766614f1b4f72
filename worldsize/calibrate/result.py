"""A measured machine, and the cluster that describes it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from worldsize import gloo, hardware
from worldsize.calibrate import fits
from worldsize.hardware import HOST, Cluster, Gpu, Link, StorageSystem, Timed, Timings
from worldsize.units import format_bytes, format_time_s, significant

if TYPE_CHECKING:
    from worldsize.draw import Picture

FORMAT = "worldsize calibration 1"
MAX_BUSY_CORES = 0.5  # cores of other work; beyond this the times are those of a shared machine
_FIELDS = {"format", "machine", "date", "world_size", "num_threads", "num_cores", "memory_bytes", "busy_cores"}
_MEASURED = {"products", "attentions", "passes", "dtypes", "phases", "links", "write", "read"}


@dataclass(frozen=True)
class Calibration:
    """A machine's measurements by ranks that ran side by side: all times of each probe, in seconds.

    `measured` has the rows of each kind of probe: "products", "attentions" and "passes" by operator, "dtypes" by dtype,
    "phases" of small training steps, "links" by the bytes of an all-reduce, "write" and "read" by those of a file. The
    best of its times stands for a probe: what the machine does when nothing else uses it. `busy_cores` are those that
    other work kept busy before and after.
    """

    machine: str
    date: str
    world_size: int
    num_threads: int
    num_cores: int
    memory_bytes: int
    busy_cores: tuple[float, ...]
    measured: Mapping[str, Sequence[Mapping[str, Any]]] = field(repr=False)

    @property
    def is_busy(self) -> bool:
        """True if other work took cores while this machine was measured."""
        return is_busy(self.busy_cores)

    @cached_property
    def cluster(self) -> Cluster:
        """The machine's ranks as a cluster: each a "GPU" on its own node, connected by a link as fast as Gloo.

        `ws.paper` and `ws.run` price it from the measured times alone.
        """
        return _cluster(self.world_size, self.gpu, self.link, self.storage)

    @cached_property
    def gpu(self) -> Gpu:
        """A rank's share of the machine, with the time of each operator that was measured."""
        copies = [row for row in self.measured["passes"] if row["name"] == "copy_"]
        largest = max(copies, key=lambda row: row["size_bytes"])
        return Gpu(
            name=f"a rank of {self.machine}",
            architecture=HOST,
            memory_bytes=self.memory_bytes // self.world_size,
            memory_bandwidth_bytes_per_s=largest["size_bytes"] / best_s(largest),
            peak_flops_per_s=self._peaks,
            source=self._source,
            timings=self.timings,
        )

    @cached_property
    def timings(self) -> Timings:
        """The time of each operator in a program.

        The overhead per operator is the time by which the smallest measured step exceeds its operators. In other steps,
        operators take `slowdown` times as long, on average, as when they are repeated alone with tensors in a cache.
        """
        bare = Timings(tuple(self._operators()), {})
        rows = self.measured["phases"]
        alone_s = [sum(bare.time_s(*operator) for operator in row["operators"]) for row in rows]
        smallest = min(row["width"] for row in rows)
        around_s = {
            row["name"]: max(0.0, best_s(row) - in_them_s) / len(row["operators"])
            for row, in_them_s in zip(rows, alone_s, strict=True)
            if row["width"] == smallest
        }
        spent_s: dict[int, float] = {}
        repeated_s: dict[int, float] = {}
        for row, in_them_s in zip(rows, alone_s, strict=True):
            width, own_s = row["width"], best_s(row) - around_s[row["name"]] * len(row["operators"])
            spent_s[width] = spent_s.get(width, 0.0) + own_s
            repeated_s[width] = repeated_s.get(width, 0.0) + in_them_s
        ratios = [spent_s[width] / repeated_s[width] for width in spent_s if width != smallest]
        return Timings(bare.operators, around_s | {"": around_s["forward"]}, max(1.0, fmean(ratios)))

    @cached_property
    def link(self) -> Link | None:
        """The link between two ranks, from the times of all-reduces; None for a single rank."""
        if self.world_size == 1:
            return None
        points = {row["size_bytes"]: best_s(row) for row in self.measured["links"]}
        latency_s, bytes_per_s = fits.latency_and_rate(points, self.all_reduce_s)
        return self._link_of(latency_s, bytes_per_s)

    @cached_property
    def storage(self) -> StorageSystem:
        """The folder's disk, at the rates of `torch.save` and `torch.load`."""
        write_s, write = fits.line([(row["size_bytes"], best_s(row)) for row in self.measured["write"]])
        _, read = fits.line([(row["size_bytes"], best_s(row)) for row in self.measured["read"]])
        return StorageSystem(f"the disk of {self.machine}", read, write, write_s, self._source)

    def _link_of(self, latency_s: float, bytes_per_s: float) -> Link:
        return Link(f"Gloo on {self.machine}", latency_s, bytes_per_s, self._source, kind="tcp")

    def all_reduce_s(self, size_bytes: float, latency_s: float, bytes_per_s: float) -> float:
        """Return the seconds of an all-reduce among all ranks if each link between two ranks were like this."""
        cluster = _cluster(self.world_size, hardware.H100, self._link_of(latency_s, bytes_per_s), None)
        return gloo.cost("all_reduce", size_bytes, range(self.world_size), cluster).time_s

    @cached_property
    def _peaks(self) -> dict[str, float]:
        return {row["name"]: row["flops"] / best_s(row) for row in self.measured["dtypes"]}

    def _operators(self) -> Iterator[Timed]:
        for kind in ("products", "attentions", "passes"):
            for row in self.measured[kind]:
                yield Timed(row["name"], row["flops"], row["size_bytes"], best_s(row))

    @property
    def _source(self) -> str:
        return f"worldsize.calibrate on {self.machine}, {self.date}"

    @cached_property
    def spread(self) -> dict[str, float]:
        """How much longer the median time of a probe is than its best, as the median over the probes of each kind."""
        kinds = {"CPU time": ("products", "attentions", "passes"), "messages": ("links",), "files": ("write", "read")}
        return {
            name: median(median(row["times_s"]) / best_s(row) - 1 for row in rows)
            for name, of in kinds.items()
            if (rows := [row for kind in of for row in self.measured[kind]])
        }

    def describe(self) -> str:
        """Describe the machine: the rates that its ranks reach, and how busy it was."""
        lines = [f"{self.machine}, {self.date}: {self.num_cores} cores"]
        lines[0] += f", ranks: {self.world_size}, threads of each: {self.num_threads}"
        rates = ", ".join(f"{significant(rate / 1e9)} GFLOP/s in {dtype}" for dtype, rate in self._peaks.items())
        lines.append(f"a rank computes {rates}, and copies {format_bytes(self.gpu.memory_bandwidth_bytes_per_s)}/s")
        overhead_s = self.timings.overhead_s.items()
        around = ", ".join(f"{format_time_s(time_s)} in {phase}" for phase, time_s in overhead_s if phase)
        lines.append(f"around each operator a program spends {around}")
        lines.append(f"in a program an operator takes {self.timings.slowdown:.2f} times what it takes repeated alone")
        if (link := self.link) is not None:
            rate = f"{format_bytes(link.bandwidth_bytes_per_s)}/s"
            lines.append(f"a link has a latency of {format_time_s(link.latency_s)} and carries {rate}")
        disk = self.storage
        lines.append(
            f"a save takes {format_time_s(disk.latency_s)}; it is written at "
            f"{format_bytes(disk.write_bytes_per_s)}/s and read at {format_bytes(disk.read_bytes_per_s)}/s"
        )
        spread = ", ".join(f"{name} {share:.0%}" for name, share in self.spread.items())
        lines.append(f"the median is above the best by: {spread}")
        return "\n".join([*lines, self.busy_in_words()])

    def busy_in_words(self) -> str:
        """Say how busy other work kept the machine."""
        if not self.busy_cores:
            return "this system does not report how busy it was"
        most = f"other work kept {max(self.busy_cores):.1f} of {self.num_cores} cores busy"
        if self.is_busy:
            return f"{most}: messages and files were timed on a busy machine; calibrate again when it is idle"
        return f"{most}: idle enough"

    def draw(
        self,
        product_s: Callable[[float, float], float] | None = None,
        pass_s: Callable[[str, float], float] | None = None,
        message_s: Callable[[float], float] | None = None,
    ) -> Picture:
        """Draw the rate of matmuls by shape and of passes by size, and messages next to the fit.

        Your own fits are drawn over the probes: seconds of a matmul by its flops and bytes, of a pass by its name
        and bytes, of an all-reduce by its bytes.
        """
        from worldsize.calibrate.picture import Fits, picture  # imports matplotlib

        title = f"{self.machine}, measured by {self.world_size} ranks."
        return picture(title, self.measured, Fits(message_s or self.message_s, product_s, pass_s))

    def message_s(self, size_bytes: float) -> float:
        """Return the seconds of an all-reduce among all ranks over the fitted link.

        Raises:
            ValueError: a single rank was measured.
        """
        if self.link is None:
            raise ValueError("a single rank sends nothing; calibrate with world_size=2 or more")
        return self.all_reduce_s(size_bytes, self.link.latency_s, self.link.bandwidth_bytes_per_s)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a JSON file, one line a probe, which `load` reads."""
        head = {name: getattr(self, name) for name in sorted(_FIELDS - {"format"})}
        lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in ({"format": FORMAT} | head).items()]
        for kind, rows in self.measured.items():
            of_kind = ",\n  ".join(json.dumps(dict(row)) for row in rows)
            lines.append(f"{json.dumps(kind)}: [\n  {of_kind}\n ]" if rows else f"{json.dumps(kind)}: []")
        Path(path).write_text("{\n " + ",\n ".join(lines) + "\n}\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Calibration:
        """Load the calibration in a file that `save` wrote.

        Raises:
            ValueError: the file is not a calibration.
        """
        try:
            fields = json.loads(Path(path).read_text(encoding="utf-8"))
            return cls.parse(fields)
        except (json.JSONDecodeError, UnicodeDecodeError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is not a calibration as Calibration.save writes it: {error}") from None

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> Calibration:
        """Parse the calibration in these fields of a file.

        Raises:
            ValueError: a field is missing or wrong. Fields of unexpected types may raise anything.
        """
        if fields.get("format") != FORMAT:
            raise ValueError(f"its format is {fields.get('format')!r}, not {FORMAT!r}")
        if missing := (_FIELDS | _MEASURED) - fields.keys():
            raise ValueError(f"it has no {', '.join(sorted(missing))}")
        measured = {kind: fields[kind] for kind in sorted(_MEASURED)}
        for kind, rows in measured.items():
            for row in rows:
                if not row["times_s"] or not all(float(time_s) > 0 for time_s in row["times_s"]):
                    raise ValueError(f"a row of {kind} has no times, or a time that is not above 0: {row}")
        busy_cores = tuple(map(float, fields["busy_cores"]))
        head: dict[str, Any] = {name: fields[name] for name in _FIELDS - {"format", "busy_cores"}}
        return cls(**head, busy_cores=busy_cores, measured=measured)

    def __repr__(self) -> str:
        return self.describe()


def is_busy(busy_cores: Sequence[float]) -> bool:
    """Whether this many busy cores change what is measured."""
    return any(busy > MAX_BUSY_CORES for busy in busy_cores)


def best_s(row: Mapping[str, Any]) -> float:
    """The shortest time of a probe."""
    return min(row["times_s"])


def _cluster(world_size: int, gpu: Gpu, link: Link | None, storage: StorageSystem | None) -> Cluster:
    return Cluster(
        name=gpu.name.removeprefix("a rank of "),
        gpu=gpu,
        gpus_per_node=1,
        intra=hardware.PCIE4,  # unused, because a node has one rank
        num_nodes=world_size,
        inter=link,
        library="gloo",
        local_storage=storage,
        source=gpu.source,
    )
