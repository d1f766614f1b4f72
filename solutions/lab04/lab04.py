# %% [markdown]
# # Lab 4. Parameter server
#
# In lab 2 every rank waited for every other in every step. Here you build the alternative: a
# **server** keeps the parameters, and each worker pulls them, computes a gradient and pushes it
# back, at its own pace. A bound keeps the fast workers from running too far ahead. Then you write
# two optimizer steps for very large batches, LARS and LAMB.
#
# ```text
#                 ┌──────────────────────────┐
#                 │ rank 0: the server       │      pull   server ──parameters──► worker
#                 │ parameters, steps done   │      push   worker ──gradient────► server
#                 └──────────────────────────┘
#                   ▲│          ▲│         ▲│
#                   │▼          │▼         │▼
#                 rank 1      rank 2     rank 3     workers, some faster than others
# ```
#
# | Function | What it does | Points | Time | Difficulty |
# |---|---|---|---|---|
# | `run_worker` | a worker: pulls, computes, pushes | 1.5 | 10 min | easy |
# | `run_unbounded_server` | the server: applies and answers each push | 4 | 25 min | medium |
# | `may_start` | whether a worker may begin its next step | 1 | 5 min | easy |
# | `run_server` | the same server, which answers when the bound allows | 5.5 | 30 min | hard |
# | `lars_step` | a step of SGD with a learning rate for each layer | 4 | 25 min | medium |
# | `lamb_step` | a step of Adam with a trust ratio for each layer | 4 | 25 min | medium |
# | `when_to_wait` | questions that you answer in words | 5 | 40 min | medium |
#
# Work in this order: each function has a check below it, and folded hints above it. The first hint
# says where to look, the next one how to do it.
#
# Each docstring is a contract: everything that it promises is graded, and nothing else. The checks
# run your server on an emulated cluster: the ranks and the data are real, and every message is
# recorded and priced. They look at the parameters **and at the wire**: the bytes of each message,
# in which order messages go, and who has to wait. The same inputs must give the same bits in every
# run. One check of each server looks at **its memory**, as counted by the operating system. Each
# function is judged by itself: where it calls another function of this notebook, the check
# substitutes a correct one.
#
# Only sending and receiving are allowed: `send`, `recv`, `isend` and `irecv`. Any other operation
# of `torch.distributed` is refused. Do not use threads.

# %% setup
import math

import torch
import torch.distributed as dist

import worldsize as ws
from worldsize import emulate
from worldsize.check import CheckFailed, expect_close

torch.set_num_threads(1)  # the matrices are tiny: threads would only wait for each other
MESSAGES_ONLY = {"cluster": "dgx-h100", "allow": {"send", "recv"}, "compute": "none"}


def show(picture):
    from IPython.display import display  # here and not above: the ranks need neither

    display(picture)


def digits():
    """Handwritten digits as rows of 64 numbers, and their labels."""
    from worldsize.images import load_digits

    images, labels = load_digits()
    return images.flatten(1), labels


def run_with_hint(hint, function, *args, world_size, hint_if_workers_wait=""):
    """The run of a function on emulated ranks; if they hang, a hint is printed above the report.

    `hint_if_workers_wait`, if given, replaces the hint where workers wait for a copy.
    """
    try:
        return ws.run(function, *args, world_size=world_size, **MESSAGES_ONLY)
    except ws.RunTimeout as error:
        if hint_if_workers_wait and any(one.rank and one.waits_in for one in error.standings):
            hint = hint_if_workers_wait
        print(f"What to change: {hint}")
        raise


def expect_written_into(tensor, before, name):
    """Raise CheckFailed if a step has left this tensor as it was."""
    if torch.equal(tensor, before):
        hint = (
            f"`{name} = ...` makes a new tensor, and the one in the list stays as it was. Write"
            f" into it, with `{name}.add_()`, `{name}.sub_()` or `{name}.copy_()`."
        )
        raise CheckFailed(f"{name} to change in place", "the numbers that it had before", hint)


def losses_of(step):
    """The losses of 40 steps on all digits at once, for a network whose layers differ in scale."""
    generator = torch.Generator().manual_seed(0)
    layers = [
        torch.randn(64, 32, generator=generator),
        0.02 * torch.randn(32, 10, generator=generator),
    ]
    layers = [layer.requires_grad_() for layer in layers]
    states, losses = [[torch.zeros_like(layer) for layer in layers] for _ in range(2)], []
    for number in range(1, 41):
        loss = torch.nn.functional.cross_entropy(torch.relu(images @ layers[0]) @ layers[1], labels)
        step(layers, torch.autograd.grad(loss, layers), states, number)
        losses.append(loss.item())
    return losses


def pushes_ones(serve, num_steps):
    """What a worker pulls that pushes 1 in every step, and pulls that came after its last push."""
    rank, slow, late = dist.get_rank(), dist.get_world_size() - 1, torch.full((1,), -1.0)
    if rank == 0:
        parameters = torch.zeros(1)
        serve(parameters, lambda weights, gradient: weights.add_(gradient), num_steps)
        return parameters.item()
    pulled = []

    def gradient_of(weights):
        pulled.append(weights.item())
        with ws.span("gradient"):
            emulate.spend(0.05 if rank == slow else 0.01 + 0.0003 * rank)
        return torch.ones(1)

    run_worker(torch.zeros(1), gradient_of, num_steps)
    dist.irecv(late, src=0)  # takes an answer that nobody should send, so that it hangs no server
    return pulled


def expect_served(run, ends_s):
    """Raise CheckFailed unless each of 3 workers had its 8 pulls, and ended at its time."""
    total, *pulls = run.values
    if left := [one for one in run.unawaited if one.startswith("rank 0: isend")]:
        hint = "Use send, or keep the handle of isend and wait for it: real sockets hang otherwise."
        raise CheckFailed("every message of the server to be waited for", left[0], hint)
    for worker, of_worker in enumerate(pulls, start=1):
        from_server = [one for one in run.timeline.of(0) if one.kind == "communication"]
        sent = [one for one in from_server if one.name == "send" and one.peers == (worker,)]
        if len(sent) != 8:
            hint = "Nobody is answered after its last push: look at the steps done before you send."
            raise CheckFailed(f"8 pulls for 8 steps of worker {worker}", f"{len(sent)}", hint)
        for step, value in enumerate(of_worker):
            if value < step:
                hint = "Update first, then answer: a pull holds every push that came before it."
                expected = f"at least {step} pushes in pull {step + 1} of worker {worker}"
                raise CheckFailed(expected, f"{value:g}", hint)
        end_s = max(event.end_s for event in run.timeline.of(worker) if event.name == "send")
        print(f"worker {worker} is done after {end_s * 1e3:4.0f} ms")
        if abs(end_s / ends_s[worker - 1] - 1) > 0.05:
            hint = "Receive from any worker (no `src`), and answer at once all that may start."
            if end_s < ends_s[worker - 1]:
                hint = "It was answered although may_start was False: it did not wait long enough."
            expected = f"worker {worker} done after {ends_s[worker - 1] * 1e3:.0f} ms"
            raise CheckFailed(expected, f"{end_s * 1e3:.0f} ms", hint)
    hint = "Every push is applied once, as it came, also the last one of each worker."
    expect_close(torch.tensor(total), torch.tensor(24.0), "the sum of 3 x 8 pushes of 1", hint)


# the first run loads torch: the checks are then quick
ws.run(dist.get_rank, world_size=4, echo=False, **MESSAGES_ONLY)
images, labels = digits()

# %% [markdown]
# ## 1. A worker
#
# A step of a worker has three parts. It **pulls**: it receives the parameters from the server. It
# computes a gradient from these parameters. It **pushes**: it sends the gradient to the server.
#
# The worker sends no request. To begin a step it simply receives, and waits until the server sends.
# So the server decides when a worker goes on, and a worker needs to know neither the bound nor the
# other workers.
#
# <details><summary>Hint 1: where to look</summary>
# <code>dist.recv(tensor, src)</code> receives into a tensor that exists already, and returns when
# it is there.
# </details>
# <details><summary>Hint 2: how</summary>
# A loop of two lines: receive into <code>parameters</code>, then send what
# <code>gradient_of(parameters)</code> returns.
# </details>


# %% run_worker tags=["solution"]
def run_worker(parameters: torch.Tensor, gradient_of, num_steps: int) -> None:
    """Run this rank as a worker for `num_steps` steps (1 or more). The server is rank 0.

    - Each step receives the parameters into the tensor `parameters`, which is contiguous, of any
      shape and float dtype; its earlier content does not matter. Then it calls
      `gradient_of(parameters)` once, with this tensor itself and not a copy, and sends the tensor
      that comes back, which has the shape and dtype of `parameters`.
    - So each step has one message from the server and one to it, and there are no other messages.
    - Steps run one after the other: the gradient of a step is computed from the parameters of that
      step.

    Example: pulls of 10, 20 and 30 and a `gradient_of` that halves give pushes of 5, 10 and 15.
    """
    ### BEGIN SOLUTION
    for _ in range(num_steps):
        dist.recv(parameters, src=0)
        dist.send(gradient_of(parameters), dst=0)
    ### END SOLUTION


# %% check_run_worker points=1.5
from worldsize import draw


def hands_out_numbers(num_steps):
    """What a server that sends 10, 20, ... gets back from a worker that halves the parameters."""
    if dist.get_rank() == 1:
        own, seen = torch.zeros(4), []
        run_worker(own, lambda pulled: seen.append(pulled is own) or pulled / 2, num_steps)
        return [own[0].item(), all(seen)]
    pushes = []
    for step in range(1, num_steps + 1):
        dist.send(torch.full((4,), 10.0 * step), dst=1)
        dist.recv(pushed := torch.empty(4), src=1)
        pushes.append(pushed[0].item())
    return pushes


steps = run_with_hint(
    "a step first receives from rank 0, then sends to rank 0; the server does the reverse.",
    hands_out_numbers,
    3,
    world_size=2,
)
show(draw.messages(steps.timeline, title="Three steps of one worker, emulated"))
pushes, (last, is_own) = steps.values
hint = "Half of each pull: receive, then compute, in every step."
expect_close(torch.tensor(pushes), torch.tensor([5.0, 10.0, 15.0]), "what was pushed", hint)
if last != 30 or not is_own:
    raise CheckFailed(
        "the caller's tensor to be received into, and to be given to gradient_of",
        "another tensor",
        "Make no tensor of your own: receive into `parameters`, and pass on `parameters`.",
    )
print("run_worker: 3 pulls, 3 pushes, each from the parameters of its own step.")

# %% [markdown]
# ## 2. A server that holds nobody up
#
# The server sends the parameters to every worker. Then it receives a push **from any worker**,
# applies it, and answers that worker at once. A worker that takes five times as long pushes less
# often, and the others do not notice.
#
# Two calls of torch make this easy. `dist.recv(tensor)` without `src` receives the next message
# from any rank, and returns the sender's rank. `dist.send(tensor, dst)` returns when the message
# has been received, so the tensor may change.
#
# Think of the end too: each worker gets as many pulls as it has steps, and the server returns after
# the last push.
#
# <details><summary>Hint 1: where to look</summary>
# Write down what one worker with two steps sends and receives: pull, push, pull, push. How many
# answers follow its pushes? What does the server need to count to know that?
# </details>
# <details><summary>Hint 2: how</summary>
# A dict with the steps done of each worker, one tensor to receive each push into, and a loop over
# all pushes that are still to come: receive, update, count, and answer only a worker that has steps
# left.
# </details>


# %% run_unbounded_server tags=["solution"]
def run_unbounded_server(parameters: torch.Tensor, update, num_steps: int) -> None:
    """Run this rank, rank 0, as the server, and apply every worker's gradients to `parameters`.

    - All other ranks, one or more, are workers; each pulls and pushes `num_steps` times (1 or
      more), as `run_worker` does. `parameters` is contiguous, of any shape and float dtype.
    - `update(parameters, gradient)` changes `parameters` in place. The server calls it once for
      every push, with the gradient as it came, in the order in which pushes arrive from any worker:
      it receives them without `src`. (Do not poll `irecv` handles: in virtual time,
      `is_completed()` shows which worker's process this computer happened to run first, not whose
      message came first.)
    - A pull gives a worker the current parameters. The server sends every worker its first copy
      before it receives any push. It sends a worker the next copy as soon as that worker's push has
      been applied, and not earlier. So no worker waits for another one.
    - For each worker there are `num_steps` messages from the server with the parameters,
      `num_steps` to the server with a gradient, and no others. So no worker is answered after its
      last push. The server returns after the last push of all.
    - In memory: besides `parameters`, the server never holds more than 2 + (number of workers)
      tensors of that size, however many steps there are.

    Example: `update` adds, the parameters are 0 at first, and three workers each push 1 in each of
    8 steps. A worker's pull after its n-th push is n or more, and the final value is 24.
    """
    ### BEGIN SOLUTION
    steps_done = dict.fromkeys(range(1, dist.get_world_size()), 0)
    gradient = torch.empty_like(parameters)
    for worker in steps_done:
        dist.send(parameters, dst=worker)
    while min(steps_done.values()) < num_steps:
        worker = dist.recv(gradient)
        update(parameters, gradient)
        steps_done[worker] += 1
        if steps_done[worker] < num_steps:
            dist.send(parameters, dst=worker)
    ### END SOLUTION


# %% check_run_unbounded_server points=4
from worldsize import draw

AFTER_LAST = "count the pushes that are still to come: the server returns after the last one."
UNANSWERED = (
    "a worker waits for a copy that the server owes it: the first one is sent to every worker"
    " before the server receives, and another one follows each of its pushes but the last."
)
run = run_with_hint(
    AFTER_LAST,
    pushes_ones,
    run_unbounded_server,
    8,
    world_size=4,
    hint_if_workers_wait=UNANSWERED,
)
show(draw.timeline(run.timeline, "Worker 3 is five times slower, emulated", ["compute"]))
expect_served(run, [8 * 0.0103, 8 * 0.0106, 8 * 0.05])
print("run_unbounded_server: every push applied, every pull up to date, and nobody held up.")

# %% [markdown]
# ## 3. The bound
#
# Count the **steps done** of each worker: its gradients that the server has applied. A worker that
# wants to begin a step is *ahead* of the slowest by the difference between their counts. The
# **staleness bound** *s* limits this: at most *s* steps (Ho et al. 2013, *More Effective
# Distributed ML via a Stale Synchronous Parallel Parameter Server*).
#
# ```text
# steps done       worker 1: 5    worker 2: 3    worker 3: 4        the slowest has done 3
#
# s = 2            may start      may start      may start          5 - 3 = 2 is not too far
# s = 1            waits          may start      may start
# s = 0            waits          may start      waits              all begin each step together
# ```
#
# <details><summary>Hint: where to look</summary>
# The slowest worker is the one with the smallest count, and it may always start: it is 0 ahead.
# </details>


# %% may_start tags=["solution"]
def may_start(steps_done: dict[int, int], worker: int, staleness_bound: int) -> bool:
    """True if this worker may begin its next step, False if it has to wait.

    - `steps_done` holds, for every worker, how many of its gradients the server has applied.
    - A worker may begin while it is at most `staleness_bound` steps ahead of the slowest one (which
      may be itself). The bound is a whole number, 0 or more.

    Example: with `{1: 5, 2: 3, 3: 4}` and a bound of 1, workers 2 and 3 may start.
    """
    ### BEGIN SOLUTION
    return steps_done[worker] - min(steps_done.values()) <= staleness_bound
    ### END SOLUTION


# %% check_may_start points=1
def simulated(step_s, staleness_bound, num_steps):
    """The timeline, computed, of workers that begin as soon as `may_start` lets them."""
    ranks = range(len(step_s))
    events, clock_s = [], 0.0
    steps_done, busy_until_s = dict.fromkeys(ranks, 0), dict.fromkeys(ranks, math.inf)
    while min(steps_done.values()) < num_steps:
        for rank in ranks:
            is_idle = busy_until_s[rank] == math.inf and steps_done[rank] < num_steps
            if is_idle and may_start(dict(steps_done), rank, staleness_bound):
                busy_until_s[rank] = clock_s + step_s[rank]
                name = str(steps_done[rank] + 1)
                events.append(ws.Event(rank, "main", "compute", name, clock_s, busy_until_s[rank]))
        clock_s = min(busy_until_s.values())
        if clock_s == math.inf:
            raise CheckFailed(
                "some worker to start",
                f"all wait, at {steps_done}",
                "The slowest may always start.",
            )
        for rank in ranks:
            if busy_until_s[rank] <= clock_s:
                steps_done[rank], busy_until_s[rank] = steps_done[rank] + 1, math.inf
    return ws.Timeline.of_events(events)


from worldsize import draw

bounded = simulated([0.01, 0.01, 0.03], 2, 6)
show(draw.timeline(bounded, "Bound 2, one worker three times slower, computed from may_start"))
hint = "Its own count less the smallest count, against the bound."
for bound, allowed in {
    0: [False, True, False],
    1: [False, True, True],
    2: [True, True, True],
}.items():
    given = [bool(may_start({1: 5, 2: 3, 3: 4}, worker, bound)) for worker in (1, 2, 3)]
    if given != allowed:
        raise CheckFailed(
            f"{allowed} for 5, 3 and 4 steps done and bound {bound}", f"{given}", hint
        )
try:
    is_alone_free = bool(may_start({1: 3}, 1, 0))
except ValueError:
    is_alone_free = False
if not is_alone_free:
    hint = "The slowest worker may be the one that asks: its own count belongs among the others."
    raise CheckFailed("a worker without others to start at any bound", "it may not", hint)
print("may_start: with 5, 3 and 4 steps done, bounds 0, 1 and 2 are kept.")

# %% [markdown]
# ## 4. A server with a bound
#
# Now the server of section 2 keeps the bound. A worker that may not go on waits for its answer
# until a push of a slower worker allows it. So after a push the server may answer one worker, many,
# or none at all.
#
# <details><summary>Hint 1: where to look</summary>
# Whose answer may become possible when the slowest worker pushes? Ask <code>may_start</code> not
# only for the worker that has just pushed.
# </details>
# <details><summary>Hint 2: how</summary>
# Keep a set of the workers that wait for an answer; at first it holds all of them. Before each
# receive, send to every worker in the set that may start, and remove it. After a push, add the
# worker that pushed, unless it has done all its steps.
# </details>
# <details><summary>Hint 3: the ranks hang</summary>
# The report says who waits for whom. Workers that wait for rank 0 while rank 0 receives were never
# answered: they are in your set, and <code>may_start</code> was not called for them again.
# </details>


# %% run_server tags=["solution"]
def run_server(parameters: torch.Tensor, update, num_steps: int, staleness_bound: int) -> None:
    """Run this rank, rank 0, as a server that keeps a staleness bound.

    - Everything is as in `run_unbounded_server` (workers, messages, `update`, the order of pushes,
      the end, memory), except that a worker may have to wait for its next copy.
    - The server sends every worker its first copy before it receives any push. It sends a worker
      the next copy as soon as `may_start` is True for it, by the pushes applied so far, and not
      earlier: after every push it asks again for all workers that wait. So no worker begins a step
      more than `staleness_bound` steps ahead of the slowest, and none waits for anything but the
      bound.
    - With a bound of 0 all workers compute every step from the same parameters.

    Example: worker 3 needs 50 ms for a step and the others 10 ms; each has 8 steps. With a bound of
    2, worker 1 has to wait for the fifth step of worker 3 before it begins its eighth, and is done
    after 5 x 50 + 10 ms.
    """
    ### BEGIN SOLUTION
    steps_done = dict.fromkeys(range(1, dist.get_world_size()), 0)
    waiting, gradient = set(steps_done), torch.empty_like(parameters)
    while True:
        for worker in sorted(waiting):
            if may_start(steps_done, worker, staleness_bound):
                dist.send(parameters, dst=worker)
                waiting.remove(worker)
        if min(steps_done.values()) == num_steps:
            return
        worker = dist.recv(gradient)
        update(parameters, gradient)
        steps_done[worker] += 1
        if steps_done[worker] < num_steps:
            waiting.add(worker)
    ### END SOLUTION


# %% check_run_server points=5.5
from worldsize import draw

ENDS = "nobody is answered after its last push, and the server returns after the last of all."
HELD = (
    "a worker waits for a copy that it may have. All get the first one before the server receives;"
    " after every push ask may_start again for all workers that wait: the push of the slowest may"
    " allow others to go on."
)


def with_bound(bound):
    """The server with this bound, as one without."""
    return lambda parameters, update, num_steps: run_server(parameters, update, num_steps, bound)


for bound, slow_steps in {0: 7, 2: 5, 100: None}.items():
    print(f"bound {bound}")
    fast_s = [(slow_steps * 0.05 if slow_steps else 7 * one) + one for one in (0.0103, 0.0106)]
    bounded = run_with_hint(
        ENDS, pushes_ones, with_bound(bound), 8, world_size=4, hint_if_workers_wait=HELD
    )
    if bound == 2:
        show(draw.timeline(bounded.timeline, "Bound 2, worker 3 five times slower", ["compute"]))
    expect_served(bounded, [*fast_s, 8 * 0.05])
    if bound == 0 and len({tuple(of_worker) for of_worker in bounded.values[1:]}) > 1:
        hint = "With a bound of 0, answer no worker until all have pushed, then answer all."
        raise CheckFailed("the same parameters for all in each step", f"{bounded.values[1:]}", hint)
print("run_server: bounds 0, 2 and 100 hold the fast workers as long as they have to, no longer.")

# %% [markdown]
# ## 5. LARS
#
# Many workers make a large batch, and a large batch needs a large learning rate. But layers differ:
# a rate that changes one layer by a thousandth may overwrite another one. LARS gives each layer a
# **trust ratio**, so that a step changes every layer by the same small fraction (You, Gitman and
# Ginsburg 2017, *Large Batch Training of Convolutional Networks*). For the weights $w$ of one layer
# with gradient $g$, weight decay $\beta$ and trust coefficient $\eta$:
#
# $$\lambda = \eta \, \frac{\lVert w \rVert}{\lVert g \rVert + \beta \lVert w \rVert}
# \qquad v \leftarrow m \, v + \gamma \, \lambda \, (g + \beta w) \qquad w \leftarrow w - v$$
#
# $\gamma$ is the learning rate, $m$ the momentum, and $v$ starts at 0. An example by hand, with
# $w = (3, 4)$, $g = (0, 2)$, $\beta = 0.2$ and $\eta = 0.06$:
# $\lambda = 0.06 \cdot 5 / (2 + 0.2 \cdot 5) = 0.1$.
#
# The learning rate is inside $v$: when it changes, the steps already in $v$ keep the rate that they
# had. The paper does not define the ratio of a layer whose weights or gradient are zero; here, as
# in most implementations, it is 1.


# %% lars_step tags=["solution"]
def lars_step(
    parameters: list[torch.Tensor],
    gradients: list[torch.Tensor],
    velocities: list[torch.Tensor],
    learning_rate: float,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    trust_coefficient: float = 0.001,
) -> list[float]:
    """Take one LARS step in place, and return the trust ratio of each tensor as a float.

    - Apply the formulas above to each tensor of `parameters` separately, with the tensors at the
      same place of `gradients` and `velocities`. Norms are Euclidean, over all elements of a
      tensor, of the weights before the step.
    - Where the norm of the weights or of the gradient is 0, the ratio is 1.
    - Gradients do not change. Parameters may require gradients; autograd records nothing of the
      step (work inside `with torch.no_grad():`).
    """
    ### BEGIN SOLUTION
    ratios = []
    with torch.no_grad():
        for weights, gradient, velocity in zip(parameters, gradients, velocities, strict=True):
            weights_norm, gradient_norm = weights.norm().item(), gradient.norm().item()
            ratio = 1.0
            if weights_norm and gradient_norm:
                ratio = (
                    trust_coefficient * weights_norm / (gradient_norm + weight_decay * weights_norm)
                )
            velocity.mul_(momentum).add_(
                gradient + weight_decay * weights, alpha=learning_rate * ratio
            )
            weights.sub_(velocity)
            ratios.append(ratio)
    return ratios
    ### END SOLUTION


# %% check_lars_step points=4
from worldsize import draw

weights, velocity = torch.tensor([3.0, 4.0]), torch.tensor([1.0, 0.0])
ratios = lars_step([weights], [torch.tensor([0.0, 2.0])], [velocity], 0.5, 0.9, 0.2, 0.06)
expect_close(
    torch.tensor(ratios),
    torch.tensor([0.1]),
    "the ratio of the example",
    "0.06 * 5 / (2 + 0.2 * 5).",
)
expect_written_into(velocity, torch.tensor([1.0, 0.0]), "v")
expect_written_into(weights, torch.tensor([3.0, 4.0]), "w")
hint = "`v = 0.9 * (1, 0) + 0.5 * 0.1 * ((0, 2) + 0.2 * (3, 4))`."
expect_close(velocity, torch.tensor([0.93, 0.14]), "v of the example", hint)
expect_close(weights, torch.tensor([2.07, 3.86]), "w of the example", "`w - v`, with the new v.")
no_norm = lars_step(
    [torch.zeros(2), torch.ones(2)],
    [torch.ones(2), torch.zeros(2)],
    [torch.zeros(2), torch.zeros(2)],
    0.5,
    weight_decay=0.2,
)
hint = "Weights of 0, then a gradient of 0: look at each norm by itself, not at the denominator."
expect_close(torch.tensor(no_norm), torch.ones(2), "the ratios where a norm is 0", hint)

lars = losses_of(
    lambda layers, gradients, states, _: lars_step(
        layers, gradients, states[0], 1.0, 0.9, 1e-4, 0.02
    )
)
show(draw.curves({"LARS": lars}, title="All 1,797 digits in one batch"))
if not lars[-1] < 0.7:
    raise CheckFailed(
        "a loss below 0.7 after 40 steps", f"{lars[-1]:.2f}", "Does every layer move?"
    )
print(f"lars_step: the example by hand, and a loss of {lars[-1]:.2f} after 40 steps.")

# %% [markdown]
# ## 6. LAMB
#
# The same idea on top of Adam (You et al. 2020, *Large Batch Optimization for Deep Learning:
# Training BERT in 76 minutes*: the LAMB algorithm, with $\phi$ the identity). In step $t$ = 1, 2,
# ..., for each layer, element by element:
#
# $$m \leftarrow \beta_1 m + (1 - \beta_1) \, g
# \qquad v \leftarrow \beta_2 v + (1 - \beta_2) \, g^2$$
#
# $$\hat m = \frac{m}{1 - \beta_1^t} \qquad \hat v = \frac{v}{1 - \beta_2^t} \qquad
# r = \frac{\hat m}{\sqrt{\hat v} + \epsilon}$$
#
# $$w \leftarrow w -
# \gamma \, \frac{\lVert w \rVert}{\lVert r + \lambda w \rVert} \, (r + \lambda w)$$
#
# $\lambda$ is the weight decay, and the fraction is the trust ratio; it is 1 where one of its norms
# is 0. An example by hand: step 1 with $w = (3, 4)$, $g = (2, 2)$, $\lambda = 0.25$: $\hat m = g$
# and $\hat v = g^2$, so that $r = (1, 1)$ and $r + \lambda w = (1.75, 2)$; the ratio is
# $5 / \sqrt{1.75^2 + 2^2} = 1.881$.
#
# Keep $m$ and $v$ for the next step, not $\hat m$ and $\hat v$.


# %% lamb_step tags=["solution"]
def lamb_step(
    parameters: list[torch.Tensor],
    gradients: list[torch.Tensor],
    first_moments: list[torch.Tensor],
    second_moments: list[torch.Tensor],
    step: int,
    learning_rate: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-6,
    weight_decay: float = 0.01,
) -> list[float]:
    """Take one LAMB step in place, and return the trust ratio of each tensor as a float.

    - Apply the formulas above to each tensor of `parameters` separately, with the tensors at the
      same place of the other lists. `step` is t = 1, 2, ... Norms are Euclidean, over all elements
      of a tensor, of the weights before the step.
    - Where the norm of the weights or that of r + weight_decay * w is 0, the ratio is 1.
    - Gradients do not change. Parameters may require gradients; autograd records nothing of the
      step (work inside `with torch.no_grad():`).
    """
    ### BEGIN SOLUTION
    beta_1, beta_2 = betas
    ratios = []
    with torch.no_grad():
        for weights, gradient, first, second in zip(
            parameters, gradients, first_moments, second_moments, strict=True
        ):
            first.mul_(beta_1).add_(gradient, alpha=1 - beta_1)
            second.mul_(beta_2).addcmul_(gradient, gradient, value=1 - beta_2)
            direction = first / (1 - beta_1**step) / ((second / (1 - beta_2**step)).sqrt() + eps)
            direction += weight_decay * weights
            weights_norm, direction_norm = weights.norm().item(), direction.norm().item()
            ratio = weights_norm / direction_norm if weights_norm and direction_norm else 1.0
            weights.sub_(direction, alpha=learning_rate * ratio)
            ratios.append(ratio)
    return ratios
    ### END SOLUTION


# %% check_lamb_step points=4
from worldsize import draw

weights, gradient = torch.tensor([3.0, 4.0]), torch.tensor([2.0, 2.0])
first, second = torch.zeros(2), torch.zeros(2)
ratios = lamb_step([weights], [gradient], [first], [second], 1, 0.1, (0.9, 0.999), 1e-6, 0.25)
hint = {
    "0.53": "That is the fraction upside down: the norm of the weights is above.",
    "0.88": "Divide m and v by 1 - beta ** step, which corrects their start at 0.",
    "1.77": "That is 5 / |g|. The norm below is that of r + weight_decay * w.",
    "3.54": "That is 5 / |(1, 1)|: the weight decay is added to r, and counts in the norm below.",
}.get(f"{ratios[0]:.2f}", "5 / |(1.75, 2)|.")
expect_close(torch.tensor(ratios), torch.tensor([1.8814]), "the ratio of the example", hint)
expect_written_into(first, torch.zeros(2), "m")
expect_written_into(second, torch.zeros(2), "v")
expect_written_into(weights, torch.tensor([3.0, 4.0]), "w")
expect_close(
    first,
    torch.tensor([0.2, 0.2]),
    "m of the example",
    "0.1 * (2, 2): what is kept is not corrected.",
)
hint = "`w - 0.1 * 1.8814 * (1.75, 2)`."
expect_close(weights, torch.tensor([2.67075, 3.62371]), "w of the example", hint)
tiny, weights = torch.full((2,), 1e-6), torch.tensor([3.0, 4.0])
ratios = lamb_step([weights], [tiny], [0 * tiny], [0 * tiny], 1, 0.1, eps=1e-6, weight_decay=0.0)
hint = "With g = eps = 1e-6, r = 1e-6 / (1e-6 + 1e-6) = 0.5: eps is added to the root, not inside."
expect_close(torch.tensor(ratios), torch.tensor([7.07107]), "the ratio of a tiny gradient", hint)

weights, zeros = torch.tensor([3.0, 4.0]), [torch.zeros(2) for _ in range(3)]
ratios = lamb_step([weights], zeros[:1], zeros[1:2], zeros[2:], 5, 0.1, weight_decay=0.25)
hint = "With a gradient of 0, r + weight_decay * w is 0.25 * w: ask for this norm, not that of r."
expect_close(torch.tensor(ratios), torch.tensor([4.0]), "the ratio where r is 0", hint)
ratios = lamb_step([torch.zeros(2)], [torch.ones(2)], [torch.zeros(2)], [torch.zeros(2)], 1, 0.1)
hint = "Check for a norm of 0: here it is that of the weights."
expect_close(torch.tensor(ratios), torch.tensor([1.0]), "the ratio where w is 0", hint)
first, second = torch.tensor([1.0, 1.0]), torch.tensor([1.0, 1.0])
lamb_step([torch.ones(2)], [torch.ones(2)], [first], [second], 3, 0.1)
state = [torch.zeros(2)], [first], [second]
ratios = lamb_step([torch.tensor([3.0, 4.0])], *state, 4, 0.1, (0.5, 0.5), weight_decay=0.0)
hint = "In step 4 divide by 1 - beta ** 4: take t from `step`, and do not count calls."
expect_close(torch.tensor(ratios), torch.tensor([4.8412]), "the ratio in step 4", hint)

lamb = losses_of(
    lambda layers, gradients, states, number: lamb_step(layers, gradients, *states, number, 0.05)
)
show(draw.curves({"LAMB": lamb}, title="All 1,797 digits in one batch"))
if not lamb[-1] < 0.5:
    raise CheckFailed(
        "a loss below 0.5 after 40 steps", f"{lamb[-1]:.2f}", "Does every layer move?"
    )
print(f"lamb_step: the example by hand, and a loss of {lamb[-1]:.2f} after 40 steps.")

# %% [markdown]
# ## 7. In words
#
# A job has 32 workers. A step takes 0.2 s on 31 of them; the last one runs on an overheated node,
# and its steps always take 1 s. Gradients and parameters have 100 MB. The server's link carries 10
# GB/s in each direction, both at the same time; latency does not matter. Count throughput in
# gradients per second.
#
# Answer in at most 250 words, with numbers:
#
# 1. Ignoring communication, what is the throughput of synchronous SGD, and what would the workers
#    of an asynchronous server reach together if its link were no limit?
# 2. What does the link allow? What would you change about the server?
# 3. Someone proposes a staleness bound of 10 instead of no bound. What is the throughput then, an
#    hour into the job?
# 4. Without a bound, about how many updates old is a fast worker's gradient when it is applied? By
#    how much does this shrink the largest stable learning rate on a quadratic, compared with a
#    fresh gradient? (The bound is 2 sin(π / (2(2τ + 1))) over the curvature; it is derived in week
#    4.)
# 5. What would you do about this worker, and what throughput does that give?

# %% when_to_wait [markdown] points=5 tags=["solution"]
# **Answer.**
#
# 1. Synchronous: all wait for the slow one, 32 gradients in 1 s, 32 a second. Asynchronous: 31 /
#    0.2 + 1 / 1 = 156 a second. (If nobody were slow it would be 160.)
# 2. A gradient in and the parameters out take 100 MB / 10 GB/s = 10 ms each, at the same time: at
#    most 100 gradients a second. The link decides, not the workers. Two servers, each with half of
#    the parameters, allow 200.
# 3. The bound lets the fast ones run ahead by 10 steps, once. From then on they advance as fast as
#    the slowest: 32 a second, as without a server. A bound helps where a worker is slow now and
#    then, not where it is always slow.
# 4. Between its pull and its push, each of the other fast workers has pushed about once: τ is about
#    30, 31 at the most. 2 sin(π / 122) = 0.0515 instead of 2: a factor of 39 (for 31 it is 40).
# 5. Leave it out: take the first 31 gradients of each step, as with a backup worker: 31 / 0.2 = 155
#    a second, no gradient is stale, and all-reduce among the 31 needs no server. Or repair the
#    node, or give that worker a fifth of a batch: then all are done after 0.2 s.
#
# **Rubric**, one point each:
#
# - 32 and 156 a second, with the maximum and the sum of rates as reasons.
# - 100 a second from 100 MB over 10 GB/s (half a point for 50, if the answer says that directions
#   do not overlap, against the text), and several servers, each with a part, or fewer bytes, as the
#   change.
# - The bound: about 32 a second in the long run, because all are held at the slowest's pace once
#   they are 10 ahead.
# - A delay of 30 or 31 updates, and a factor of 39 to 41 from the formula.
# - A remedy with a throughput that follows from it: leaving it out (155), backup worker, less work
#   for it, a repair (160).
#
# Half a point where the reasoning is right and a number is wrong by a slip. No point for a list of
# facts without numbers.

# %% [markdown]
# ## What you have built
#
# The next cell runs your server on real processes and real sockets of this machine, with a bound
# that never applies: first with workers of equal speed, then with one that is five times slower.
# The fast workers should not notice.


# %% on_real_ranks
def real_steps(slow_factor):
    """Seconds that this rank took for 20 steps of 10 ms each; the last rank's steps are longer."""
    import time

    torch.set_num_threads(1)
    start_s = time.perf_counter()
    if dist.get_rank() == 0:
        run_server(torch.zeros(10_000), lambda weights, gradient: weights.sub_(gradient), 20, 20)
    else:
        is_slow = dist.get_rank() == dist.get_world_size() - 1

        def gradient_of(weights):
            time.sleep(0.01 * slow_factor if is_slow else 0.01)
            return weights / 100

        run_worker(torch.zeros(10_000), gradient_of, 20)
    return time.perf_counter() - start_s


for slow_factor in (1, 5):
    server_s, *workers_s = ws.run(
        real_steps, slow_factor, world_size=4, backend="gloo", echo=False
    ).values
    times = ", ".join(f"{1e3 * time_s:.0f} ms" for time_s in workers_s)
    print(f"last worker {slow_factor} times slower: workers done after {times}")
