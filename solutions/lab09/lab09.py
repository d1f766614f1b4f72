# %% [markdown]
# # Lab 9. Pipeline schedules
#
# A model that is too large for one GPU can be cut across its layers into **stages**, one or several
# on each rank. A batch is cut into **micro-batches**, which go through the stages one behind the
# other. Which rank works on what, and when, is the **schedule**. It decides how long ranks are idle
# (the **bubble**), and how many micro-batches' activations a rank holds (those **in flight**). In
# this lab schedules are data: you generate them, run them on ranks, and search for a better one.
#
# ```text
# F forward, B backward (twice as long); 3 ranks, 5 micro-batches
#
# GPipe  rank 0  F0F1F2F3F4            B0  B1  B2  B3  B4     all 5 in flight
#        rank 1    F0F1F2F3F4      B0  B1  B2  B3  B4
#        rank 2      F0F1F2F3F4B0  B1  B2  B3  B4
#
# 1F1B   rank 0  F0F1F2        B0  F3B1  F4B2    B3    B4     3 in flight
#        rank 1    F0F1    B0  F2B1  F3B2  F4B3    B4         2
#        rank 2      F0B0  F1B1  F2B2  F3B3  F4B4             1
# ```
#
# | Function | What it does | Points | Time | Difficulty |
# |---|---|---|---|---|
# | `gpipe` | all forward passes, then all backward passes | 2 | 15 min | easy |
# | `one_f_one_b` | as short, with fewer micro-batches in flight | 4 | 30 min | medium |
# | `interleaved` | several stages on each rank, and a smaller bubble | 4 | 50 min | hard |
# | `find_circle` | ranks that wait for each other for ever | 3 | 30 min | medium |
# | `run_schedule` | a schedule on ranks, with messages and gradients | 7 | 75 min | hard |
# | `balance` | layers of unequal cost on stages | 2 | 20 min | easy |
# | `shortest` | open-ended: the shortest schedule that fits in memory | 5 | 75 min | hard |
# | `in_words` | questions that you answer in words | 3 | 30 min | medium |
#
# Work in this order. Each part has a check below it and folded hints above it: the first hint says
# where to look, the next one how to do it.
#
# Each docstring is a contract: everything that it promises is graded, and nothing else. Schedules
# are played by the checks, so every legal order that is as short and holds as little gets full
# points. On ranks, the checks read **the messages**: which micro-batch goes to whom, with which
# numbers, in which order. What a rank says of its own time or order gives no points. Each function
# is graded with correct versions of the others, so that a mistake costs points only once.
#
# Of the operations of `torch.distributed`, sends and receives are allowed, in all their forms.
# `torch.distributed.pipelining` is refused. The same inputs must give the same bits in every run,
# so use no clock, no threads or other processes, no unseeded generator, and ask no message whether
# it is done (`is_completed`).

# %% setup
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn

import worldsize as ws
from worldsize import emulate, models
from worldsize.check import CheckFailed, expect_close
from worldsize.timeline import Event, Timeline

EMULATED = {
    "cluster": "dgx-h100",
    "compute": "none",
    "echo": False,
    "allow": {"send", "recv"},
}


def show(picture):
    from IPython.display import display  # here and not above: the ranks need neither

    display(picture)


ws.run(
    dist.get_rank, world_size=2, **EMULATED
)  # the first run loads torch: the checks are then quick

# %% [markdown]
# The next cell is given. A schedule is a list of lists: `schedule[rank]` has the rank's actions in
# order. Stages are numbered from the model's first layers to its last ones, and **stage s is on
# rank s % num_ranks**. The kinds of actions have torch's names:
#
# | kind | what it is | what must be done before |
# |---|---|---|
# | F | forward | F of the stage before |
# | B | backward, whole | F of this stage, B of the stage behind |
# | I | backward, gradient of the *input* only | F of this stage, I of the stage behind |
# | W | backward, gradients of the *weights* only | I of this stage |
#
# B is I and W in one; I and W are needed in the last part only. `play` runs a schedule on paper:
# each rank starts its next action as soon as it is free and everything before is done. It raises
# `CheckFailed` if the schedule is not legal. Use it to look at your own schedules, as the checks
# do.


# %% actions
class Action(NamedTuple):
    """What a rank does with one micro-batch in one stage; both are counted from 0."""

    kind: str
    stage: int
    micro_batch: int


class Played(NamedTuple):
    """A schedule on paper: when each action ran, and each rank's most micro-batches in flight.

    A micro-batch is in flight in a stage from the beginning of its F to the end of its B or W.
    """

    timeline: Timeline
    in_flight: list[int]


NAMES = {"F": "forward", "B": "backward", "I": "backward", "W": "weight"}


def needed_before(action, num_stages):
    """The actions that must be done before this one."""
    kind, stage, number = action
    if kind == "F":
        return [Action("F", stage - 1, number)] if stage > 0 else []
    if kind == "W":
        return [Action("I", stage, number)]
    behind = [Action(kind, stage + 1, number)] if stage < num_stages - 1 else []
    return [Action("F", stage, number), *behind]


def play(schedule, num_stages, num_micro_batches, time_s):
    """Run a schedule on paper; `time_s` has the time of each kind of action."""
    num_ranks, done_s, events = len(schedule), {}, []
    next_place, free_s, in_flight = [0] * num_ranks, [0.0] * num_ranks, [0] * num_ranks
    most, moved = [0] * num_ranks, True
    while moved:
        moved = False
        for rank, actions in enumerate(schedule):
            while next_place[rank] < len(actions):
                action = actions[next_place[rank]]
                before = needed_before(action, num_stages)
                if action.stage % num_ranks != rank or action in done_s:
                    raise CheckFailed("each action once, on its own rank", f"{action} on {rank}")
                if any(one not in done_s for one in before):
                    break
                start_s = max([free_s[rank], *(done_s[one] for one in before)])
                done_s[action] = free_s[rank] = start_s + time_s[action.kind]
                name = f"{action.kind}{action.micro_batch}"
                kind = NAMES[action.kind]
                events.append(Event(rank, "compute", kind, name, start_s, free_s[rank]))
                in_flight[rank] += action.kind == "F"
                most[rank] = max(most[rank], in_flight[rank])
                in_flight[rank] -= action.kind in "BW"
                next_place[rank] += 1
                moved = True
    stuck = [
        f"rank {rank} at {actions[place].kind}{actions[place].micro_batch}"
        for rank, (actions, place) in enumerate(zip(schedule, next_place, strict=True))
        if place < len(actions)
    ]
    if stuck:
        hint = "Something that comes later in the schedule would have to be done first."
        raise CheckFailed("all actions to run", f"no more progress: {', '.join(stuck)}", hint)
    kinds = "FB" if "B" in time_s else "FIW"
    if len(done_s) != len(kinds) * num_stages * num_micro_batches:
        expected = f"{' and '.join(kinds)} of each micro-batch in each stage"
        raise CheckFailed(expected, f"{len(done_s)} actions")
    return Played(Timeline.of_events(events), most)


# %% [markdown]
# ## 1. Warm-up: GPipe
#
# The simplest schedule: all forward passes, then all backward passes (Huang et al. 2019, *GPipe*).
# One step takes (m + p - 1)(f + b) with p stages, m micro-batches, and times f and b of F and B. So
# a share of (p - 1)/(m + p - 1) of all time is the bubble.
#
# <details><summary>Hint 1: where to look</summary>
#
# In GPipe every rank has the same list, except for the number of its stage.
#
# </details>
# <details><summary>Hint 2: how</summary>
#
# A list comprehension over the kinds "F" and "B" and the micro-batches, for each rank.
#
# </details>


# %% gpipe tags=["solution"]
def gpipe(num_ranks: int, num_micro_batches: int) -> list[list[Action]]:
    """GPipe's schedule, with one stage on each rank.

    - Each rank does F of all micro-batches, and then B of all micro-batches.
    - With times f and b for each F and B, the last action ends at (m + p - 1)(f + b), for p ranks
      and m micro-batches. Every rank has all m in flight.
    - There may be one rank, one micro-batch, and fewer micro-batches than ranks.

    Example: gpipe(2, 1) is [[F of stage 0, B of stage 0], [F of stage 1, B of stage 1]], all with
    micro-batch 0.
    """
    ### BEGIN SOLUTION
    numbers = range(num_micro_batches)
    return [
        [Action(kind, rank, number) for kind in "FB" for number in numbers]
        for rank in range(num_ranks)
    ]
    ### END SOLUTION


# %% check_gpipe points=2
def check_gpipe():
    from worldsize import draw

    time_s = {"F": 1e-3, "B": 2e-3}
    for num_ranks, num in ((1, 1), (2, 1), (3, 5), (5, 3), (4, 8)):
        schedule = gpipe(num_ranks, num)
        played = play(schedule, num_ranks, num, time_s)
        for rank, actions in enumerate(schedule):
            if "".join(one.kind for one in actions) != "F" * num + "B" * num:
                hint = "First all F of a rank, then all of its B."
                raise CheckFailed(f"{num} F and then {num} B on rank {rank}", "another order", hint)
        wanted_s = (num + num_ranks - 1) * 3e-3
        hint = "All ranks take the micro-batches in the same order in F, and the same in B."
        what = f"the length with {num_ranks} ranks and {num} micro-batches"
        expect_close(played.timeline.end_s, wanted_s, what, hint, atol=1e-9)
    show(draw.timeline(played.timeline, title="GPipe, 4 ranks and 8 micro-batches, on paper"))
    bubble = played.timeline.bubble_fraction()
    print(f"gpipe: {bubble:.1%} bubble with 4 ranks and 8 micro-batches, and 8 in flight.")


check_gpipe()

# %% [markdown]
# ## 2. One forward, one backward
#
# GPipe holds the activations of the whole batch. But the last stage could do B of a micro-batch
# right after its F. In **1F1B** each rank first does as many F as are needed until the first
# gradient comes back, then F and B in turn, and in the end the B that are left. The bubble is the
# same, and at most p micro-batches are in flight (Narayanan et al. 2021, *Efficient Large-Scale
# Language Model Training on GPU Clusters*, section 2.2.1).
#
# Fewer micro-batches than stages are legal too. In January 2025 a job with 8 stages and one
# micro-batch hung in its warm-up (torchtitan issue 775); torch now refuses such a schedule.
#
# <details><summary>Hint 1: where to look</summary>
#
# In the picture at the top, how many F does each rank do before its first B? On which rank is it
# one? One of these F belongs to the turns of F and B.
#
# </details>
# <details><summary>Hint 2: how</summary>
#
# Rank r has p - 1 - r forward passes ahead of the turns, or m if that is less. Then the next F and
# the next B in turn until there is no F left.
#
# </details>


# %% one_f_one_b tags=["solution"]
def one_f_one_b(num_ranks: int, num_micro_batches: int) -> list[list[Action]]:
    """The schedule 1F1B, with one stage on each rank.

    - With times f and b for each F and B, it is as short as GPipe's: the last action ends at
      (m + p - 1)(f + b), for p ranks and m micro-batches.
    - Rank r has at most p - r micro-batches in flight, and at most m.
    - There may be one rank, one micro-batch, and fewer micro-batches than ranks.

    Example: of one_f_one_b(2, 3), rank 0 has F0 F1 B0 F2 B1 B2, and rank 1 F0 B0 F1 B1 F2 B2.
    """
    ### BEGIN SOLUTION
    schedule = []
    for rank in range(num_ranks):
        ahead = min(num_ranks - 1 - rank, num_micro_batches)
        forward = [Action("F", rank, number) for number in range(num_micro_batches)]
        backward = [Action("B", rank, number) for number in range(num_micro_batches)]
        in_turn = [one for pair in zip(forward[ahead:], backward, strict=False) for one in pair]
        left = backward[num_micro_batches - ahead :]
        schedule.append([*forward[:ahead], *in_turn, *left])
    return schedule
    ### END SOLUTION


# %% check_one_f_one_b points=4
def check_one_f_one_b():
    from worldsize import draw

    for num_ranks, num in ((1, 1), (2, 3), (5, 2), (6, 1), (3, 5), (5, 7), (4, 8)):
        for time_s in ({"F": 1e-3, "B": 2e-3}, {"F": 2e-3, "B": 2e-3}):
            played = play(one_f_one_b(num_ranks, num), num_ranks, num, time_s)
            of = f"with {num_ranks} ranks and {num} micro-batches"
            wanted = [min(num_ranks - rank, num) for rank in range(num_ranks)]
            if any(one > most for one, most in zip(played.in_flight, wanted, strict=True)):
                hint = "Rank r does p - 1 - r F ahead; then F and B take turns, F first."
                raise CheckFailed(f"at most {wanted} in flight {of}", f"{played.in_flight}", hint)
            wanted_s = (num + num_ranks - 1) * sum(time_s.values())
            hint = "If a rank does too few F ahead, the ranks behind it wait."
            expect_close(played.timeline.end_s, wanted_s, f"the length {of}", hint, atol=1e-9)
    show(draw.timeline(played.timeline, title="1F1B, 4 ranks and 8 micro-batches, on paper"))
    print(f"one_f_one_b: as short as GPipe, with {played.in_flight} in flight instead of 8 each.")


check_one_f_one_b()

# %% [markdown]
# ## 3. Interleaved
#
# Cut the model into v · p stages, v on each rank: rank 0 has stages 0, p, 2p, ... Each takes a v-th
# of the time, and so do the F and B that a rank waits for in the beginning and in the end. The
# bubble is v times smaller; v times as many messages are the price (the same paper, section 2.2.2).
#
# ```text
# 2 ranks, 4 micro-batches, v = 2; F and G are the forward passes of a rank's first and second
# stage, B and C the backward passes of its second and first stage
#
# rank 0    F0 F1 G0 G1 F2 B0 F3 B1 G2 C0 G3 C1 B2 B3 C2 C3
# rank 1    F0 F1 G0 B0 G1 B1 F2 C0 F3 C1 G2 B2 G3 B3 C2 C3
# ```
#
# A rank takes the micro-batches in **rounds**. It does a whole round in its first stage, then the
# same round in its second stage, and so on; then comes the next round. Backward goes through the
# same rounds, from its last stage to its first. There are `m // p` rounds, as even as possible:
# with m = 7 and p = 3 two rounds, of 4 and 3 micro-batches. (The paper wants m to be a multiple of
# p. Then every round has p of them.)
#
# <details><summary>Hint 1: where to look</summary>
#
# Write down the order of all F of a rank as one list, and the order of all B as another one. From
# there on it is 1F1B: some F ahead, then the two lists in turn. In the picture, how many F does
# each rank do ahead?
#
# </details>
# <details><summary>Hint 2: how many F ahead</summary>
#
# The first B of a rank belongs to its last stage, so all of its earlier stages must have done a
# round before: (v - 1) R, with the first round's R. For every rank behind it, two more: 2 (p - 1 -
# r). But never more than all v m.
#
# </details>
# <details><summary>Hint 3: uneven rounds</summary>
#
# The larger rounds come first: `num, more = divmod(m, num_rounds)`, and the first `more` rounds
# have num + 1 micro-batches. If a later round is larger than the first, ranks wait for each other
# for ever.
#
# </details>


# %% interleaved tags=["solution"]
def interleaved(num_ranks: int, num_micro_batches: int, num_chunks: int) -> list[list[Action]]:
    """The schedule of interleaved 1F1B, with `num_chunks` stages on each rank.

    - There are p ranks, m micro-batches and v chunks, with m at least p; m need not be a multiple
      of p. The v p stages are on ranks 0, 1, ..., p - 1, 0, 1, ...
    - With times f and b for each F and B of a stage, the last action ends at (v m + p - 1)(f + b).
    - Rank r has at most (v - 1) R + 2 (p - 1 - r) + 1 micro-batches in flight, added up over its
      stages, and at most v m; R is m / (m // p), rounded up. If v is 1, at most p - r.

    Example: the picture above is interleaved(2, 4, 2).
    """
    ### BEGIN SOLUTION
    num_rounds = num_micro_batches // num_ranks
    num, more = divmod(num_micro_batches, num_rounds)
    numbers = iter(range(num_micro_batches))
    rounds = [[next(numbers) for _ in range(num + (one < more))] for one in range(num_rounds)]
    schedule = []
    for rank in range(num_ranks):
        stages = range(rank, num_chunks * num_ranks, num_ranks)
        for_each_behind = 1 if num_chunks == 1 else 2
        ahead = (num_chunks - 1) * len(rounds[0]) + for_each_behind * (num_ranks - 1 - rank)
        ahead = min(ahead, num_chunks * num_micro_batches)
        forward = [Action("F", s, one) for turn in rounds for s in stages for one in turn]
        backward = [Action("B", s, one) for turn in rounds for s in stages[::-1] for one in turn]
        in_turn = [one for pair in zip(forward[ahead:], backward, strict=False) for one in pair]
        left = backward[len(forward) - ahead :]
        schedule.append([*forward[:ahead], *in_turn, *left])
    return schedule
    ### END SOLUTION


# %% check_interleaved points=4
def check_interleaved():
    from worldsize import draw

    time_s = {"F": 1e-3, "B": 2e-3}
    for num_ranks, num, v in ((1, 2, 2), (2, 4, 2), (3, 6, 3), (4, 4, 2), (3, 5, 2), (3, 7, 2)):
        of = f"with {num_ranks} ranks, {num} micro-batches and {v} chunks"
        played = play(interleaved(num_ranks, num, v), v * num_ranks, num, time_s)
        first_round = -(-num // (num // num_ranks))
        most = [
            min((v - 1) * first_round + 2 * (num_ranks - 1 - rank) + 1, v * num)
            for rank in range(num_ranks)
        ]
        if any(one > other for one, other in zip(played.in_flight, most, strict=True)):
            hint = "Fewer F ahead: (v - 1) R + 2 (p - 1 - r), then F and B in turn, F first."
            raise CheckFailed(f"at most {most} in flight {of}", f"{played.in_flight}", hint)
        wanted_s = (v * num + num_ranks - 1) * 3e-3
        hint = "Compare with the picture: rounds, from stage to stage, and how many F ahead."
        expect_close(played.timeline.end_s, wanted_s, f"the length {of}", hint, atol=1e-9)
    played = play(interleaved(4, 8, 2), 8, 8, {"F": 0.5e-3, "B": 1e-3})
    show(draw.timeline(played.timeline, title="Interleaved, 4 ranks, 8 micro-batches, on paper"))
    bubble = played.timeline.bubble_fraction()
    print(f"interleaved: {bubble:.1%} bubble, instead of {3 / 11:.1%}, with 2 stages on each rank.")


check_interleaved()

# %% [markdown]
# ## 4. Who waits for whom?
#
# On ranks, the stages exchange messages. A plain `dist.send` of a large tensor ends only when the
# other rank receives it. If rank 0 sends to rank 1 while rank 1 sends to rank 0, both wait for
# ever. Circles can be longer: in January 2026 an order of sends and receives that was meant to cure
# such a hang of two ranks left one of three (torch issue 172668). A tool that finds the circle
# before the job runs saves hours on a cluster.
#
# ```text
# rank 0    send to 1    recv from 2        0 waits for 1
# rank 1    send to 2    recv from 0        1 waits for 2      a circle: 0, 1, 2
# rank 2    send to 0    recv from 1        2 waits for 0
# ```
#
# <details><summary>Hint 1: where to look</summary>
#
# Play it: keep for each rank the number of transfers that it has done. Two ranks go on together
# where the next transfer of one is a send to the other, whose next transfer is a recv from the
# first.
#
# </details>
# <details><summary>Hint 2: the circle</summary>
#
# When nothing moves any more, start at any rank that has not ended, and go on to the peer of its
# next transfer, again and again. When you meet a rank for the second time, the circle is what you
# have seen since the first time.
#
# </details>


# %% find_circle tags=["solution"]
class Transfer(NamedTuple):
    """A message that a rank sends or receives: `op` is "send" or "recv", `peer` the other rank."""

    op: str
    peer: int


def find_circle(programs: list[list[Transfer]]) -> list[int] | None:
    """The ranks that wait for each other in a circle for ever; None if all programs end.

    - `programs[rank]` has the rank's transfers in order. A transfer begins when the one before it
      has ended. A send to a rank and that rank's recv from here end together, when both have
      begun: neither ends earlier.
    - Rank a sends to rank b as often as b receives from a.
    - The circle begins with its lowest rank. Each rank waits for the next one, and the last for the
      first. A rank that waits for one of them, but for which none of them waits, is not in it. Of
      several circles, any one is right.

    Example: for the picture above, the result is [0, 1, 2].
    """
    ### BEGIN SOLUTION
    ended = [0] * len(programs)

    def waits_for(rank):
        return programs[rank][ended[rank]] if ended[rank] < len(programs[rank]) else None

    moved = True
    while moved:
        moved = False
        for rank in range(len(programs)):
            while (own := waits_for(rank)) and own.op == "send":
                if waits_for(own.peer) != Transfer("recv", rank):
                    break
                ended[rank] += 1
                ended[own.peer] += 1
                moved = True
    stuck = [rank for rank in range(len(programs)) if waits_for(rank)]
    if not stuck:
        return None
    seen = [stuck[0]]
    while (peer := waits_for(seen[-1]).peer) not in seen:
        seen.append(peer)
    circle = seen[seen.index(peer) :]
    lowest = circle.index(min(circle))
    return circle[lowest:] + circle[:lowest]
    ### END SOLUTION


# %% check_find_circle points=3
def check_find_circle():
    def send(peer):
        return Transfer("send", peer)

    def recv(peer):
        return Transfer("recv", peer)

    three = [[send(1), recv(2)], [send(2), recv(0)], [send(0), recv(1)]]
    both_send = [[send(1), recv(1)], [send(0), recv(0)]]
    later = [
        [send(1), recv(1)],
        [recv(0), send(3), send(0), recv(2)],
        [send(1), recv(3)],
        [send(2), recv(1)],
    ]
    behind = [[recv(1)], [send(2), recv(2), send(0)], [send(1), recv(1)]]
    cases = [
        (three, [0, 1, 2], "Begin with the lowest rank; the next one is its peer."),
        (both_send, [0, 1], "Two sends never meet: a send meets a recv."),
        ([[send(1), recv(1)], [recv(0), send(0)]], None, "All of this ends."),
        ([[], []], None, "Nobody has anything to do."),
        (behind, [1, 2], "Rank 0 waits for rank 1, but nobody waits for rank 0."),
        (later, [1, 3, 2], "First play what can move: then see who waits for whom."),
    ]
    for number, (programs, wanted, hint) in enumerate(cases):
        given = find_circle(programs)
        if given != wanted:
            raise CheckFailed(f"{wanted} in case {number + 1}", f"{given}", hint)
    print("find_circle: all circles are found, and nothing else.")


check_find_circle()

# %% [markdown]
# ## 5. On ranks
#
# Now a schedule runs on ranks. The model is cut into stages; F sends what it computed to the next
# stage, B the gradient of its input to the stage before. As the lines above show, a rank whose
# sends wait cannot run 1F1B, so start a send and go on: `dist.isend`.
#
# ```text
# stage 0               stage 1                          stage 2 (last)
# F: tokens ► output ─► F: input ► output ─────────────► F: input ► output ► loss
#        B: gradient ◄───── B: gradient of its input ◄───── B: gradient of its input
# ```
#
# A batch may be so large that it takes several calls before the optimizer steps: gradients add up
# in `grad`. In September 2025 a trainer's gradient norms came out too small: at the end of each
# call, torch's schedules divide by the number of micro-batches whatever is in `grad`, so the sum of
# the calls before is divided again (torchtitan issue 1733). Scale the loss, and not the gradients.
#
# With Gloo, a receive that is posted after an unfinished send to the same rank is ready only when
# that send is out. On slow links a pipeline gains by posting receives early.
# That is allowed here, and gives no extra points.
#
# `Pipeline`, below, is what a rank knows of the model. Micro-batches may have different sizes, and
# two ranks may have several messages under way between them. A message is matched by sender,
# receiver and `tag`; with the same tag, in the order in which they were sent.
#
# Go step by step, and run the check after each: 1F1B on two ranks; then several stages on a rank;
# then two calls.
#
# <details><summary>Hint 1: where to look</summary>
#
# Of each micro-batch in each stage you need the input and the output again in B:
# `output.backward(gradient)` puts the gradient of the input into `input.grad`. What is received has
# no graph: call `requires_grad_()` before F. What is sent needs none: `detach()`.
#
# </details>
# <details><summary>Hint 2: messages</summary>
#
# A received tensor has the shape of the micro-batch's inputs, and `width` after it. A rank may take
# micro-batches in another order than the rank before sends them, and with several stages it gets
# outputs and gradients from the same rank. A tag made of kind, stage and micro-batch keeps them
# apart. If the check reports that so many bytes came for tensors of another size, messages are
# mixed up.
#
# </details>
# <details><summary>Hint 3: the loss</summary>
#
# Divide the sum of the losses of each micro-batch by the number of all targets, in the last stage's
# F. Then B is `loss.backward()`, and everything behind it has the right scale, in every call.
#
# </details>
# <details><summary>Hint 4: memory</summary>
#
# `pop` the input and the output in B, so that the activations can go. A handle of a send keeps its
# tensor: the output that F sent has arrived long before its B, so wait for its handle there.
#
# </details>


# %% pipeline
class Pipeline(NamedTuple):
    """A model in stages, as one rank knows it: stage s is on rank s % (number of ranks)."""

    stages: dict[int, nn.Module]  # this rank's own, by their number
    num_stages: int
    width: int  # between stages go float32 tensors of shape (*inputs.shape, width)
    sum_of_losses: object  # a function of the last stage's output and the targets


# %% on_ranks
SMALL = models.shape("small")


def cross_entropy(output, targets):
    return nn.functional.cross_entropy(output.flatten(0, -2), targets.flatten(), reduction="sum")


def drawn_micro_batches(num):
    """Micro-batches of one sequence each, all of different lengths."""
    generator = torch.Generator().manual_seed(9)
    tokens = [torch.randint(0, 256, (1, 5 + number), generator=generator) for number in range(num)]
    return [(one[:, :-1], one[:, 1:]) for one in tokens]


class Timed(torch.autograd.Function):
    """An identity that works for some virtual time in forward, and twice as long in backward."""

    @staticmethod
    def forward(ctx, tensor, time_s):
        ctx.time_s = time_s
        with ws.span("F", kind="forward"):
            emulate.spend(time_s)
        return tensor.clone()

    @staticmethod
    def backward(ctx, gradient):
        with ws.span("B", kind="backward"):
            emulate.spend(2 * ctx.time_s)
        return gradient, None


class TimedStage(nn.Module):
    """Some layers of the small transformer."""

    def __init__(self, layers, time_s):
        super().__init__()
        self.body, self.time_s = models.Transformer(SMALL, layers=layers), time_s

    def forward(self, tensor):
        return Timed.apply(self.body(tensor), self.time_s)


def on_rank(schedule, num_stages, num, num_calls=1, time_s=1e-3):
    """The losses of some calls, and the gradients after the last one, by name."""
    cuts = [SMALL.num_layers * one // num_stages for one in range(num_stages + 1)]
    own = range(dist.get_rank(), num_stages, dist.get_world_size())
    stages = {stage: TimedStage(range(cuts[stage], cuts[stage + 1]), time_s) for stage in own}
    pipeline = Pipeline(stages, num_stages, SMALL.width, cross_entropy)
    losses = [run_schedule(schedule, pipeline, drawn_micro_batches(num)) for _ in range(num_calls)]
    named = [one for stage in stages.values() for one in stage.body.named_parameters()]
    return losses, {name: parameter.grad for name, parameter in named}


def in_one_process(num):
    """The mean loss over all micro-batches, and its gradients by name."""
    model, micro_batches = models.Transformer(SMALL), drawn_micro_batches(num)
    sums = [cross_entropy(model(inputs), targets) for inputs, targets in micro_batches]
    loss = sum(sums) / sum(targets.numel() for _, targets in micro_batches)
    loss.backward()
    return loss.item(), {name: parameter.grad for name, parameter in model.named_parameters()}


# %% run_schedule tags=["solution"]
def run_schedule(schedule, pipeline: Pipeline, micro_batches) -> float:
    """Run this rank's actions of a schedule; return the loss on the rank with the last stage.

    - `schedule` is legal and has F and B. There are at least two ranks, and as many stages on each
      as the schedule has. `micro_batches` is a list of pairs (inputs, targets), the same on all
      ranks. Stage 0 takes the inputs, any other stage the output of the one before. Each stage is a
      module that takes and returns one tensor.
    - The loss is the mean over all targets of all micro-batches: the sum of all
      `sum_of_losses(output, targets)`, a tensor of one element each, over the number of elements of
      all targets. It is returned as a float; ranks without the last stage return 0.0.
    - Every parameter's `grad` grows by the gradient of that loss, as in one process. What was in
      `grad` before stays in the sum, however often it is called.
    - The actions run in the order of `schedule[rank]`, whatever legal order that is; two ranks may
      take the micro-batches in different orders.
    - F sends the output to the next stage's rank, except for the last stage; B sends the gradient
      of the input to the rank of the stage before, except for stage 0. Each is one message, of that
      tensor in float32, and a rank's messages are sent in the order of the actions that made them.
    - A send never makes the rank wait before it goes on with its next action.
    - The activations of a micro-batch in a stage are held from its F to its B, and no longer.
    """
    ### BEGIN SOLUTION
    rank, num_ranks, last = dist.get_rank(), dist.get_world_size(), pipeline.num_stages - 1
    num_targets = sum(targets.numel() for _, targets in micro_batches)
    kept, handles, loss = {}, [], 0.0

    def tag(kind, stage, number):
        return 2 * (number * pipeline.num_stages + stage) + (kind == "B")

    def send(tensor, kind, stage, number):
        to = tag(kind, stage, number)
        return dist.isend(tensor.detach().contiguous(), stage % num_ranks, tag=to)

    def receive(kind, stage, number, source):
        tensor = torch.empty(*micro_batches[number][0].shape, pipeline.width)
        dist.recv(tensor, source % num_ranks, tag=tag(kind, stage, number))
        return tensor

    for kind, stage, number in schedule[rank]:
        if kind == "F":
            inputs, targets = micro_batches[number]
            if stage > 0:
                inputs = receive("F", stage, number, stage - 1).requires_grad_()
            output, handle = pipeline.stages[stage](inputs), None
            if stage == last:
                output = pipeline.sum_of_losses(output, targets) / num_targets
                loss += output.item()
            else:
                handle = send(output, "F", stage + 1, number)
            kept[stage, number] = inputs, output, handle
        else:
            inputs, output, handle = kept.pop((stage, number))
            if handle:
                gradient = receive("B", stage, number, stage + 1)
                handle.wait()  # it has arrived: its gradient is here
                output.backward(gradient)
            else:
                output.backward()
            if stage > 0:
                handles.append(send(inputs.grad, "B", stage - 1, number))
    for handle in handles:
        handle.wait()
    return loss
    ### END SOLUTION


# %% check_run_schedule points=7
# Written out, so that this check needs no other part: on 2 ranks 1F1B, ranks with orders of their
# own, and interleaved.
PLAIN = ["F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"]
OTHER_ORDERS = ["F0 F1 F2 F3 B3 B2 B1 B0", "F2 F0 F3 F1 B0 B1 B2 B3"]
IN_CHUNKS = [
    "F0 F1 G0 G1 F2 B0 F3 B1 G2 C0 G3 C1 B2 B3 C2 C3",
    "F0 F1 G0 B0 G1 B1 F2 C0 F3 C1 G2 B2 G3 B3 C2 C3",
]


def read(lists, is_in_chunks):
    """A schedule on two ranks from its letters."""
    if not is_in_chunks:
        return [
            [Action(word[0], rank, int(word[1])) for word in words.split()]
            for rank, words in enumerate(lists)
        ]
    kinds = {"F": ("F", 0), "G": ("F", 2), "B": ("B", 2), "C": ("B", 0)}
    return [
        [
            Action(kinds[word[0]][0], kinds[word[0]][1] + rank, int(word[1]))
            for word in words.split()
        ]
        for rank, words in enumerate(lists)
    ]


def check_run_schedule():
    from worldsize import draw

    loss, gradients = in_one_process(4)
    for lists, num_stages, num_calls, hint in (
        (PLAIN, 2, 1, "The sum of the losses over the number of all targets, in the last stage."),
        (OTHER_ORDERS, 2, 1, "Are messages mixed up? Give each a tag of its own."),
        (IN_CHUNKS, 4, 1, "Keep input and output by stage and micro-batch."),
        (PLAIN, 2, 2, "Do not scale what is in grad: it has the sum of earlier calls in it."),
    ):
        schedule = read(lists, num_stages == 4)
        run = ws.run(on_rank, schedule, num_stages, 4, num_calls, world_size=2, **EMULATED)
        of = f"{num_stages} stages on 2 ranks, {num_calls} calls"
        expect_close(run.values[1][0][0], loss, f"the loss with {of}", hint)
        if run.values[0][0][0] != 0:
            raise CheckFailed("0.0 on a rank without the last stage", "another value")
        for _, found in run.values:
            for name, given in found.items():
                what = f"the gradient of {name} with {of}"
                if given is None:
                    raise CheckFailed(what, "None", "Call backward in every B.")
                expect_close(given, num_calls * gradients[name], what, hint)
    run = ws.run(on_rank, read(PLAIN, False), 2, 4, world_size=2, **EMULATED)
    show(draw.timeline(run.timeline, title="1F1B on 2 ranks, emulated"))
    paper_s = (4 + 1) * 3e-3
    if run.timeline.end_s > 1.05 * paper_s:
        hint = "A rank must not wait for its sends before the next action."
        raise CheckFailed(f"{paper_s * 1e3:.1f} ms", f"{run.timeline.end_s * 1e3:.1f} ms", hint)
    order = [event.size_bytes for event in run.timeline.of(0) if event.name == "send"]
    wanted = [4 * SMALL.width * (4 + number) for number in range(4)]
    if order != wanted:
        hint = "One message for each output, in the order of the actions."
        raise CheckFailed(f"messages of {wanted} bytes from rank 0", f"{order}", hint)
    print(f"run_schedule: the gradients of one process, in {run.timeline.end_s * 1e3:.2f} ms.")


check_run_schedule()

# %% [markdown]
# ## 6. Balance
#
# A pipeline is as slow as its slowest stage. Layers differ: BLOOM's embedding has 3.6 billion
# parameters and each of its 70 layers 2.5 billion. On 12 stages, the first and the last got 5
# layers and an embedding, the others 6 layers (BLOOM's README, "Model sizes").
#
# <details><summary>Hint 1: where to look</summary>
#
# To give each stage about the mean is not always best. Ask: if the slowest stage may cost at most
# this much, how many stages are needed?
#
# </details>
# <details><summary>Hint 2: how</summary>
#
# Either by dynamic programming: the best way to cut the first i layers into k stages, from the best
# ways to cut fewer of them into k - 1. Or try every possible cost of a stage, from the lowest.
#
# </details>


# %% balance tags=["solution"]
def balance(costs: list[float], num_stages: int) -> list[int]:
    """How many layers each stage gets, so that the slowest stage costs as little as possible.

    - `costs[i]` is the cost of layer i, positive; there are at least as many layers as stages.
    - Every stage gets at least one layer. Stage 0 gets the first layers, stage 1 the next ones, and
      so on; all layers are given out. The cost of a stage is the sum of its layers' costs.
    - No other way to cut has a slowest stage that costs less. Of several best ways, any is right.
    - 200 layers on 16 stages take at most 2 seconds.

    Example: balance([4, 1, 1, 1, 1], 2) is [1, 4]: both stages cost 4.
    """
    ### BEGIN SOLUTION
    total = [0.0]
    for cost in costs:
        total.append(total[-1] + cost)
    best = [(one, [end]) for end, one in enumerate(total)]  # of the first `end` layers: one stage
    for stage in range(1, num_stages):
        longer = [(float("inf"), [])] * len(total)
        for end in range(stage + 1, len(total)):
            for start in range(stage, end):
                slowest = max(best[start][0], total[end] - total[start])
                if slowest < longer[end][0]:
                    longer[end] = slowest, [*best[start][1], end - start]
        best = longer
    return best[-1][1]
    ### END SOLUTION


# %% check_balance points=2
def check_balance():
    cases = [
        ([4, 1, 1, 1, 1], 2, 4, "Stage 0 gets one layer, stage 1 four."),
        ([1] * 7, 3, 3, "7 equal layers on 3 stages: 3, 2 and 2."),
        ([3, 1, 1, 1, 1, 1, 3], 3, 4, "The first and the last layer are dear, as with embeddings."),
        ([2, 2, 2, 9], 4, 9, "Every stage gets at least one layer."),
        ([1, 3, 1, 1, 1, 1, 2], 4, 3, "To fill up each stage to the mean is not always best."),
        ([1, 4, 2, 3, 5], 3, 5, "Try every cut, in an order that forgets what cannot be best."),
    ]
    for costs, num_stages, wanted, hint in cases:
        given = balance(costs, num_stages)
        of = f"{costs} on {num_stages} stages"
        if len(given) != num_stages or sum(given) != len(costs) or min(given) < 1:
            raise CheckFailed(f"{num_stages} numbers of layers, of {of}", f"{given}", hint)
        ends = [sum(given[: stage + 1]) for stage in range(num_stages)]
        slowest = max(sum(costs[end - num : end]) for end, num in zip(ends, given, strict=True))
        if slowest > wanted:
            raise CheckFailed(f"a slowest stage of {wanted}, of {of}", f"{slowest}: {given}", hint)
    bloom = balance([3.6, *[2.47] * 70, 3.6], 12)
    print(f"balance: BLOOM's 70 layers and two embeddings on 12 stages: {bloom}")


check_balance()

# %% [markdown]
# ## 7. Open-ended: the shortest schedule that fits
#
# Whole backward passes leave a bubble of (p - 1)(f + b). But the stage before needs only the
# gradient of the *input*. If B is cut into I and W, the I can go ahead, and W fills what would be
# idle time (Qi et al. 2024, *Zero Bubble Pipeline Parallelism*). Its price is memory: a
# micro-batch's activations stay until its W is done. So the question is: with k micro-batches in
# flight, how short can a step be?
#
# There is no formula that you could copy here. Try ideas, and look at the pictures. The score is
# the share of the way that you go from 1F1B, with each W right behind its I, to the best possible
# schedule, on average over several cases, which are not those of the check below. The feedback
# shows both lengths and yours, like a leaderboard.
#
# <details><summary>Hint 1: a schedule by playing</summary>
#
# Play time forward, as `play` does, and choose each rank's next action when it is free: an I that
# can start, otherwise an F if fewer than k micro-batches are in flight, otherwise a W. That is
# legal, and often shorter than 1F1B with each W right behind its I.
#
# </details>
# <details><summary>Hint 2: what is not yet right with it</summary>
#
# Look at the last rank: too many F early let the memory fill up, and then it must do W before it
# can go on. Limit how far a rank's F may be ahead of its I, more on the first ranks than on the
# last. And sometimes it is better to wait a moment for an I than to begin a W.
#
# </details>
# <details><summary>Hint 3: search</summary>
#
# Playing costs a few milliseconds. Put the limits and the patience into parameters, try some
# hundred combinations, and keep the shortest schedule.
#
# </details>


# %% shortest tags=["solution"]
def shortest(
    num_ranks: int, num_micro_batches: int, max_in_flight: int, time_s: dict[str, float]
) -> list[list[Action]]:
    """A schedule with F, I and W that is as short as you can make it, one stage on each rank.

    - No rank ever has more than `max_in_flight` micro-batches in flight: from the beginning of F to
      the end of W. It is at least 1.
    - `time_s` has the times of "F", "I" and "W", the same on all ranks.
    - There may be one rank, one micro-batch, and fewer micro-batches than ranks.
    - With 5 ranks and 9 micro-batches it takes at most 2 seconds of computing time.
    - Points are in proportion to what is saved: 0 for 1F1B with each W right behind its I, which
      takes m (f + i + w) + (p - 1)(f + i), all for the shortest possible. `max_in_flight` is at
      least the number of ranks where points are given for this.

    Example: with 2 ranks, 2 micro-batches, 2 in flight and times of 1 each, 1F1B takes 9, or 8 with
    each W right behind its I, and the shortest schedule 7: F0 F1 - I0 W0 I1 W1 on rank 0, and
    - F0 I0 F1 I1 W0 W1 on rank 1.
    """
    ### BEGIN SOLUTION

    def played(ahead, patience_s):
        """The schedule in which F is at most so far ahead of I, and W waits so long for others."""
        done_s, free_s = {}, [0.0] * num_ranks
        num = [{"F": 0, "I": 0, "W": 0} for _ in range(num_ranks)]
        schedule = [[] for _ in range(num_ranks)]
        for _ in range(3 * num_ranks * num_micro_batches):
            choices = []
            for rank, own in enumerate(num):
                has_room = own["F"] - own["W"] < max_in_flight and own["F"] - own["I"] < ahead[rank]
                for order, kind in enumerate("IFW"):
                    action = Action(kind, rank, own[kind])
                    before = needed_before(action, num_ranks)
                    if own[kind] == num_micro_batches or any(one not in done_s for one in before):
                        continue
                    if kind == "F" and not has_room:
                        continue
                    start_s = max([free_s[rank], *(done_s[one] for one in before)])
                    rated_s = start_s + (patience_s if kind == "W" else 0.0)
                    choices.append((rank, rated_s, order, start_s, action))
            best = {}
            for rank, *rest in choices:
                best[rank] = min(best.get(rank, rest), rest)
            rank = min(best, key=lambda one: (best[one][2], one))
            _, _, start_s, action = best[rank]
            done_s[action] = free_s[rank] = start_s + time_s[action.kind]
            num[rank][action.kind] += 1
            schedule[rank].append(action)
        return max(free_s), schedule

    found = []
    for patience_s in (0.0, 0.5 * time_s["W"], 0.99 * time_s["W"]):
        for first in range(1, min(max_in_flight, num_micro_batches) + 1):
            for fewer in (0, 1, 2):
                ahead = [max(1, first - fewer * rank) for rank in range(num_ranks)]
                found.append(played(ahead, patience_s))
    return min(found, key=lambda one: one[0])[1]
    ### END SOLUTION


# %% check_shortest points=5
def check_shortest():
    from worldsize import draw

    rows, pictures = [], []
    for num_ranks, num, most, times, possible in (
        (2, 2, 2, (1, 1, 1), 7),
        (3, 5, 1, (2, 3, 1), 80),
        (4, 8, 4, (2, 3, 1), 60),
        (4, 8, 7, (2, 3, 1), 57),
        (4, 8, 5, (1, 1, 1), 27),
        (3, 5, 4, (10, 11, 9), 170),
    ):
        time_s = {kind: 1e-3 * time for kind, time in zip("FIW", times, strict=True)}
        played = play(shortest(num_ranks, num, most, time_s), num_ranks, num, time_s)
        if max(played.in_flight) > most:
            hint = "A micro-batch is in flight until its W is done."
            raise CheckFailed(f"at most {most} in flight", f"{max(played.in_flight)}", hint)
        plain, length = (num + num_ranks - 1) * sum(times), round(1e3 * played.timeline.end_s, 6)
        split = plain - (num_ranks - 1) * times[2]  # each W right behind its I
        rows.append({
            "ranks, micro-batches, in flight": f"{num_ranks}, {num}, {most}",
            "F, I, W": f"{times}",
            "1F1B": f"{plain:g}",
            "in I and W": f"{split:g}",
            "yours": f"{length:g}",
            "possible": f"{possible:g}",
        })  # fmt: skip
        pictures.append(played.timeline)
        if length >= plain and most > 1:
            raise CheckFailed(f"less than 1F1B's {plain:g}", f"{length:g}", "Fill gaps with W.")
    show(draw.timeline(pictures[2], title="4 ranks, 8 micro-batches, 4 in flight, on paper"))
    show(draw.table(rows, title="Lengths of one step, computed"))


check_shortest()

# %% [markdown]
# ## 8. In words
#
# A model with 96 layers is trained on 8 pipeline stages with 32 micro-batches in a step. F of a
# stage takes 10 ms, B 20 ms. The activations of one micro-batch take 2 GB in a stage.
#
# Answer in at most 200 words, with numbers:
#
# 1. How long is a step with GPipe, 1F1B, and interleaved 1F1B with v = 4, and what share of it is
#    the bubble? Which price does v = 4 have on the wire, and how many GB does rank 0 hold at most
#    in each?
# 2. The layers of the last stage take 10% longer, because of the head. By how much does a step of
#    1F1B with many micro-batches become longer, and what do you do?
# 3. A colleague finds that her gradient norms are too small with a pipeline, but only if she
#    accumulates gradients over several calls. What is the cause, and why do the first losses look
#    right?

# %% in_words [markdown] points=3 tags=["solution"]
# **Answer.**
#
# 1. GPipe and 1F1B: (32 + 7) · 30 = 1,170 ms, bubble 7/39 = 18%. Interleaved: 7.5 ms a chunk, (4 ·
#    32 + 7) · 7.5 = 1,012.5 ms, bubble 7/135 = 5.2%. Four times as many messages of the same size.
#    Rank 0 holds 32 · 2 = 64 GB with GPipe, 8 · 2 = 16 GB with 1F1B, and with v = 4 3 · 8 + 14 + 1
#    = 39 chunks of 0.5 GB, 19.5 GB.
# 2. By nearly 10%: the slowest stage sets the pace in every micro-batch. One of its 12 layers moved
#    to another stage gains little: 12.2 layers' time there, and 13 on the other, 8.3% over an even
#    load. With 95 layers, 11 of them on the last stage, it is 1.7%. Or cut more finely by
#    interleaving, or take the head apart from the last stage.
# 3. Gradients are scaled at the end of each call: what was accumulated before is divided again, so
#    the sum fades. With one call, and in the losses, nothing is wrong: losses are not computed from
#    gradients, and only the updates, which are too small, show it later.
#
# **Rubric**, one point each:
#
# - Both lengths and shares within 2%, four times the messages, and 64, 16 and about 20 GB. Half
#   with one slip.
# - About 10%, because of the slowest stage, and fewer layers there.
# - The division at the end of each call, and that losses do not see it until weights change.

# %% [markdown]
# ## What you have built
#
# The next cell runs three of your schedules on emulated ranks, for the small transformer with its
# four layers on 2 ranks, and compares them with what `play` says on paper. It takes `balance` to
# cut.


# %% all_schedules
def transfers_of(schedule, num_stages):
    """The programs of ranks that receive before each action, and send what it made after it."""
    num_ranks, programs = len(schedule), []
    for actions in schedule:
        programs.append([])
        for kind, stage, _ in actions:
            source, target = (stage - 1, stage + 1) if kind == "F" else (stage + 1, stage - 1)
            for op, other in (("recv", source), ("send", target)):
                if 0 <= other < num_stages:
                    programs[-1].append(Transfer(op, other % num_ranks))
    return programs


def compare_schedules(num=6):
    from worldsize import draw

    if max(balance([1.0] * SMALL.num_layers, 2)) != 2:
        raise CheckFailed("two layers for each of two stages", "others")
    rows, time_s = [], {"F": 1e-3, "B": 2e-3}
    for name, schedule, chunks in (
        ("GPipe", gpipe(2, num), 1),
        ("1F1B", one_f_one_b(2, num), 1),
        ("interleaved", interleaved(2, num, 2), 2),
    ):
        of_chunk = {kind: time / chunks for kind, time in time_s.items()}
        played = play(schedule, 2 * chunks, num, of_chunk)
        job = (on_rank, schedule, 2 * chunks, num, 1, of_chunk["F"])
        run = ws.run(*job, world_size=2, **EMULATED)
        rows.append({
            "schedule": name,
            "on paper, ms": f"{1e3 * played.timeline.end_s:.2f}",
            "on ranks, ms": f"{1e3 * run.timeline.end_s:.2f}",
            "in flight on rank 0": f"{played.in_flight[0] / chunks:g}",
            "messages of rank 0": len([one for one in run.timeline.of(0) if one.name == "send"]),
            "loss": f"{run.values[1][0][0]:.4f}",
        })  # fmt: skip
    for name, schedule, chunks in (
        ("GPipe", gpipe(3, 6), 1),
        ("1F1B", one_f_one_b(3, 6), 1),
        ("interleaved 1F1B", interleaved(3, 6, 2), 2),
    ):
        circle = find_circle(transfers_of(schedule, 3 * chunks))
        print(f"{name} on 3 ranks, if sends wait: {f'a circle, {circle}' if circle else 'it ends'}")
    return draw.table(rows, title="One step of the small transformer on 2 emulated ranks")


show(compare_schedules())
