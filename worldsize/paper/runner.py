"""`paper`: record a program on fake tensors, to price it on any described cluster."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from numbers import Integral, Real
from typing import Any, Literal, cast, overload

from worldsize.hardware import Cluster
from worldsize.launch.launcher import arguments
from worldsize.launch.reports import text
from worldsize.launch.reports.result import RankFailed, RunError, RunTimeout
from worldsize.launch.runner import run
from worldsize.paper.depth import DeepRun, depths_of
from worldsize.paper.record import RankRecord
from worldsize.paper.result import PaperRun, cluster_of

_MOST_AT_ONCE = 32  # most ranks that are recorded without being named


@overload
def paper(
    fn: Callable[..., Any],
    *args: Any,
    world_size: int,
    cluster: Cluster | str,
    tokens_per_step: int | None = None,
    ranks: Sequence[int] | Literal["corners"] | None = None,
    depths: None = None,
    timeout_s: float = 600,
    echo: bool = True,
) -> PaperRun: ...


@overload
def paper(
    fn: Callable[..., Any],
    *args: Any,
    world_size: int,
    cluster: Cluster | str,
    tokens_per_step: int | None = None,
    ranks: Sequence[int] | Literal["corners"] | None = None,
    depths: Sequence[int],
    timeout_s: float = 600,
    echo: bool = True,
) -> DeepRun: ...


def paper(
    fn: Callable[..., Any],
    *args: Any,
    world_size: int,
    cluster: Cluster | str,
    tokens_per_step: int | None = None,
    ranks: Sequence[int] | Literal["corners"] | None = None,
    depths: Sequence[int] | None = None,
    timeout_s: float = 600,
    echo: bool = True,
) -> PaperRun | DeepRun:
    """Run `fn(*args)` on paper as one of `world_size` ranks, and price it on a described cluster.

    The function is the same as for `worldsize.run`. Its tensors have shapes but no data, so it may be far larger than
    this machine: rank 0 runs in its own process, which records its computation, communication, waits and memory.
    If it exchanges messages, as a pipeline stage does, the ranks of that group are recorded together.

    `ranks` names the ranks to record instead; "corners" adds the last rank and the ends of each group that a recorded
    rank uses, so that `PaperRun.kinds` can show how ranks differ.
    `tokens_per_step` counts the tokens of all ranks together, for `tokens_per_s_per_gpu`.

    With `depths`, such as (3, 4, 5), the function's first argument is its number of layers: it is recorded with these
    depths instead, and the result, a `DeepRun`, is extrapolated linearly. The third shows the error of the lines.

    Raises:
        ValueError: an argument is wrong, or the cluster has too few GPUs.
        RankFailed: the program raised; on paper, reading the numbers in a tensor also raises.
    """
    world_size = arguments.whole_world_size(world_size)
    found = cluster_of(cluster, world_size)
    _refuse_bad_arguments(fn, tokens_per_step)
    if depths is not None:
        rising = depths_of(depths, args[0] if args else None)
        runs = {
            depth: paper(
                fn,
                depth,
                *args[1:],
                world_size=world_size,
                cluster=found,
                tokens_per_step=tokens_per_step,
                ranks=ranks,
                timeout_s=timeout_s,
                echo=echo,
            )
            for depth in rising
        }
        return DeepRun(args[0], runs)

    def values_of(of: Sequence[int]) -> Sequence[Any]:
        try:
            return run(
                _record,
                fn,
                args,
                world_size,
                found,
                list(of),
                world_size=len(of),
                backend="gloo",
                timeout_s=timeout_s,
                stalled_s=None,
                echo=echo,
            ).values
        except (RankFailed, RunTimeout) as error:
            raise _of_job(error, of, world_size) from None

    return PaperRun(records_of(values_of, ranks, world_size), found, tokens_per_step)


def _refuse_bad_arguments(fn: Any, tokens_per_step: Any) -> None:
    if not callable(fn):
        raise ValueError(f"paper takes a function; got a {type(fn).__name__}")
    is_number = isinstance(tokens_per_step, Real) and 0 < float(tokens_per_step) < math.inf
    if tokens_per_step is not None and not is_number:
        raise ValueError(
            f"tokens_per_step is {tokens_per_step!r}; it must be a number above 0, the tokens of all ranks"
        )


def _of_job(error: RunError, ranks: Sequence[int], world_size: int) -> RunError:
    """Renumber an error of the recording processes to the ranks that they represent."""
    standings = [replace(one, rank=ranks[one.rank]) for one in error.standings]
    if isinstance(error, RunTimeout):
        report, failures = text.describe_hang(standings, error.ending.reason), text.held_up(standings)
    else:
        failures = [replace(one, rank=ranks[one.rank]) for one in error.failures]
        report = text.describe_failure(failures, standings, world_size)
    return type(error)(report, failures, error.output, standings, error.ending)


def records_of(
    values_of: Callable[[Sequence[int]], Sequence[Any]],
    ranks: Sequence[int] | Literal["corners"] | None,
    world_size: int,
) -> list[RankRecord]:
    """Record these ranks; by default rank 0 and, if it exchanges messages, the other ranks of that group.

    `values_of(ranks)` starts a process for each rank and returns the values of `worldsize.paper.rank.record`.

    Raises:
        ValueError: the ranks are invalid, other ranks must be recorded with them, or a value is not a record.
    """
    has_corners = isinstance(ranks, str) and ranks == "corners"
    named = None if has_corners else cast(Sequence[int] | None, ranks)
    chosen = _ranks_of(named, world_size)
    records = _read(values_of(chosen))
    if named is None and (together := _needed(records, values_of)):
        chosen = _ranks_of(together, world_size)
        records = _read(values_of(chosen))
    if has_corners and not isinstance(records, tuple) and (together := _corners(records)) != chosen:
        chosen = together
        records = _read(values_of(chosen))
    if isinstance(records, tuple):
        raise ValueError(f"ranks {list(records)} exchange data: record them together, with ranks={list(records)}")
    if tuple(one.rank for one in records) != chosen:
        raise ValueError(f"expected records of ranks {list(chosen)}, got ranks {[record.rank for record in records]}")
    return records


def _read(values: Sequence[Any]) -> list[RankRecord] | tuple[int, ...]:
    """Parse the ranks' values: their records, or the ranks that must be recorded together."""
    parsed = [json.loads(value) for value in values]
    needed = next((ranks for ranks in parsed if isinstance(ranks, list)), None)
    return [RankRecord.parse(fields) for fields in parsed] if needed is None else tuple(needed)


def _ranks_of(ranks: Sequence[int] | None, world_size: int) -> tuple[int, ...]:
    """Validate the ranks to record first.

    Raises:
        ValueError: one is not a rank of the job, or occurs twice.
    """
    named = (0,) if ranks is None else tuple(ranks) if isinstance(ranks, Iterable) else ()
    are_ranks = all(isinstance(one, Integral) and not isinstance(one, bool) and 0 <= one < world_size for one in named)
    if not named or len(set(named)) < len(named) or not are_ranks:
        raise ValueError(
            f'ranks is {ranks!r}; give "corners", or one or more different ranks from 0 to {world_size - 1}'
        )
    return tuple(sorted(map(int, named)))


def _corners(records: list[RankRecord]) -> tuple[int, ...]:
    """Return the recorded ranks, the job's last one, and the first and last of each group that they use.

    Include the ranks with which the last one exchanges messages, assuming the same strides as on a mesh.

    Raises:
        ValueError: there are more than can be recorded at once.
    """
    last = records[0].world_size - 1
    ends = {end for one in records for group in one.groups for end in (group.ranks[0], group.ranks[-1])}
    recorded = tuple(one.rank for one in records)
    groups = {ranks for one in records for ranks in _exchanging(one)}
    exchanging = {ranks if len(ranks) <= _MOST_AT_ONCE else recorded for ranks in groups}
    of_last = {last - max(ranks) + rank for ranks in exchanging for rank in ranks}
    corners = sorted({one.rank for one in records} | ends | of_last | {last})
    if len(corners) > _MOST_AT_ONCE:
        raise ValueError(
            f"there are {len(corners)} corners, and at most {_MOST_AT_ONCE} ranks are recorded: choose with ranks=[...]"
        )
    return tuple(corners)


def _needed(
    records: list[RankRecord] | tuple[int, ...], values_of: Callable[[Sequence[int]], Sequence[Any]]
) -> tuple[int, ...]:
    """Return the ranks that must be recorded with rank 0: the group in which it sends and receives messages.

    If that group is too large to record at once, take only the ranks that messages from rank 0 reach.

    Raises:
        ValueError: these are too many as well.
    """
    if isinstance(records, tuple):
        return records if len(records) <= _MOST_AT_ONCE else ()
    members = {rank for one in records for group in _exchanging(one) for rank in group}
    if len(members) <= _MOST_AT_ONCE:
        return tuple(sorted(members))
    found, new = {records[0].rank}, _peers(records)
    while new:
        found |= new
        if len(found) > _MOST_AT_ONCE:
            raise ValueError(
                f"messages lead from rank 0 to more than {_MOST_AT_ONCE} ranks: choose with ranks=[...] those to "
                "record; all others are then assumed to be on time"
            )
        further = _read(values_of(tuple(sorted(new))))
        new = set(further) - found if isinstance(further, tuple) else _peers(further) - found
    return tuple(sorted(found))


def _exchanging(record: RankRecord) -> set[tuple[int, ...]]:
    """Return the ranks of each group in which a rank sends and receives messages."""
    return {record.groups[post.group].ranks for post in record.posts if post.op in ("send", "recv")}


def _peers(records: Sequence[RankRecord]) -> set[int]:
    """Return the peers of these ranks' messages."""
    posts = (post for record in records for post in record.posts if post.op in ("send", "recv"))
    return {post.peer for post in posts if post.peer is not None}


def _record(*args: Any) -> Any:
    from worldsize.paper import rank  # it needs torch, which only ranks import

    return rank.record(*args)
