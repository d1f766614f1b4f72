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
# | Function | What it does | Points |
# |---|---|---|
# | `run_worker` | a worker: pulls, computes, pushes | 2 |
# | `may_start` | whether a worker may begin its next step | 1 |
# | `run_server` | the server: applies each push on arrival, and answers as the bound allows | 9 |
# | `lars_step` | a step of SGD with a learning rate for each layer | 4 |
# | `lamb_step` | a step of Adam with a trust ratio for each layer | 4 |
# | `when_to_wait` | questions that you answer in words | 5 |
#
# Each docstring is a contract: everything that it promises is graded, and nothing else. The checks
# run your server on an emulated cluster: the ranks and the data are real, and every message is
# recorded and priced. They look at the parameters **and at the wire**: which rank sent what to
# which other, in which order, and which one had to wait. One looks at **the server's memory**: the
# bytes of all tensors that are alive there at once.
#
# Only sending and receiving are allowed: `send`, `recv`, `isend` and `irecv`. Any other operation
# of `torch.distributed` is refused.

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


ws.run(
    dist.get_rank, world_size=4, echo=False, **MESSAGES_ONLY
)  # the first run loads torch: the checks are then quick
images, labels = digits()

# %% [markdown]
# ## 1. A worker
#
# A step of a worker has three parts. It **pulls**: it receives the parameters from the server. It
# computes a gradient at these parameters. It **pushes**: it sends the gradient to the server.
#
# The worker sends no request. To begin a step it simply receives, and waits until the server sends.
# So the server decides when a worker goes on, and a worker needs to know neither the bound nor the
# other workers.


# %% run_worker tags=["solution"]
def run_worker(parameters: torch.Tensor, gradient_of, num_steps: int) -> None:
    """Run this rank as a worker for `num_steps` steps (1 or more). The server is rank 0.

    - Each step receives the parameters into the tensor `parameters`, which is contiguous, of any
      shape and float dtype; its earlier content does not matter. Then it calls
      `gradient_of(parameters)` once, and sends the tensor that this returns, which has the shape
      and dtype of `parameters`.
    - So a step has one message from the server and one to it, and there are no others.
    - Steps run one after the other: the gradient of a step is computed from the parameters of that
      step.
    """
    ### BEGIN SOLUTION
    for _ in range(num_steps):
        dist.recv(parameters, src=0)
        dist.send(gradient_of(parameters), dst=0)
    ### END SOLUTION


# %% check_run_worker points=2
def hands_out_numbers(num_steps):
    """What a server that sends 10, 20, ... gets back from a worker that halves the parameters."""
    if dist.get_rank() == 1:
        run_worker(torch.zeros(4), lambda parameters: parameters / 2, num_steps)
        return []
    pushes = []
    for step in range(1, num_steps + 1):
        dist.send(torch.full((4,), 10.0 * step), dst=1)
        dist.recv(pushed := torch.empty(4), src=1)
        pushes.append(pushed[0].item())
    return pushes


steps = ws.run(hands_out_numbers, 3, world_size=2, **MESSAGES_ONLY)
if any(event.kind == "communication" for event in steps.timeline.events):
    from worldsize import draw

    show(draw.messages(steps.timeline, title="Three steps of one worker, emulated"))
expect_close(
    torch.tensor(steps.values[0]),
    torch.tensor([5.0, 10.0, 15.0]),
    "what was pushed",
    "Half of each pull.",
)
print("run_worker: 3 pulls, 3 pushes, each from the parameters of its own step.")

# %% [markdown]
# ## 2. The bound
#
# Count the **steps done** of each worker: its gradients that the server has applied. A worker that
# wants to begin a step is *ahead* of the slowest by the difference of their counts. The **staleness
# bound** *s* says how far that may go: at most *s* steps (Ho et al. 2013, *More Effective
# Distributed ML via a Stale Synchronous Parallel Parameter Server*).
#
# ```text
# steps done       worker 1: 5    worker 2: 3    worker 3: 4        the slowest has done 3
#
# s = 2            may start      may start      may start          5 - 3 = 2 is not too far
# s = 1            waits          may start      may start
# s = 0            waits          may start      waits              all begin each step together
# ```


# %% may_start tags=["solution"]
def may_start(steps_done: dict[int, int], worker: int, staleness_bound: int) -> bool:
    """True if this worker may begin its next step, False if it has to wait.

    - `steps_done` holds, for every worker, how many of its gradients the server has applied.
    - A worker may begin while it is at most `staleness_bound` steps ahead of the slowest one (which
      may be itself). The bound is a whole number, 0 or more.
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
print("may_start: with 5, 3 and 4 steps done, bounds 0, 1 and 2 are kept.")

# %% [markdown]
# ## 3. The server
#
# The server sends the parameters to every worker. Then it receives a push **from any worker**,
# applies it, and answers all workers that may go on. A worker that may not go on waits for its
# answer until a push of a slower worker allows it.
#
# Two calls of torch make this easy. `dist.recv(tensor)` without `src` receives the next message
# from any rank, and returns that rank. `dist.send(tensor, dst)` returns when the message has been
# received, so the tensor may change.
#
# Think of the end too: a worker gets as many pulls as it has steps, and the server returns after
# the last push.


# %% run_server tags=["solution"]
def run_server(parameters: torch.Tensor, update, num_steps: int, staleness_bound: int) -> None:
    """Run this rank, rank 0, as the server, and apply every worker's gradients to `parameters`.

    - All other ranks, one or more, are workers; each pulls and pushes `num_steps` times (1 or
      more), as `run_worker` does. `parameters` is contiguous, of any shape and float dtype.
    - `update(parameters, gradient)` changes `parameters` in place. The server calls it once for
      every push, one push after the other, in the order in which the pushes arrive from any worker:
      it receives them without `src`. (Do not poll `irecv` handles: in virtual time `is_completed()`
      shows which worker's process this computer ran first, and not whose message came first.)
    - A pull gives a worker the current parameters. The server sends every worker its first copy
      before it receives a push. It sends the next copy as soon as `may_start` is True for that
      worker, by the counts applied so far, and not earlier. So a worker is never more than
      `staleness_bound` steps ahead of the slowest, and it waits for nothing else. With a bound of 0
      all workers compute every step from the same parameters.
    - For each worker there are `num_steps` messages from the server with the parameters,
      `num_steps` to it with a gradient, and no others. So no worker is answered after its last
      push. The server returns after the last push.
    - In memory: besides `parameters` it holds at most 2 + (number of workers) tensors of that size
      at any moment, however many steps there are.
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


# %% check_run_server points=9
SLOW, NUM_STEPS, RATE = 3, 8, 0.1


def train(bound, inputs, labels):
    """The server's parameters at the end, with worker 3 five times slower than the others."""
    rank = dist.get_rank()
    if rank == 0:
        parameters = torch.zeros(64, 10)
        run_server(
            parameters, lambda weights, gradient: weights.sub_(RATE * gradient), NUM_STEPS, bound
        )
        return parameters
    batches = iter(
        torch.randperm(len(labels), generator=torch.Generator().manual_seed(rank)).split(64)
    )

    def gradient_of(weights):
        with ws.span("gradient"):
            emulate.spend(0.05 if rank == SLOW else 0.01)
        batch = next(batches)
        error = torch.softmax(inputs[batch] @ weights, dim=1) - torch.nn.functional.one_hot(
            labels[batch], 10
        )
        return inputs[batch].T @ error / len(batch)

    run_worker(torch.zeros(64, 10), gradient_of, NUM_STEPS)
    return None


ends_s = {}
for bound in (0, 2, 100):
    run = ws.run(train, bound, images, labels, world_size=4, **MESSAGES_ONLY)
    ends_s[bound] = max(event.end_s for event in run.timeline.of(1) if event.name == "send")
    if bound == 2:
        show(
            draw.timeline(
                run.timeline, "Bound 2, worker 3 five times slower, emulated", streams=["compute"]
            )
        )
    loss = torch.nn.functional.cross_entropy(images @ run.values[0], labels).item()
    print(f"bound {bound:3}: worker 1 is done after {ends_s[bound] * 1e3:4.0f} ms, loss {loss:.2f}")
    if not loss < 1:
        raise CheckFailed(
            "a loss below 1 on the digits", f"{loss:.2f}", "Is every gradient applied, once?"
        )
for bound, steps_s in {0: 7 * 0.05 + 0.01, 2: 5 * 0.05 + 0.01, 100: 8 * 0.01}.items():
    if abs(ends_s[bound] / steps_s - 1) > 0.05:
        expected = f"worker 1 done after {steps_s * 1e3:.0f} ms with bound {bound}"
        raise CheckFailed(
            expected,
            f"{ends_s[bound] * 1e3:.0f} ms",
            "It waits for the bound, and for nothing else.",
        )

# %% [markdown]
# ## 4. LARS
#
# Many workers make a large batch, and a large batch needs a large learning rate. But layers differ:
# a rate that moves one layer by a thousandth of its weights may overwrite another one. LARS gives
# each layer a **trust ratio**, so that a step is the same small part of every layer (You, Gitman
# and Ginsburg 2017, *Large Batch Training of Convolutional Networks*). For the weights $w$ of one
# layer with gradient $g$, weight decay $\beta$ and trust coefficient $\eta$:
#
# $$\lambda = \eta \, \frac{\lVert w \rVert}{\lVert g \rVert + \beta \lVert w \rVert}
# \qquad v \leftarrow m \, v + \gamma \, \lambda \, (g + \beta w) \qquad w \leftarrow w - v$$
#
# $\gamma$ is the learning rate, $m$ the momentum, and $v$ starts at 0. An example by hand: with
# $w = (3, 4)$, $g = (0, 2)$, $\beta = 0.2$ and $\eta = 0.06$:
# $\lambda = 0.06 \cdot 5 / (2 + 0.2 \cdot 5) = 0.1$.
#
# The learning rate is inside $v$: when it changes, old steps keep the rate that they had. The paper
# does not define the ratio of a layer whose weights or gradient are zero; here, as in most
# implementations, it is 1.


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
weights, velocity = torch.tensor([3.0, 4.0]), torch.tensor([1.0, 0.0])
ratios = lars_step([weights], [torch.tensor([0.0, 2.0])], [velocity], 0.5, 0.9, 0.2, 0.06)
expect_close(
    torch.tensor(ratios),
    torch.tensor([0.1]),
    "the ratio of the example",
    "0.06 * 5 / (2 + 0.2 * 5).",
)
hint = "`v = 0.9 * (1, 0) + 0.5 * 0.1 * ((0, 2) + 0.2 * (3, 4))`."
expect_close(velocity, torch.tensor([0.93, 0.14]), "v of the example", hint)
expect_close(weights, torch.tensor([2.07, 3.86]), "w of the example", "`w - v`, with the new v.")


def curve_of(step, **settings):
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


lars = curve_of(
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
# ## 5. LAMB
#
# The same idea on top of Adam (You et al. 2020, *Large Batch Optimization for Deep Learning:
# Training BERT in 76 minutes*, its algorithm for LAMB, with $\phi$ the identity). In step $t$ = 1,
# 2, ..., for each layer, element by element:
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
weights, gradient = torch.tensor([3.0, 4.0]), torch.tensor([2.0, 2.0])
first, second = torch.zeros(2), torch.zeros(2)
ratios = lamb_step([weights], [gradient], [first], [second], 1, 0.1, (0.9, 0.999), 1e-6, 0.25)
expect_close(
    torch.tensor(ratios), torch.tensor([1.8814]), "the ratio of the example", "5 / |(1.75, 2)|."
)
expect_close(
    first,
    torch.tensor([0.2, 0.2]),
    "m of the example",
    "0.1 * (2, 2): what is kept is not corrected.",
)
hint = "`w - 0.1 * 1.8814 * (1.75, 2)`."
expect_close(weights, torch.tensor([2.67075, 3.62371]), "w of the example", hint)

lamb = curve_of(
    lambda layers, gradients, states, number: lamb_step(layers, gradients, *states, number, 0.05)
)
show(draw.curves({"LAMB": lamb, "LARS": lars}, title="All 1,797 digits in one batch"))
if not lamb[-1] < 0.5:
    raise CheckFailed(
        "a loss below 0.5 after 40 steps", f"{lamb[-1]:.2f}", "Does every layer move?"
    )
print(f"lamb_step: the example by hand, and a loss of {lamb[-1]:.2f} after 40 steps.")

# %% [markdown]
# ## 6. In words
#
# A job has 32 workers. A step takes 0.2 s on 31 of them; the last one sits on a hot node, and its
# steps take 1 s, always. Gradients and parameters have 100 MB. The server's link carries 10 GB/s in
# each direction, both at the same time; latency does not matter. Count throughput in gradients per
# second.
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
#    then, not where it is slow for ever.
# 4. Between its pull and its push, each of the other fast workers has pushed about once: τ is about
#    30, 31 at the most. 2 sin(π / 122) = 0.0515 instead of 2: a factor of 39 (for 31 it is 40).
# 5. Leave it out: take the first 31 gradients of each step, as with a backup worker: 31 / 0.2 = 155
#    a second, no gradient is stale, and all-reduce among the 31 needs no server. Or repair the
#    node, or give that worker a fifth of a batch: then all are done after 0.2 s.
#
# **Rubric**, one point each:
#
# - 32 and 156 a second, with the maximum and the sum of rates as reasons.
# - 100 a second from 100 MB over 10 GB/s (50 counts if the answer says that directions do not
#   overlap, against the text: half a point), and several servers, each with a part, or fewer bytes,
#   as the change.
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
