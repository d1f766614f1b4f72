"""The code of a process that represents one rank of a job on paper."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from worldsize.gpus import tensors
from worldsize.gpus.answers import Gpus
from worldsize.hardware import Cluster
from worldsize.launch.worker import call_tracer, spans
from worldsize.paper import (
    files,
    group,
    no_data,
    node_questions,
    operator_log,
    reducer,
    refusals,
    threads,
    torch_internals,
)
from worldsize.paper.levels import LevelMeter
from worldsize.paper.record import RankRecord
from worldsize.paper.recorder import Recorder, Unobserved
from worldsize.paper.side import NeedsRanks, Side


def record(
    fn: Callable[..., Any], args: Sequence[Any], world_size: int, cluster: Cluster, ranks: Sequence[int]
) -> bytes:
    """Record `fn(*args)` as one of these ranks runs it, and return JSON; see `worldsize.paper.record`.

    This process is a rank of `worldsize.run`, whose group it leaves. If the program needs data of ranks that are not
    recorded, return a JSON list of the ranks that must be recorded together.
    """
    try:
        text = _recorded(fn, args, world_size, cluster, ranks).to_json()
    except NeedsRanks as error:
        text = json.dumps(error.ranks)
    return text.encode()


def _recorded(
    fn: Callable[..., Any], args: Sequence[Any], world_size: int, cluster: Cluster, ranks: Sequence[int]
) -> RankRecord:
    rank, side = ranks[dist.get_rank()], Side(ranks)
    dist.destroy_process_group()
    _be(rank, world_size, cluster.gpus_per_node)
    recorder = Recorder(rank, world_size, Unobserved(), side, cluster.missing_transfers())
    gpus = Gpus(
        cluster.gpu, cluster.gpus_per_node, rank % cluster.gpus_per_node, recorder.note_count, recorder.note_kind
    )
    tensors.put_on_cpu()
    torch_internals.keep_host_work_real()
    torch_internals.trace_nothing()
    torch_internals.convert_in_place()
    torch_internals.truncate_without_looking()
    operator_log.answer_unread()
    no_data.refuse_copies_of_data()
    files.write_nothing(recorder)
    refusals.refuse_offload()
    torch_internals.shard_without_others()
    torch_internals.infer_shapes_for_real()
    torch_internals.give_addresses()
    reducer.install()
    group.join(recorder, gpus)
    node_questions.report_questions(recorder.note_count)
    spans.stop(recorder.span)
    call_tracer.refuse_gaps()
    refused = threads.refuse_operators()
    start_s = time.process_time()
    with _on_paper(recorder) as meter:
        with refusals.saying_why():
            value = fn(*args)
        if refused:
            raise refused[0]
        recorder._note_work()
        memory, (places, levels) = meter.use(), meter.levels()
        del value
    return RankRecord(
        rank=rank,
        world_size=world_size,
        steps=recorder.steps,
        works=list(recorder.log.works),
        batches=recorder.batches,
        posts=recorder.posts,
        groups=list(recorder.groups),
        boundaries=recorder.boundaries,
        memory=memory,
        places=places,
        levels=levels,
        num_operators=recorder.log.num_operators,
        without_flops=recorder.log.without_flops,
        local_world_size=int(os.environ["LOCAL_WORLD_SIZE"]) if recorder.asked_at else 0,
        asked_at=recorder.asked_at,
        gpu=cluster.gpu.name if recorder.asked_kind_at else "",
        asked_kind_at=recorder.asked_kind_at,
        cpu_s=time.process_time() - start_s,
        peak_process_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        * (1 if sys.platform == "darwin" else 1024),
    )


def _be(rank: int, world_size: int, local_world_size: int) -> None:
    """Set the environment variables of this rank."""
    local_world_size = min(local_world_size, world_size)
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank % local_world_size),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(local_world_size),
    }


@contextmanager
def _on_paper(recorder: Recorder) -> Iterator[LevelMeter]:
    """Make tensors fake inside the block and record the operations on them."""
    with ExitStack() as stack:
        for handle in (
            register_module_forward_pre_hook(lambda _module, _args: recorder.begin()),
            register_optimizer_step_pre_hook(lambda *_: recorder.begin_update()),
            register_optimizer_step_post_hook(lambda optimizer, *_: recorder.end_update(optimizer)),
        ):
            stack.callback(handle.remove)
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        recorder.log.start()
        stack.callback(recorder.log.__exit__, None, None, None)
        yield stack.enter_context(LevelMeter(lambda: recorder.log.phase, counts_fake=True))
