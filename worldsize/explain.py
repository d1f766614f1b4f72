"""The explanation of a hung job of your own, from dumps of torch's flight recorder and stacks of py-spy.

A dump is what torch writes on a timeout, pickled or as JSON, or the text of `py-spy dump`; the last number in a file's
name is the rank. Source of the dumps' fields: torch.distributed.flight_recorder in torch 2.13.
"""

from __future__ import annotations

import io
import json
import pickle
import re
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from worldsize.launch.protocol.call_log import DONE, ISSUED, WAITING, Call
from worldsize.launch.reports import text
from worldsize.launch.reports.diagnosis import StoppedRank
from worldsize.source import Line, own_lines
from worldsize.units import format_ranks

_RANK = re.compile(r"(\d+)\D*$")
_MESSAGE = re.compile(r"(send|recv) (\d+)(?:->|<-)(\d+)")
_FRAME = re.compile(r"^\s+(\S.*) \((.+):(\d+)\)$")  # of py-spy
_COLLECTIVES = "torch/distributed/distributed_c10d.py"
_TORCH = re.compile(r"(^|site-packages/)torch/")
_NAMES = {  # of NCCL's functions, and what programs call
    "_all_gather_base": "all_gather_single",
    "_reduce_scatter_base": "reduce_scatter_single",
    "all_reduce_barrier": "barrier",
}
_BATCH = ":coalesced"  # the end of the name that the recorder has for a batch
_Entry: TypeAlias = Mapping[str, Any]
_DTYPES = {"Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64"}


def explain(paths: Iterable[str | Path]) -> str:
    """Return the report on a job of which these are the dumps and stacks.

    Raises:
        ValueError: a file is missing or cannot be read as either, or its name does not end in a rank.
    """
    stopped: dict[int, StoppedRank] = {}
    members = set[int]()
    for path in map(Path, paths):
        rank = _rank_of(path)
        known = stopped.get(rank, StoppedRank(rank))
        lines, inside, calls, groups = _read(path)
        members.update(*groups)
        stopped[rank] = replace(
            known, lines=lines or known.lines, calls=calls or known.calls, native=inside or known.native
        )
    if not stopped:
        raise ValueError("name the files with torch's dumps or py-spy's stacks, one for each rank")
    standings = [stopped[rank] for rank in sorted(stopped)]
    reason = f"Of {format_ranks(sorted(stopped))} there are dumps or stacks."
    if missing := sorted(members - set(stopped)):
        reason += f" There is none of {format_ranks(missing)}, which may be gone or stuck elsewhere."
    if all(one.waits_in is None for one in standings) and not any(one.lines for one in standings):
        return f"{reason}\nNo call is unfinished: the job was not waiting in torch.distributed when these were written."
    return text.describe_hang(standings, reason)


def _rank_of(path: Path) -> int:
    if not path.exists():
        raise ValueError(f"no such file: {path}")  # a shell leaves a pattern as it is where nothing matches
    if not (found := _RANK.search(path.stem if path.suffix in (".json", ".txt", ".pickle") else path.name)):
        raise ValueError(f"{path.name}: its name must end in the rank's number, such as nccl_trace_rank_3")
    return int(found[1])


def _read(path: Path) -> tuple[list[Line], Call | None, list[Call], Iterable[tuple[int, ...]]]:
    """Read a stack's lines and the call of torch.distributed that it is in, or a dump's calls and groups."""
    try:
        body = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    is_pickle = body[:1] == b"\x80"
    decoded = "" if is_pickle else body.decode(errors="replace")
    if is_pickle or decoded.lstrip()[:1] == "{":
        try:
            dump = _PlainData(io.BytesIO(body)).load() if is_pickle else json.loads(decoded)
            ranks_of = _groups(dump)
            return [], None, _calls(dump, ranks_of), ranks_of.values()
        except Exception as error:  # a damaged file may raise anything
            raise ValueError(f"{path.name}: not a dump of torch's flight recorder ({error!r})") from None
    lines, inside = _stack(decoded)
    if not lines:
        raise ValueError(f"{path.name}: neither a dump of torch's flight recorder nor a stack of `py-spy dump`")
    return lines, inside, [], ()


class _PlainData(pickle.Unpickler):
    """An unpickler of numbers, texts and containers, which are all that a dump holds: others could run code."""

    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuse to load anything that is not built in."""
        raise pickle.UnpicklingError(f"it holds a {module}.{name}, which no dump has")


def _groups(dump: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Map the names of a dump's process groups to their ranks, where it has them."""
    ranks_of = {name: group.get("ranks") or "[]" for name, group in dump.get("pg_config", {}).items()}
    return {name: tuple(json.loads(ranks) if isinstance(ranks, str) else ranks) for name, ranks in ranks_of.items()}


def _calls(dump: Mapping[str, Any], ranks_of: Mapping[str, tuple[int, ...]]) -> list[Call]:
    """Return the calls of a dump in their order; of those that are not done, the rank waits in the first."""
    calls, is_waiting = [], False
    entries = _with_batches(dump.get("entries", []))
    for entry, whole in sorted(entries, key=lambda pair: pair[0]["record_id"]):
        state = DONE if whole["state"] == "completed" or whole.get("retired") else ISSUED if is_waiting else WAITING
        is_waiting |= state == WAITING
        calls.append(_call(entry, state, ranks_of))
    return calls


def _with_batches(entries: Sequence[_Entry]) -> list[tuple[_Entry, _Entry]]:
    """Return each entry with the one that has its state.

    That is itself, except in a batch such as `batch_isend_irecv`'s, of which NCCL updates one last entry alone: it has
    no tensor, and stands for those of the same group and sequence number before it, if the recorder has any.
    """
    last = {_batch_of(entry): entry for entry in entries if entry["profiling_name"].endswith(_BATCH)}
    members = [entry for entry in entries if not entry["profiling_name"].endswith(_BATCH)]
    known = set(map(_batch_of, members))
    alone = [entry for number, entry in last.items() if number not in known]
    return [(entry, last.get(_batch_of(entry), entry)) for entry in [*members, *alone]]


def _batch_of(entry: _Entry) -> tuple[object, ...]:
    """Return what the entries of a batch have in common: collectives and messages of a group have their own numbers."""
    is_message = bool(entry.get("is_p2p"))
    return entry["process_group"][0], is_message, entry.get("p2p_seq_id" if is_message else "collective_seq_id")


def _call(entry: _Entry, state: str, ranks_of: Mapping[str, tuple[int, ...]]) -> Call:
    name, description = entry["process_group"][:2]
    is_default = description == "default_pg"
    op = str(entry["profiling_name"]).partition(":")[2]
    message = _MESSAGE.search(op)
    ranks = None if is_default else ranks_of.get(name) or None
    peer = int(message[3]) if message else None
    sizes, dtypes = entry.get("input_sizes") or entry.get("output_sizes"), entry.get("input_dtypes")
    return Call(
        number=entry["record_id"],
        op=str(message[1]) if message else _NAMES.get(op) or op,
        ranks=ranks,
        sequence=0 if message else entry["collective_seq_id"],
        dtype=_DTYPES.get(dtypes[0]) or dtypes[0].lower() if dtypes else "",
        shape=tuple(sizes[0]) if sizes else None,
        peer=ranks[peer] if peer is not None and ranks else peer,
        line=_line(tuple((frame["filename"], int(frame["line"]), frame["name"]) for frame in entry.get("frames", []))),
        state=state,
        group="" if is_default else name,
    )


@cache  # a loop records one stack thousands of times
def _line(frames: tuple[tuple[str, int, str], ...]) -> Line | None:
    """Return the program's innermost line of a recorded stack, which begins with it."""
    lines = own_lines([traceback.FrameSummary(*frame, lookup_line=False) for frame in reversed(frames)])
    return lines[-1] if lines else None


def _stack(dumped: str) -> tuple[list[Line], Call | None]:
    """Return the program's lines of py-spy's main thread, outermost first, and the collective that it is in."""
    _, has_main, main = dumped.partition('"MainThread"')
    frames = []
    for row in (main if has_main else dumped).splitlines()[1:]:
        if not (found := _FRAME.match(row)):
            break
        frames.append(traceback.FrameSummary(found[2], int(found[3]), found[1]))
    called = list(takewhile(lambda one: _TORCH.search(one.filename), frames))  # innermost first
    inside = next((one for one in reversed(called) if one.filename.endswith(_COLLECTIVES)), None)
    own = [frame for frame in reversed(frames) if not _TORCH.search(frame.filename)]  # py-spy shortens torch's names
    return own_lines(own or reversed(frames)), Call(-1, inside.name) if inside else None
