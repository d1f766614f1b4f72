"""`torchrun`: run a script under torch's elastic agent or on an emulated cluster, with torchrun's own flags."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from worldsize import hardware
from worldsize.hardware import Cluster
from worldsize.launch.display import live
from worldsize.launch.launcher import arguments, elastic
from worldsize.launch.launcher.flags import Flags
from worldsize.launch.launcher.spec import Spec
from worldsize.launch.reports.result import Run
from worldsize.launch.runner import launch
from worldsize.launch.worker import run_as_main

_ON_A_CLUSTER = {"nnodes", "nproc_per_node"}  # the flags that an emulated cluster accepts


def torchrun(
    script: str | os.PathLike[str],
    *args: str,
    timeout_s: float = 300,
    stalled_s: float | None = 20,
    env: Mapping[str, str] | None = None,
    echo: bool = True,
    cluster: Cluster | str | None = None,
    **flags: str | int | bool,
) -> Run:
    """Run `script` under torchrun and return its `Run`.

    `nproc_per_node=2` is torchrun's `--nproc-per-node=2`; other flags work the same way. The script joins its
    process group itself, as it would in a shell. `values` are None: a script returns nothing.

    With `cluster`, such as "dgx-h100", it joins an emulated cluster, using all of its GPUs unless a flag says how many,
    and the run's timeline is in that cluster's virtual time.

    Raises:
        ValueError: the script or cluster does not exist, torchrun does not accept a flag, or the ranks do not fit in
            memory.
        RankFailed: a rank failed and no restart was left; names the culprit.
        RunTimeout: the script was not done after `timeout_s` seconds, or for `stalled_s` seconds every rank waited in
            one call, its own or torch's; says who waits for whom.
        RunStopped: the stop button was pressed.
    """
    words = [f"--{name.replace('_', '-')}" + ("" if value is True else f"={value}") for name, value in flags.items()]
    return run_script(words, script, list(args), timeout_s, stalled_s, dict(env or {}), echo, cluster)


def run_script(
    words: Sequence[str],
    script: str | os.PathLike[str],
    args: list[str],
    timeout_s: float,
    stalled_s: float | None,
    env: dict[str, str],
    echo: bool,
    cluster: Cluster | str | None = None,
) -> Run:
    """Run a script with torchrun's flags as written in a shell; everything else is as in `torchrun`."""
    arguments.refuse_bad_timeout(timeout_s, stalled_s)
    flags = Flags.parse(words)
    arguments.refuse_too_many(flags.num_ranks, "torchrun" if cluster is None else "warm")
    if "\n" in os.fspath(script):
        raise ValueError(
            "script must be a path, but this is text of several lines: write it to a file, or use %%torchrun"
        )
    if not Path(script).is_file():
        raise ValueError(f"there is no script {os.fspath(script)!r} in {os.getcwd()}")
    command = [os.fspath(script), *args]
    if cluster is None:
        return elastic.run_script(flags, command, timeout_s, stalled_s, env, live.choose_view(echo))
    found = hardware.cluster(cluster) if isinstance(cluster, str) else cluster
    return launch(
        Spec(
            fn=run_as_main.play_joined,
            args=tuple(command),
            world_size=_world_size(flags, found),
            timeout_s=timeout_s,
            stalled_s=stalled_s,
            env=env,
            echo=echo,
            cluster=found,
        )
    )


def take_cluster(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """Split off the name after `--cluster`, which is not a flag of torchrun; return it and the other words.

    Raises:
        ValueError: no name follows it.
    """
    rest, name = [], None
    left = iter(words)
    for word in left:
        flag, is_given, value = word.partition("=")
        if flag != "--cluster":
            rest.append(word)
            continue
        name = value if is_given else next(left, "")
        if not name or name.startswith("-"):
            raise ValueError(f"--cluster needs a name, one of {', '.join(hardware.clusters())}")
    return name, rest


def _world_size(flags: Flags, cluster: Cluster) -> int:
    if foreign := sorted(flags.names - _ON_A_CLUSTER):
        names = ", ".join(f"--{name.replace('_', '-')}" for name in foreign)
        raise ValueError(f"on an emulated cluster only --nnodes and --nproc-per-node may be given; remove {names}")
    if "nproc_per_node" in flags.names:
        if flags.num_nodes > 1 and flags.num_ranks != cluster.gpus_per_node:
            raise ValueError(
                f"{cluster.name} has {cluster.gpus_per_node} GPUs a node, and ranks fill one node after the other: "
                f"with --nnodes={flags.num_nodes} give --nproc-per-node={cluster.gpus_per_node}, or describe a "
                f"cluster with gpus_per_node={flags.num_ranks}"
            )
        return flags.num_nodes * flags.num_ranks
    return cluster.gpus_per_node * flags.num_nodes if "nnodes" in flags.names else cluster.world_size
