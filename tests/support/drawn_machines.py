"""A calibration of a fictional machine: every probe takes exactly the time computed from the machine's parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from worldsize.calibrate import Calibration
from worldsize.calibrate.result import FORMAT

SIZES = (1 << 10, 1 << 16, 1 << 20, 1 << 22, 1 << 25)


@dataclass(frozen=True)
class Machine:
    """The parameters of a machine on which operators in a program are `slowdown` times slower than alone."""

    flops_per_s: float = 50e9
    bytes_per_s: float = 10e9
    overhead_s: float = 5e-6
    slowdown: float = 1.2
    latency_s: float = 100e-6
    link_bytes_per_s: float = 1e9
    write_s: float = 2e-3
    write_bytes_per_s: float = 500e6

    def calibration(self, busy_cores: tuple[float, ...] = (0.1, 0.2), world_size: int = 2) -> Calibration:
        """What calibrating this machine gives; of three times the shortest is right."""
        products = [_row(flops / self.flops_per_s, name="mm", flops=flops, size_bytes=flops / 20) for flops in SIZES]
        passes = [
            _row(size / self.bytes_per_s, name=name, flops=0, size_bytes=size)
            for name in ("copy_", "add")
            for size in SIZES
        ]
        phases = [
            _row(
                self.overhead_s + (1.0 if width == 16 else self.slowdown) * size / self.bytes_per_s,
                name=name,
                width=width,
                operators=[["add", 0, size]],
            )
            for width, size in ((16, 1 << 10), (256, 1 << 22))
            for name in ("forward", "backward", "update")
        ]
        fields: dict[str, Any] = {
            "format": FORMAT,
            "machine": "made up",
            "date": "2026-11-26",
            "world_size": world_size,
            "num_threads": 1,
            "num_cores": 2,
            "memory_bytes": 8 << 30,
            "busy_cores": busy_cores,
            "products": products,
            "attentions": [],
            "passes": passes,
            "dtypes": [_row(1 / self.flops_per_s, name="float32", flops=1.0)],
            "phases": phases,
            "links": [],
            "write": [_row(self.write_s + size / self.write_bytes_per_s, size_bytes=size) for size in SIZES],
            "read": [_row(size / self.write_bytes_per_s, size_bytes=size) for size in SIZES],
        }
        if world_size > 1:
            probe = Calibration.parse(fields)
            timed = {size: probe.all_reduce_s(size, self.latency_s, self.link_bytes_per_s) for size in SIZES}
            fields["links"] = [_row(time_s, size_bytes=size) for size, time_s in timed.items()]
        return Calibration.parse(fields)


def _row(time_s: float, **fields: Any) -> dict[str, Any]:
    return {**fields, "times_s": [1.5 * time_s, time_s, 2 * time_s]}
