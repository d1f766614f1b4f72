"""The running of a script under torch's elastic agent or on an emulated cluster, with torchrun's own flags."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from worldsize import hardware
from worldsize.hardware import Cluster
from worldsize.launch.display import live
from worldsize.launch.launcher import arguments, elastic
from worldsize.launch.launcher.auditing import audited
from worldsize.launch.launcher.flags import Flags
from worldsize.launch.launcher.spec import Spec
from worldsize.launch.reports.result import Run
from worldsize.launch.runner import launch
from worldsize.launch.worker import run_as_main

_ON_A_CLUSTER = {"nnodes", "nproc_per_node"}  # the flags that an emulated cluster accepts


def run_script(
    words: Sequence[str],
    script: str | os.PathLike[str],
    args: list[str],
    timeout_s: float,
    stalled_s: float | None,
    env: dict[str, str],
    echo: bool,
    cluster: Cluster | str | None = None,
    audit: bool | int = False,
) -> Run:
    """Run a script with torchrun's flags as written in a shell; everything else is as in `worldsize.torchrun`."""
    arguments.refuse_bad_timeout(timeout_s, stalled_s)
    flags = Flags.parse(words)
    arguments.refuse_too_many(flags.num_ranks, "torchrun" if cluster is None else "warm")
    refuse_no_script(script)
    command = [os.fspath(script), *args]
    if cluster is None:
        view = live.choose_view(echo)
        return _without_values(
            audited(audit, env, lambda env: elastic.run_script(flags, command, timeout_s, stalled_s, dict(env), view))
        )
    spec = Spec(
        fn=run_as_main.play_joined,
        args=tuple(command),
        world_size=world_size(flags, cluster),
        timeout_s=timeout_s,
        stalled_s=stalled_s,
        env=env,
        echo=echo,
        cluster=cluster,
    )
    return _without_values(audited(audit, env, lambda env: launch(replace(spec, env=env))))


def _without_values(run: Run) -> Run:
    """Replace the values of a script's run, which say what ranks joined a process group, with a warning if none did."""
    num_ranks = len(run.values)
    if num_ranks > 1 and not any(run.values):
        run.warnings.append(
            f"no rank joined a process group, so each of the {num_ranks} worked alone: the script must call "
            "torch.distributed.init_process_group()"
        )
    run.values = [None] * num_ranks
    return run


def refuse_no_script(script: str | os.PathLike[str]) -> None:
    """Raise ValueError unless this is the path of a file."""
    if "\n" in os.fspath(script):
        raise ValueError(
            "script must be a path, but this is text of several lines: write it to a file, or use %%torchrun"
        )
    if not Path(script).is_file():
        raise ValueError(f"there is no script {os.fspath(script)!r} in {os.getcwd()}")


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


def world_size(flags: Flags, on: Cluster | str) -> int:
    """Return how many ranks these flags mean on a cluster: by default one for each of its GPUs.

    Raises:
        ValueError: the cluster is unknown, or a flag has no meaning there.
    """
    cluster = hardware.cluster(on) if isinstance(on, str) else on
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
