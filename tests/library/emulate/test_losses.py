"""Lost ranks of which the others hear, and waits that end after a time: in virtual time, and as torch reports them."""

import contextlib
import math
import random
import selectors
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import worldsize as ws
from worldsize import emulate, framing, hardware, pricing
from worldsize.emulate.launcher import server
from worldsize.emulate.launcher.bound import Bound
from worldsize.emulate.launcher.conductor import Conductor, OperationFailure, Post, TimedWait
from worldsize.emulate.launcher.server import Emulation
from worldsize.emulate.launcher.simulator import ClusterPrices, replay, times
from worldsize.emulate.protocol.messages import Posted
from worldsize.emulate.protocol.operations import ASK
from worldsize.emulate.protocol.record import COMPUTE, POST, TIMEOUT, WAIT, Operation, Step
from worldsize.faults import LostRank

DGX = hardware.DGX_H100
NUM_ITEMS = 1 << 20


def emulated(fn, *args, world_size=4, **kwargs):
    return ws.run(fn, *args, world_size=world_size, cluster=DGX, echo=False, compute="none", timeout_s=120, **kwargs)


def reduce_s(ranks):
    return pricing.price("all_reduce", 4 * NUM_ITEMS, ranks, DGX).time_s


# the order of things, by hand


class Played:
    """A conductor whose ranks are played by hand: what they do and post, and what they are answered."""

    def __init__(self, world_size):
        self.conductor = Conductor(world_size)
        self.ranks = tuple(range(world_size))
        self.num_posts = [0] * world_size

    def work(self, rank, duration_s):
        self.conductor.note(rank, [Step(COMPUTE, 0, duration_s)])

    def post(self, *args, **kwargs):
        """The ranks that this post answers, each with its failure."""
        return [(reply.rank, reply.failure) for reply in self.reply(*args, **kwargs)]

    def reply(self, rank, op, peer=None, ranks=None, is_waiting=True):
        """The replies to this post of a rank."""
        number = self._next(rank)
        body = b"" if op in ("recv", ASK) else bytes(4)
        ranks = self.ranks if ranks is None else ranks
        post = Post(rank, number, op, str(ranks), ranks, "uint8", len(body), body, peer, reduction="SUM")
        replies = self.conductor.post(post)
        if is_waiting:
            self.conductor.rest(rank, [number])
        return replies

    def wait(self, rank, awaited, timeout_s):
        wait = TimedWait(rank, self._next(rank), awaited, timeout_s, "")
        self.conductor.wait_within(wait)
        self.conductor.rest(rank, [wait.number])
        return wait

    def lose(self, rank, is_heard_after_s):
        self.conductor.lose(rank, self._next(rank), is_heard_after_s)

    def _next(self, rank):
        self.num_posts[rank] += 1
        self.conductor.note(rank, [Step(POST, self.num_posts[rank])])
        return self.num_posts[rank]

    def decide(self):
        """The ranks that are answered next, each with its failure."""
        conductor = self.conductor
        assert conductor.is_still
        replies = conductor.decide(times(conductor.steps, conductor.operations, PRICES))
        return sorted((reply.rank, reply.failure) for reply in replies)


class Route:
    """A way of one second, 4 bytes in another."""

    latency_s = 1.0
    hops = ("the one hop",)


class Cost:
    """Two seconds."""

    time_s, delay_s, sent_bytes_per_rank = 2.0, 0.0, 4.0


PRICES = ClusterPrices(lambda src, dst: Route(), lambda hop: 4.0, lambda operation: Cost())


def test_what_is_open_with_a_lost_rank_fails_when_that_is_heard_and_what_comes_later_at_once():
    played = Played(3)
    played.work(2, 5.0)
    played.lose(2, 2.0)
    played.post(0, "all_reduce")
    played.work(1, 9.0)
    played.post(1, "recv", peer=2)
    assert not played.conductor.is_stuck
    assert played.decide() == [(0, OperationFailure(7.0, (2,)))]
    played.work(0, 0.5)
    played.post(0, "send", peer=2)
    assert played.decide() == [(0, OperationFailure(7.0, (2,)))]  # at its own 0.5: the record has no wait
    played.post(0, "barrier", ranks=(0, 1))
    assert played.decide() == [(1, OperationFailure(7.0, (2,)))]
    assert played.post(1, "barrier", ranks=(0, 1)) == [(0, None), (1, None)]


def test_the_record_of_a_loss_gives_a_wait_until_it_was_heard():
    played = Played(2)
    played.work(1, 5.0)
    played.lose(1, 2.0)
    for number in (1, 2):
        played.post(0, "all_reduce")
        played.decide()
        played.conductor.note(0, [Step(WAIT, number), Step(COMPUTE, 0, 1.0)])
    timeline = replay(played.conductor.steps, played.conductor.operations, PRICES)
    assert [(event.kind, event.name, event.start_s, event.end_s) for event in timeline.of(0)] == [
        ("wait", "all_reduce", 0.0, 7.0),
        ("compute", "", 7.0, 8.0),
        ("compute", "", 8.0, 9.0),
    ]


def test_what_a_lost_rank_had_posted_is_carried_out_for_those_who_have_not_heard():
    played = Played(3)
    for peer in (0, 1):
        played.post(2, "send", peer=peer, is_waiting=False)
    played.lose(2, 0.0)
    assert played.post(0, "recv", peer=2) == [(2, None), (0, None)]
    played.post(1, "recv", peer=0)
    played.post(0, "all_reduce")
    assert played.decide() == [(0, OperationFailure(0.0, (2,)))]
    played.post(0, "send", peer=1)
    played.post(1, "all_reduce")
    assert played.post(0, "recv", peer=1) == []
    assert played.decide() == [(1, OperationFailure(0.0, (2,)))]
    assert played.post(1, "recv", peer=2) == []
    assert played.decide() == [(1, OperationFailure(0.0, (2,)))], "rank 1 has heard, whatever was sent to it before"


def test_a_post_that_has_failed_is_no_part_of_anything():
    played = Played(3)
    played.post(2, "all_reduce", is_waiting=False)
    played.lose(2, 1.0)
    played.post(0, "all_reduce")
    played.post(1, ASK, ranks=())
    assert played.decide() == [(1, None)]  # at 0.0
    played.work(1, 9.0)
    played.post(1, ASK, ranks=())
    assert played.decide() == [(0, OperationFailure(1.0, (2,)))]
    played.post(0, "recv", peer=1)
    assert played.decide() == [(1, None)]
    assert played.post(1, "all_reduce") == []
    assert played.decide() == [(1, OperationFailure(1.0, (2,)))]


def test_a_receive_from_any_rank_takes_what_was_sent_before_the_loss_was_heard():
    played = Played(3)
    played.work(2, 5.0)
    played.lose(2, 2.0)
    played.post(0, "recv")
    played.work(1, 6.0)
    played.post(1, "send", peer=0)
    assert played.decide() == [(0, None), (1, None)]
    played.conductor.note(0, [Step(WAIT, 1)])
    played.post(0, "recv")
    played.work(1, 6.0)
    played.post(1, "send", peer=0)
    assert played.decide() == [(0, OperationFailure(7.0, (2,)))]


def test_of_two_losses_the_first_is_heard_first():
    played = Played(3)
    played.work(1, 4.0)
    played.lose(1, 2.0)
    played.work(2, 1.0)
    played.lose(2, 4.0)
    played.post(0, "all_reduce")
    assert played.decide() == [(0, OperationFailure(5.0, (2,)))]
    played.post(0, "all_reduce", ranks=(0, 1))
    assert played.decide() == [(0, OperationFailure(6.0, (1,)))]


def test_a_lost_rank_asks_and_waits_no_more():
    played = Played(2)
    played.post(1, "recv", is_waiting=False)
    played.post(1, ASK, ranks=())
    played.wait(1, 1, 5.0)
    played.lose(1, 1.0)
    played.post(0, ASK, ranks=())
    assert played.decide() == [(0, None)]
    played.post(0, "send", peer=1)
    assert played.decide() == [(0, OperationFailure(1.0, (1,)))]
    assert not played.conductor.depends_on_time


@pytest.mark.parametrize(
    ("timeout_s", "failure"),
    [
        (9.5, OperationFailure(9.5, ())),
        (10.0, None),
        (8.0, OperationFailure(8.0, ())),
        (1.0, OperationFailure(1.0, (1,))),
    ],
)
def test_a_wait_ends_when_its_message_comes_or_its_time_is_over(timeout_s, failure):
    played = Played(2)
    played.post(0, "recv", peer=1, is_waiting=False)
    played.wait(0, 1, timeout_s)
    played.work(1, 8.0)
    late = played.post(1, "send", peer=0)
    assert late == [(1, None), (0, None)]
    played.conductor.leave(1)
    assert played.decide() == [(0, failure)]


def test_a_wait_ends_before_what_happens_later_and_the_wait_may_be_repeated():
    played = Played(3)
    played.post(0, "all_reduce", is_waiting=False)
    played.wait(0, 1, 3.0)
    played.work(1, 4.0)
    played.post(1, ASK, ranks=())
    played.work(2, 1.0)
    played.post(2, "all_reduce")
    assert played.decide() == [(0, OperationFailure(3.0, (1,)))]
    played.wait(0, 1, 3.0)
    assert played.decide() == [(1, None)]
    played.post(1, "all_reduce")  # at 4.0, and it takes 2.0
    for rank in (1, 2):
        played.conductor.leave(rank)
    assert played.decide() == [(0, None)]
    played.conductor.note(0, [Step(WAIT, 1)])
    timeline = replay(played.conductor.steps, played.conductor.operations, PRICES)
    assert [(event.start_s, event.end_s) for event in timeline.of(0) if event.kind == "wait"] == [
        (0.0, 3.0),
        (3.0, 6.0),
    ]


def test_a_loss_that_is_heard_in_time_ends_a_wait():
    for timeout_s, failures in ((6.0, [OperationFailure(6.0, (1,))]), (7.0, [OperationFailure(7.0, (1,)), None])):
        played = Played(2)
        played.work(1, 5.0)
        played.lose(1, 2.0)
        played.post(0, "all_reduce", is_waiting=False)
        played.wait(0, 1, timeout_s)
        assert [played.decide() for _ in failures] == [[(0, failure)] for failure in failures]


# whatever order the machine runs the ranks in


def draw_programs(rng, world_size):
    """Steps by rank: work, and parts in common operations, now and then left out or waited for no longer than so."""
    programs = [[] for _ in range(world_size)]
    for _ in range(10):
        op = rng.choice(["all_reduce", "send"])
        members = rng.sample(range(world_size), 2 if op == "send" else rng.randrange(2, world_size + 1))
        for rank in members:
            programs[rank].append(("work", 3 * rng.random()))
            is_receiver = op == "send" and rank == members[1]
            peer = None if op == "all_reduce" or (is_receiver and rng.random() < 0.3) else sum(members) - rank
            call = ("recv" if is_receiver else op, peer, None if op == "send" else tuple(sorted(members)))
            if rng.random() < 0.95:
                programs[rank].append(("call", *call, rng.random() < 0.6))
            if rng.random() < 0.2:
                programs[rank].append(("within", 4 * rng.random()))
            if rng.random() < 0.2:
                programs[rank].append(("call", ASK, None, (), True))
    return programs


def play(programs, losses, order):
    """What each rank is answered, and the timeline, when `order` draws which rank goes on next."""
    played = Played(len(programs))
    conductor, place = played.conductor, [0] * len(programs)
    answers = [{} for _ in programs]

    def take(replies):
        for reply in replies:
            answers[reply.rank][reply.number] = reply.failure or (reply.src, reply.body)

    def go_on(rank):
        if place[rank] == losses.get(rank, len(programs[rank])):
            if rank in losses:
                played.lose(rank, 1.0)
            else:
                conductor.leave(rank)
            return
        kind, *what = programs[rank][place[rank]]
        place[rank] += 1
        if kind == "work":
            played.work(rank, *what)
        elif kind == "call":
            take(played.reply(rank, *what))
            op, *_, is_waiting = what
            if is_waiting and op != ASK:
                waited_for[rank] = played.num_posts[rank]
        elif played.num_posts[rank]:
            waits.append(played.wait(rank, played.num_posts[rank], *what))

    waits = []
    waited_for = {}
    while not conductor.is_stuck:
        for rank, number in list(waited_for.items()):
            if number in answers[rank]:
                conductor.note(rank, [Step(WAIT, waited_for.pop(rank))])
        ready = [rank for rank in played.ranks if rank not in conductor._still and rank not in conductor._over]
        if ready:
            go_on(order.choice(ready))
        elif not conductor._still:
            break
        else:
            take(conductor.decide(times(conductor.steps, conductor.operations, PRICES)))
    replayed = times(conductor.steps, conductor.operations, PRICES)
    done_s = [[replayed.done_s(rank, number + 1) for number in range(played.num_posts[rank])] for rank in played.ranks]
    for wait in waits:  # nothing that came later has changed what was seen
        if wait.number in answers[wait.rank]:
            end_s = replayed.posted_s(wait.rank, wait.number) + wait.timeout_s
            is_late = replayed.done_s(wait.rank, wait.awaited) > end_s
            assert is_late == isinstance(answers[wait.rank][wait.number], OperationFailure)
    return answers, done_s


@pytest.mark.parametrize("seed", range(40))
def test_what_is_heard_does_not_depend_on_the_order_in_which_the_machine_runs_the_ranks(seed):
    rng = random.Random(seed)
    world_size = rng.randrange(2, 5)
    programs = draw_programs(rng, world_size)
    losses = {rank: rng.randrange(1, 16) for rank in range(world_size) if rng.random() < 0.3}
    first, *others = (play(programs, losses, random.Random(order)) for order in range(6))
    assert all(other == first for other in others)


# the same, by ranks


def train(num_steps, lost):
    """What this rank saw: the sum of each step, when it heard, and when it was done."""
    group, members, heard_s, sums = None, list(range(dist.get_world_size())), None, []
    while len(sums) < num_steps:
        emulate.spend(1.0)
        gradient = torch.full((NUM_ITEMS,), 1.0 + dist.get_rank())
        try:
            dist.all_reduce(gradient, group=group)
        except dist.DistBackendError as error:
            heard_s, said = emulate.elapsed(), str(error)
            members.remove(lost)
            group = dist.new_group(members, use_local_synchronization=True)
            continue
        sums.append(float(gradient[0]))
    return {"sums": sums, "heard_s": heard_s, "said": said, "end_s": emulate.elapsed()}


def test_survivors_hear_of_a_loss_regroup_and_redo_the_step():
    run = emulated(train, 5, 2, faults=[LostRank(2, after_calls=3, is_heard_after_s=0.5)])
    time_s = 0.0
    for _ in range(3):
        time_s = time_s + 1.0 + reduce_s(range(4))
    lost_s = time_s + 1.0
    heard_s = time_s = lost_s + 0.5
    for _ in range(2):
        time_s = time_s + 1.0 + reduce_s([0, 1, 3])
    assert run.lost_s == {2: lost_s} and run.values[2] is None and run.states[2] == "was lost, as planned"
    for rank in (0, 1, 3):
        said = "all_reduce in the group of ranks 0 to 3 failed: rank 2 was lost, as was heard at"
        assert run.values[rank].pop("said") == f"{said} {heard_s:g} s of virtual time"
        assert run.values[rank] == {"sums": [10.0] * 3 + [7.0] * 2, "heard_s": heard_s, "end_s": time_s}
        waits = [event for event in run.timeline.of(rank) if event.kind == "wait" and event.end_s == heard_s]
        assert [(event.name, event.start_s, event.peers) for event in waits] == [("all_reduce", lost_s, (0, 1, 2, 3))]
    assert run.timeline.end_s == time_s
    gone = [event for event in run.timeline.events if event.kind == "lost"]
    assert [(event.rank, event.start_s, event.end_s) for event in gone] == [(2, lost_s, time_s)]
    assert {event.rank for event in run.timeline.critical_path()} <= {0, 1, 3}
    assert repr(run).endswith(f", rank 2 lost at {lost_s:g} s)")


def begin():
    """A pair of ranks that are not lost, and a layer under DDP; the last rank then works for a second."""
    pair = dist.new_group([0, 1])
    layer = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64), bucket_cap_mb=0.001)
    if dist.get_rank() == 2:
        emulate.spend(1.0)
    return pair, layer


def meet_a_lost_rank():
    """What each way to meet it gives, while the others go on talking to each other; and when all was over."""
    pair, layer = begin()
    began_s, gave = emulate.elapsed(), {}
    ways = {
        "backward": lambda: layer(torch.ones(1, 64)).sum().backward(),
        "call": lambda: dist.all_reduce(torch.ones(2)),
        "wait": lambda: dist.all_reduce(torch.ones(2), async_op=True).wait(),
        "future": lambda: dist.all_reduce(torch.ones(2), async_op=True).get_future().wait(),
        "then": lambda: dist.all_reduce(torch.ones(2), async_op=True).get_future().then(lambda one: one.value()).wait(),
        "send": lambda: dist.send(torch.ones(2), 2),
        "recv": lambda: dist.recv(torch.ones(2), 2),
        "any": lambda: dist.recv(torch.ones(2)),
        "objects": lambda: dist.all_gather_object([None] * 3, "mine"),
    }
    for name, way in ways.items():
        try:
            way()
        except dist.DistBackendError as error:
            gave[name] = str(error)
        talk = dist.send if dist.get_rank() == 0 else dist.recv
        talk(torch.ones(0), 1 - dist.get_rank())
    work = dist.broadcast(torch.ones(2), 0, async_op=True)
    dist.barrier(group=pair)
    end_s = emulate.elapsed()
    return gave, [work.is_completed(), work.is_success()], began_s, end_s


def test_every_way_to_meet_a_lost_rank_raises_and_survivors_go_on():
    num_calls = sum(event.kind == "communication" for event in emulated(begin_alone, world_size=3).timeline.of(2))
    run = emulated(meet_a_lost_rank, world_size=3, faults=[LostRank(2, num_calls, is_heard_after_s=0.5)])
    assert run.values[2] is None
    for gave, polled, began_s, end_s in run.values[:2]:
        heard = f"failed: rank 2 was lost, as was heard at {run.lost_s[2] + 0.5:g} s of virtual time"
        reduced = f"all_reduce in the group of ranks 0 to 2 {heard}"
        assert gave == {
            **dict.fromkeys(["backward", "call", "wait", "future", "then"], reduced),
            "send": f"send to rank 2 {heard}",
            "recv": f"recv from rank 2 {heard}",
            "any": f"recv from any of ranks 0 to 2 {heard}",
            "objects": f"all_gather in the group of ranks 0 to 2 {heard}",
        }
        assert polled == [True, False]
        assert run.lost_s[2] == began_s + 1.0 and run.lost_s[2] + 0.5 < end_s < run.lost_s[2] + 0.501


def reduce_twice(_state, bucket):
    """A hook of DDP that calls again when the first call is done."""

    def again(done):
        (tensor,) = done.value()
        dist.all_reduce(tensor)
        return tensor

    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(again)


def train_with_a_hook():
    layer = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    layer.register_comm_hook(None, reduce_twice)
    num_done = 0
    try:
        for _ in range(3):
            layer(torch.ones(1, 4)).sum().backward()
            num_done += 1
    except dist.DistBackendError as error:
        return num_done, str(error), emulate.elapsed()


def test_a_hook_that_calls_again_fails_in_backward_too():
    calls = [event for event in emulated(train_with_a_hook, world_size=3).timeline.of(2) if event.kind != "wait"]
    reduced = [place for place, event in enumerate(calls) if event.name == "all_reduce"]
    assert len(reduced) == 6
    for place in reduced[2:4]:  # the first and the second call of the second step
        run = emulated(train_with_a_hook, world_size=3, faults=[LostRank(2, place, is_heard_after_s=0.5)])
        (num_done, said, heard_s), other, lost = run.values
        assert (num_done, heard_s, lost) == (1, run.lost_s[2] + 0.5, None) and other == run.values[0]
        assert said.startswith("all_reduce in the group of ranks 0 to 2 failed: rank 2 was lost")


def wait_on_a_stream(timeout_s):
    """What the program itself hears, and when, of a collective that it waits for on a stream, as FSDP2 does."""
    group = dist.new_group(timeout=None if timeout_s is None else timedelta(seconds=timeout_s))
    try:
        with torch.cpu.stream(torch.cpu.Stream()):
            emulate.spend(2.0 if dist.get_rank() == 1 else 0.25)
            dist.all_reduce(torch.ones(2), group=group)
    except dist.DistBackendError as error:
        return str(error), emulate.elapsed()


@pytest.mark.parametrize(
    ("timeout_s", "why", "time_s"), [(None, "rank 1 was lost", 2.5), (1.0, "rank 1 had not come", 1.25)]
)
def test_the_program_itself_hears_what_happens_on_a_stream(timeout_s, why, time_s):
    losses = [LostRank(1, after_calls=0, is_heard_after_s=0.5)]
    said, heard_s = emulated(wait_on_a_stream, timeout_s, world_size=2, faults=losses).values[0]
    assert why in said and heard_s == time_s


def begin_alone():
    begin()


def hold_and_meet():
    held = torch.ones(1_000)
    with contextlib.suppress(dist.DistBackendError):
        dist.barrier()
    return held.nbytes


def test_memory_is_by_rank_also_where_one_is_lost():
    run = emulated(hold_and_meet, world_size=3, memory=True, faults=[LostRank(1, after_calls=0, is_heard_after_s=1.0)])
    assert run.values == [4_000, None, 4_000] and len(run.grown_bytes) in (0, 3)
    assert [use.most_bytes >= 4_000 for use in run.memory] == [True, False, True]


def never_catch():
    for _ in range(3):
        emulate.spend(1.0)
        dist.barrier()


def test_a_survivor_that_does_not_catch_the_error_fails_the_run_by_itself():
    with pytest.raises(ws.RankFailed) as caught:
        emulated(never_catch, faults=[LostRank(1, after_calls=0, is_heard_after_s=2.0)])
    report = str(caught.value)
    said = "DistBackendError: barrier in the group of ranks 0 to 3 failed: rank 1 was lost, as was heard at 3 s"
    assert f"Rank {caught.value.failures[0].rank} of 4 failed with {said} of virtual time\n" in report
    assert "\nRank 1 was lost at 1 s of virtual time, as planned.\n" in report
    assert "dist.barrier()" in report
    assert sorted(failure.rank for failure in caught.value.failures) == [0, 2, 3]


def test_where_nobody_is_left_to_hear_the_run_fails():
    losses = [LostRank(rank, after_calls=0, is_heard_after_s=1.0) for rank in range(2)]
    with pytest.raises(ws.RankFailed, match="a planned loss: no other rank is left to hear of it"):
        emulated(never_catch, world_size=2, faults=losses)


def test_a_rank_that_has_posted_what_it_is_lost_at_does_not_leave_but_is_lost():
    losses = [LostRank(0, after_calls=0, is_heard_after_s=1.0)]
    emulation = Emulation(2, "dgx-h100", None, "none", losses)
    end, lost = emulation._connections[0].theirs.dup(), []
    with selectors.DefaultSelector() as selector, end:
        emulation.listen(selector, lambda *fault: pytest.fail(str(fault)), lost.append)
        end.sendall(framing.pack_header(Posted(1, "barrier", "0", "", 0, ranks=(0, 1)).to_bytes()))
        emulation.leave(0)  # its report, by the other socket, may be read first
    assert lost == [0] and emulation.lost_s() == {0: 0.0}
    emulation.close()


def crash(when):
    try:
        if dist.get_rank() == 1 and when == "before":
            raise ValueError("my own fault")
        dist.barrier(async_op=True)
        if dist.get_rank() == 1:
            raise ValueError("my own fault")
        dist.barrier()
    except dist.DistBackendError:
        return "heard"


def test_a_crash_before_the_loss_is_a_crash_and_one_after_it_never_happens():
    losses = [LostRank(1, after_calls=0, is_heard_after_s=1.0)]
    with pytest.raises(ws.RankFailed, match="Rank 1 of 2 failed with ValueError: my own fault"):
        emulated(crash, "before", world_size=2, faults=losses)
    assert emulated(crash, "after", world_size=2, faults=losses).values == ["heard", None]


def wait_for_each_other(timeout_s):
    """What each timed wait gives on rank 0, which waits for rank 1, and when."""
    timeout = None if timeout_s is None else timedelta(seconds=timeout_s)
    group, gave = dist.new_group([0, 1], timeout=timeout), []
    if dist.get_rank() == 1:
        emulate.spend(3.0)

    def wait_for(work, *timeouts):
        for one in timeouts:
            try:
                work.wait(*([] if one is None else [one]))
            except dist.DistBackendError as error:
                gave.append((str(error), emulate.elapsed()))

    message = torch.ones(1)
    wait_for((dist.irecv if dist.get_rank() == 0 else dist.isend)(message, 1 - dist.get_rank()), timeout, None)
    dist.barrier()
    if dist.get_rank() == 1:
        emulate.spend(3.0)
    total = torch.ones(3)
    wait_for(dist.all_reduce(total, group=group, async_op=True), None, timedelta(seconds=10))
    return gave, float(total[0])


def test_a_wait_for_too_short_a_time_raises_in_virtual_time_and_one_that_is_long_enough_changes_nothing():
    free, long, short = (emulated(wait_for_each_other, timeout_s, world_size=2) for timeout_s in (None, 10.0, 2.0))
    assert free.values == long.values == [([], 2.0)] * 2
    assert long.timeline.to_json() == free.timeline.to_json()
    (first, first_s), (second, second_s) = short.values[0][0]
    assert (
        first == "[emulated cluster] Timed out waiting 2000ms for recv from rank 1: rank 1 had not come"
        and first_s == 2.0
    )
    assert second == (
        "[emulated cluster] Timed out waiting 2000ms for all_reduce in the group of ranks 0 and 1: rank 1 had not come"
    )
    barrier_s = max(event.end_s for event in short.timeline.events if event.name == "barrier")
    assert second_s == barrier_s + 2.0
    assert short.values[1] == ([], 2.0) and short.values[0][1] == 2.0
    assert short.timeline.end_s == free.timeline.end_s


def miss_a_barrier():
    """What rank 0 is told of those that miss a barrier, and rank 3 of one that DDP waits for."""
    layer = torch.nn.Linear(4, 4)
    group = dist.new_group(timeout=timedelta(seconds=2))
    parallel = torch.nn.parallel.DistributedDataParallel(layer, process_group=group)
    dist.barrier()
    rank, gave = dist.get_rank(), {}
    emulate.spend(10.0 * (rank in (1, 2)))
    for name, way in {
        "monitored": lambda: dist.monitored_barrier(timeout=timedelta(seconds=3)),
        "backward": lambda: parallel(torch.ones(1, 4)).sum().backward(),
    }.items():
        began_s = emulate.elapsed()
        try:
            way()
        except RuntimeError as error:
            gave[name] = (str(error), emulate.elapsed() - began_s)
    return gave


def test_who_misses_a_barrier_or_a_backward_is_named():
    run = emulated(miss_a_barrier)
    assert run.values[0]["monitored"][0] == "[Rank 0]: Rank 1 failed to pass monitoredBarrier in 3000 ms"
    for rank in (1, 2, 3):
        assert run.values[rank]["monitored"][0].startswith(f"Rank {rank} successfully reached monitoredBarrier, but")
    for rank in (0, 3):
        (_, took_s), (in_backward, backward_s) = run.values[rank]["monitored"], run.values[rank]["backward"]
        assert in_backward == (
            "[emulated cluster] Timed out waiting 2000ms for all_reduce in the group of ranks 0 to 3: ranks 1 and 2 "
            "had not come"
        )
        assert (took_s, backward_s) == pytest.approx((3.0, 2.0), rel=1e-9)
    for rank in (1, 2):
        assert "backward" not in run.values[rank] and run.values[rank]["monitored"][1] == 0.0


def reduce_often(num_times):
    group = dist.new_group(timeout=timedelta(seconds=30))
    for _ in range(num_times):
        dist.all_reduce(torch.ones(8), group=group)
    return emulate.elapsed()


def test_waits_that_surely_end_in_time_replay_nothing(monkeypatch):
    num_replays, replay = [], server.times
    monkeypatch.setattr(server, "times", lambda *args: num_replays.append(1) or replay(*args))
    times_s = [emulated(reduce_often, num_times, world_size=2).values[0] for num_times in (1, 100)]
    assert times_s[1] == pytest.approx(100 * times_s[0])
    assert len(num_replays) == 2  # each for `elapsed`


@pytest.mark.parametrize(
    ("record", "most_s"),
    [
        ([[Step(COMPUTE, 0, 2.0), Step(POST, 1)], [Step(COMPUTE, 0, 1.0), Step(TIMEOUT, 1, 0.5)]], 3.5 + 0.25),
        ([[Step("to host", 100, 0.0)], []], math.inf),
    ],
)
def test_a_bound_adds_up_all_that_is_recorded(record, most_s):
    bound = Bound(lambda one: 0.25)
    operations = [Operation("all_reduce", (0, 1), 4)]
    assert bound.of([[], []], []) == 0.0
    assert bound.of(record, operations) == bound.of(record, operations) == most_s
    assert bound.of(record, [*operations, Operation("send", (0, 1), 4)]) == math.inf


def test_a_run_says_which_clock_is_which():
    run = emulated(never_lost, world_size=2)
    assert repr(run).startswith(f"Run(2 ranks on the emulated {DGX.name}, 1.50 s of virtual time, ")
    assert repr(run).endswith(" s here)")


def never_lost():
    emulate.spend(1.5)
