"""`torchrun`: run a script as it is under torch's elastic agent, on an emulated cluster, or on paper."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal, overload

from worldsize.hardware import Cluster
from worldsize.launch import command
from worldsize.launch.launcher.flags import Flags
from worldsize.launch.reports.result import Run
from worldsize.launch.worker import run_as_main
from worldsize.paper.result import PaperRun
from worldsize.paper.runner import paper as on_paper


@overload
def torchrun(
    script: str | os.PathLike[str],
    *args: str,
    timeout_s: float = 300,
    stalled_s: float | None = 20,
    env: Mapping[str, str] | None = None,
    echo: bool = True,
    cluster: Cluster | str | None = None,
    paper: Literal[False] = False,
    audit: bool | int = False,
    **flags: str | int | bool,
) -> Run: ...


@overload
def torchrun(
    script: str | os.PathLike[str],
    *args: str,
    timeout_s: float = 300,
    stalled_s: float | None = 20,
    env: Mapping[str, str] | None = None,
    echo: bool = True,
    cluster: Cluster | str | None = None,
    paper: Literal[True],
    audit: Literal[False] = False,
    **flags: str | int | bool,
) -> PaperRun: ...


def torchrun(
    script: str | os.PathLike[str],
    *args: str,
    timeout_s: float = 300,
    stalled_s: float | None = 20,
    env: Mapping[str, str] | None = None,
    echo: bool = True,
    cluster: Cluster | str | None = None,
    paper: bool = False,
    audit: bool | int = False,
    **flags: str | int | bool,
) -> Run | PaperRun:
    """Run `script` under torchrun and return its `Run`.

    `nproc_per_node=2` is torchrun's `--nproc-per-node=2`; other flags work the same way. The script joins its
    process group itself, as it would in a shell. `values` are None: a script returns nothing.

    With `cluster`, such as "dgx-h100", it joins an emulated cluster, using all of its GPUs unless a flag says how many,
    and the run's timeline is in that cluster's virtual time. The script may be one for GPUs: `torch.cuda` answers as on
    that cluster, and CPU tensors stand for its tensors.

    With `audit`, the run's `audit` names silent faults, as in `worldsize.run`.

    With `paper` as well, the script runs on paper as rank 0 of that many, as in `worldsize.paper`, whose result is
    returned.

    Raises:
        ValueError: the script or cluster does not exist, torchrun does not accept a flag, `paper` has no cluster, or
            the ranks do not fit in memory.
        RankFailed: a rank failed and no restart was left; names the culprit.
        RunTimeout: the script was not done after `timeout_s` seconds, or for `stalled_s` seconds every rank waited in
            one call, its own or torch's; says who waits for whom.
        RunStopped: the stop button was pressed.
    """
    words = [f"--{name.replace('_', '-')}" + ("" if value is True else f"={value}") for name, value in flags.items()]
    if not paper:
        return command.run_script(
            words, script, list(args), timeout_s, stalled_s, dict(env or {}), echo, cluster, audit
        )
    if audit:
        raise ValueError("a script on paper moves no numbers that could be audited; leave out audit or paper")
    if cluster is None:
        raise ValueError('a script on paper needs a cluster on which it is priced, such as cluster="dgx-h100"')
    command.refuse_no_script(script)
    return on_paper(
        run_as_main.play_in,
        dict(env or {}),
        os.fspath(script),
        *args,
        world_size=command.world_size(Flags.parse(words), cluster),
        cluster=cluster,
        timeout_s=timeout_s,
        echo=echo,
    )
