"""What a record of a published model's training step costs, and how far fewer layers carry."""

from __future__ import annotations

from collections.abc import Iterator

import cloudpickle
import large_programs
from figures import Figure, scaled

import worldsize as ws

_MOST_PROCESS_BYTES = 400e6


def recording(scale: float) -> Iterator[Figure]:
    """Processor time of Llama 3 8B, 70B and 405B on up to 16,384 ranks, of the last whole and by two depths."""
    cloudpickle.register_pickle_by_value(large_programs)
    whole = ws.paper(
        large_programs.fully_sharded,
        scaled(32, scale, least=2),
        "llama-3-8b",
        world_size=1024,
        cluster="h100-ndr-x128",
        tokens_per_step=1024 * 8192,
        echo=False,
    )
    yield from _figures("Llama 3 8B, FSDP2 on 1,024", [whole], 10, scale)
    whole = ws.paper(
        large_programs.split_and_sharded,
        scaled(80, scale, least=2),
        "llama-3-70b",
        8,
        world_size=256,
        cluster="h100-ndr-x32",
        tokens_per_step=32 * 8192,
        echo=False,
    )
    yield from _figures("Llama 3 70B, TP 8 x FSDP2 32", [whole], 40, scale)
    pp = 16 if scale else 2
    kwargs = {
        "world_size": 16_384 if scale else 32,
        "cluster": "h100-pods-x2048" if scale else "h100-ndr-x4",
        "tokens_per_step": 16 * 128 * 8192,
        "timeout_s": 1200,
        "echo": False,
    }
    arguments = ("llama-3-405b", 8, pp, 16 if scale else 2)
    deep = ws.paper(large_programs.in_stages, 126, *arguments, depths=(2 * pp, 3 * pp), **kwargs)
    yield from _figures(f"Llama 3 405B, {pp} stages by two depths", list(deep.runs.values()), 100, scale)
    if scale:
        whole = ws.paper(large_programs.in_stages, 126, *arguments, **kwargs)
        yield from _figures(f"Llama 3 405B, {pp} stages whole", [whole], 300, scale)
        for name in ("step_s", "peak_bytes"):
            error = abs(deep.by_name()[name] / whole.by_name()[name] - 1)
            how = "126 layers by the line through 32 and 48, over the whole record"
            yield Figure(f"{name} by two depths", 100 * error, "% off", "at most 5", error <= 0.05, how)


def _figures(name: str, runs: list[ws.PaperRun], most_s: float, scale: float) -> Iterator[Figure]:
    records = [record for run in runs for record in run.records]
    cpu_s = sum(record.cpu_s for record in records)
    most_bytes = max(record.peak_process_bytes for record in records)
    print(runs[-1])
    how = f"processor time of {len(records)} records, {sum(record.num_operators for record in records):,} operators"
    yield Figure(name, cpu_s, "s", f"at most {most_s}", cpu_s <= most_s, how)
    yield Figure("and a process", most_bytes / 1e6, "MB", "at most 400", most_bytes <= _MOST_PROCESS_BYTES, "")
