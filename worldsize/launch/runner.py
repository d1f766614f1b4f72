"""`run`: run a function on real ranks, from a script or a notebook cell."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from worldsize.faults import Fault
from worldsize.hardware import Cluster
from worldsize.launch.display import live
from worldsize.launch.launcher import arguments, elastic, forked
from worldsize.launch.launcher.auditing import audited
from worldsize.launch.launcher.pickling import carry
from worldsize.launch.launcher.spec import Spec
from worldsize.launch.reports.result import Run


def run(
    fn: Callable[..., Any],
    *args: Any,
    world_size: int,
    each: Sequence[Sequence[Any]] | None = None,
    backend: str = "auto",
    timeout_s: float = 60,
    stalled_s: float | None = 20,
    echo: bool = True,
    cluster: Cluster | str | None = None,
    allow: Collection[str] | None = None,
    compute: str | float = "flops",
    faults: Sequence[Fault] = (),
    memory: bool = False,
    audit: bool | int = False,
) -> Run:
    """Run `fn(*args, *each[rank])` on `world_size` ranks, each in its own process.

    The default process group is up when the function starts: NCCL when there is a GPU for every rank, Gloo otherwise.
    The function may be defined in a notebook cell. It may return numbers, strings, lists, tuples, dicts with string
    keys, and tensors. With `echo`, what ranks print appears as it comes.

    `allow`, such as {"send", "recv"}, names the operations that may be used; real ranks then use Gloo.

    With `cluster`, such as `hardware.DGX_H100` or "dgx-h100", the ranks exchange the same data on an emulated cluster,
    and the run's timeline is in that cluster's virtual time. `compute` says how the ranks' own work is priced: "flops"
    (each operator on the cluster's GPU, using `worldsize.operators`), "measured" (this machine's CPU time), a number x
    (x times the measured time; 0.01 for a device a hundred times faster), or "none".
    `faults`, from `worldsize.faults`, happen on that cluster.

    With `memory`, the run's `memory` shows per rank the bytes that its tensors held, and what filled the peak. On an
    emulated cluster, a rank whose tensors need more memory than the cluster's GPU has then fails.

    With `audit`, ranks are observed, and the run's `audit` names silent faults: what trains and is wrong. A number k
    looks at every k-th optimizer step only, which costs less.

    Raises:
        ValueError: an argument is wrong, this machine cannot hold that many ranks, or the function cannot be pickled.
        RankFailed: a rank raised, exited or was killed; names the culprit.
        RunTimeout: the ranks were not done after `timeout_s` seconds, or for `stalled_s` seconds every rank that was
            not done waited in one call, its own or torch's; says who waits for whom.
        RunStopped: the stop button was pressed.
    """
    spec = Spec(
        fn=fn,
        args=args,
        world_size=world_size,
        each=each,
        backend=backend,
        timeout_s=timeout_s,
        stalled_s=stalled_s,
        echo=echo,
        cluster=cluster,
        allow=allow,
        compute=compute,
        faults=faults,
        memory=memory,
    )
    return audited(audit, spec.env, lambda env: launch(replace(spec, env=env)))


def launch(spec: Spec) -> Run:
    """Run a specification, including the fields that only the autograder uses.

    Raises:
        ValueError, RankFailed, RunTimeout, RunStopped: same as `run`.
    """
    arguments.refuse_bad_spec(spec)
    spec = replace(spec, world_size=arguments.whole_world_size(spec.world_size))
    carried = carry(spec.fn, spec.args, spec.each, spec.world_size)
    run_function = elastic.run_function if spec.launcher == "torchrun" else forked.run_function
    return run_function(spec, carried, live.choose_view(spec.echo))
