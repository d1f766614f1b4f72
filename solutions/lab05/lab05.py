# %% [markdown]
# # Lab 5. A compressing communication hook
#
# DDP all-reduces every bucket of gradients. A **communication hook** replaces that: DDP passes it a
# bucket, and it returns a future of the gradients to use. In this lab you write two hooks that send
# a fraction of the bytes, and that lose nothing for good: what is not sent is kept, and added to
# the next gradient.
#
# ```text
#                     ┌───────────── bucket ─────────────┐
# gradient  ──► + ──► │ compress ──► exchange ──► unpack │ ──► what the optimizer gets
#               ▲     └────┬─────────────────────────────┘
#               └─ memory ◄┘  what was not sent
# ```
#
# | Function | What it does | Points |
# |---|---|---|
# | `top_k` | the largest entries of a vector, and their places | 2 |
# | `top_k_hook` | sends the largest entries, and keeps the rest | 9 |
# | `orthogonalise` | columns at right angles, of length 1 | 2 |
# | `power_hook` | PowerSGD: sends two thin factors of each matrix | 8 |
# | `when_it_pays` | questions that you answer in words | 4 |
#
# Each docstring is a contract: everything that it promises is graded, and nothing else. The checks
# register your hooks with torch's own `DistributedDataParallel` on an emulated cluster: the ranks
# and the gradients are real, and every operation is recorded and priced. They look at the result,
# **at the wire** and at what your hook keeps.
#
# `top_k_hook` may all-gather, `power_hook` may all-reduce. Any other operation of
# `torch.distributed` is refused, except those that DDP itself calls. The module
# `torch.distributed.algorithms.ddp_comm_hooks` contains torch's own hooks, and may not be imported.

# %% setup
import math

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import worldsize as ws
from worldsize.check import CheckFailed, expect_close

OF_DDP = {
    "all_gather",
    "broadcast",
    "barrier",
}  # what DDP needs itself, to compare and to copy parameters
EMULATED = {"world_size": 2, "cluster": "a100-10gbe", "compute": "none", "echo": False}


class TopKState:
    """The state of `top_k_hook`: the fraction to send, and what was not sent so far."""

    def __init__(self, fraction: float) -> None:
        self.fraction = fraction
        self.memory = {}  # parameter: what of its gradients was not sent, a tensor of its shape

    def num_sent(self, num_elements: int) -> int:
        """The number of entries to send of `num_elements`: at least one."""
        return max(1, round(self.fraction * num_elements))


class PowerState:
    """The state of `power_hook`: rank, seed, what was not sent so far, and the last factors."""

    def __init__(self, rank: int, seed: int = 0) -> None:
        self.rank, self.seed = rank, seed
        self.memory = {}  # parameter: what of its gradients was not sent, a tensor of its shape
        self.q = {}  # parameter: the factor Q of its last step


def show(picture):
    from IPython.display import display  # here and not above: the ranks need neither

    display(picture)


ws.run(dist.get_rank, **EMULATED)  # the first run loads torch: the checks are then quick

# %% [markdown]
# The next cell defines a model whose gradients are *given*: its loss is the sum of all parameters,
# each times the number that is to be its gradient. So you know what goes into your hook, and see
# what comes out.


# %% given_gradients
class GivenGradients(nn.Module):
    def __init__(self, shapes):
        super().__init__()
        self.tensors = nn.ParameterList([nn.Parameter(torch.zeros(shape)) for shape in shapes])

    def forward(self, gradients):
        return sum(
            (one * gradient).sum() for one, gradient in zip(self.tensors, gradients, strict=True)
        )


def results_of(hook, state, steps, bucket_cap_mb=25.0):
    model = GivenGradients([gradient.shape for gradient in steps[0]])
    ddp = DistributedDataParallel(model, bucket_cap_mb=bucket_cap_mb)
    ddp.register_comm_hook(state, hook)
    results = []
    for gradients in steps:
        model.zero_grad()
        ddp(gradients).backward()
        results.append([one.grad.clone() for one in model.tensors])
    return results, [state.memory.get(one) for one in model.tensors]


# %% [markdown]
# ## 1. The largest entries
#
# Most entries of a gradient are small. **Top-k** sends the *k* entries that are largest in
# magnitude, and their places. An entry in float32 takes 4 bytes, and its place 4 more as an int32:
# as an int64 it would take 8.


# %% top_k tags=["solution"]
def top_k(vector: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k entries of `vector` that are largest in magnitude, with their signs, and their places.

    - `vector` is 1-D, of a floating-point dtype, with k elements or more; k is at least 1.
    - Two tensors of k elements each, in the same order as each other (any order): the values in the
      vector's dtype, and the places as int32. Among entries of equal magnitude any may be taken.
    - `vector` does not change.
    """
    ### BEGIN SOLUTION
    places = vector.abs().topk(k).indices
    return vector[places], places.int()
    ### END SOLUTION


# %% check_top_k points=2
def check_top_k():
    from worldsize import draw

    vector = torch.randn(60, generator=torch.Generator().manual_seed(5))
    values, places = top_k(vector, 12)
    if places.dtype != torch.int32:
        raise CheckFailed(
            "places of type torch.int32", f"{places.dtype}", "A place then costs 4 bytes, not 8."
        )
    kept = torch.zeros(60).index_put((places.long(),), values)
    curves = {"vector": vector.tolist(), "top 12": kept.tolist()}
    show(
        draw.curves(
            curves, y_label="value", x_label="element", title="What top-k keeps of a vector"
        )
    )
    wanted = torch.where(vector.abs() >= vector.abs().sort().values[-12], vector, 0.0)
    hint = "Large means far from 0: -3 is large."
    expect_close(kept, wanted, "the vector with all but its 12 largest entries 0", hint)
    share = (kept.norm() / vector.norm()).item() ** 2
    print(f"top_k: 12 of 60 entries hold {share:.0%} of the squared length.")


check_top_k()

# %% [markdown]
# ## 2. A top-k hook with memory
#
# DDP calls `hook(state, bucket)` during the backward pass, as soon as a bucket's gradients are
# complete:
#
# - `bucket.buffer()` is one flat tensor with all gradients of the bucket, one after the other;
# - `bucket.gradients()` are *views* into it, one for each parameter, in the parameter's shape;
# - `bucket.parameters()` are the parameters, in the same order.
#
# The hook returns a `torch.futures.Future` of a tensor like the buffer.
# `dist.all_gather(..., async_op=True)` starts an operation and returns a handle.
# `handle.get_future()` is its future, `future.then(function)` is the future of the function's
# result, and `torch.futures.collect_all([...])` combines several futures. If the hook waited
# instead, the backward pass would stop.
#
# ```text
# gradient + memory      0.1  -2.0   0.3   0.7  -0.2   1.5
# sent, with k = 2         .  -2.0     .     .     .   1.5
# kept                   0.1     .   0.3   0.7  -0.2     .
# ```
#
# One trap: DDP's first step has **one bucket** with everything in it. Then DDP knows in which order
# gradients become complete, and groups the parameters again. So store what you keep by parameter,
# not by bucket.


# %% top_k_hook tags=["solution"]
def top_k_hook(state: TopKState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A future of a tensor like `bucket.buffer()`: the mean of what all ranks send.

    - A rank adds to each gradient of the bucket what `state.memory` holds for its parameter:
      nothing at first. Of these sums it sends the k that are largest in magnitude in the whole
      bucket, with k = state.num_sent(number of elements in the bucket). Entries that a rank does
      not send count as 0 in the mean.
    - After the backward pass, `state.memory[parameter]`, of the parameter's shape, is what this
      rank has not sent of that parameter's sum. So, for each element on each rank: sent + kept =
      gradient + kept before. This holds in every step, even after DDP has moved the parameters to
      other buckets.
    - The result has the same bits on all ranks.
    - At most two operations for a bucket, both all-gathers. For k entries, a rank contributes at
      most 8 k bytes to them.
    - It starts its operations and returns. It does not wait for them.
    - Parameters are float32, of any shape. With fraction 1 the result is the mean of the gradients.
    """
    ### BEGIN SOLUTION
    buffer, world_size = bucket.buffer(), dist.get_world_size()
    for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
        if parameter in state.memory:
            gradient += state.memory[parameter]  # a view: this changes the buffer
    values, places = top_k(buffer, state.num_sent(buffer.numel()))
    buffer[places.long()] = 0
    for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
        state.memory[parameter] = gradient.clone()
    all_values = [torch.empty_like(values) for _ in range(world_size)]
    all_places = [torch.empty_like(places) for _ in range(world_size)]
    works = [
        dist.all_gather(all_values, values, async_op=True),
        dist.all_gather(all_places, places, async_op=True),
    ]

    def mean(_):
        buffer.zero_().index_add_(0, torch.cat(all_places), torch.cat(all_values))
        return buffer.div_(world_size)

    return torch.futures.collect_all([work.get_future() for work in works]).then(mean)
    ### END SOLUTION


# %% check_top_k_hook points=9
def send_a_quarter(steps):
    return results_of(top_k_hook, TopKState(0.25), steps, bucket_cap_mb=0.001)


def check_top_k_hook():
    from worldsize import draw

    drawn = torch.randn(
        2, 3, 480, generator=torch.Generator().manual_seed(1)
    )  # rank, step, element
    each = [([[one[:400].view(20, 20), one[400:]] for one in of_rank],) for of_rank in drawn]
    run = ws.run(send_a_quarter, each=each, allow=OF_DDP, **EMULATED)
    show(draw.timeline(run.timeline, title="Three steps with top-k, emulated on 10 Gb/s"))
    flat = [
        [torch.cat([part.flatten() for part in step]) for step in value[0]] for value in run.values
    ]
    sums = drawn.sum(dim=1)  # what the gradients of three steps add up to
    acc = drawn[:, 0]
    sent = torch.where(acc.abs() >= acc.abs().sort(dim=1).values[:, -120:-119], acc, 0.0)
    hint = (
        "Each rank sends 120 of its 480 entries; the result is the sum over the ranks, divided by"
        " their number."
    )
    expect_close(flat[0][0], sent.mean(dim=0), "the first step's result", hint)
    if any(part is None for value in run.values for part in value[1]):
        raise CheckFailed(
            "state.memory[parameter] for every parameter", "none", "Keep what was not sent."
        )
    kept = torch.stack([torch.cat([part.flatten() for part in value[1]]) for value in run.values])
    hint = (
        "What three steps sent and what is kept add up to all gradients: nothing is lost, nothing"
        " sent twice."
    )
    expect_close(
        sum(flat[0]) + kept.mean(dim=0),
        sums.mean(dim=0),
        "sent + kept after three steps",
        hint,
        atol=1e-4,
    )
    if not all(torch.equal(a, b) for a, b in zip(*flat, strict=True)):
        raise CheckFailed(
            "the same bits on both ranks", "different results", "Add up in the order of the ranks."
        )
    print(
        "top_k_hook: 480 gradients, 120 entries sent by each rank in each step, nothing lost in"
        " three steps."
    )


check_top_k_hook()

# %% [markdown]
# ## 3. Columns at right angles
#
# PowerSGD does not send entries. The gradient of a layer is a matrix M with n rows and m columns,
# and PowerSGD approximates it by the product of two thin matrices: P, with r columns, and the
# transpose of Q, with r columns too.
#
# ```text
#          m                r
#      ┌───────┐          ┌───┐      m
#      │       │          │   │   ┌─────┐
#    n │   M   │    ≈   n │ P │ · │  Qᵀ │ r          r (n + m) numbers instead of n m
#      │       │          │   │   └─────┘
#      └───────┘          └───┘
# ```
#
# Start with any Q. The columns of P = M Q point in directions in which M is large. Make them
# orthonormal; then Q = Mᵀ P is the part of M in these directions. This is one step of *power
# iteration* (Vogels, Karimireddy and Jaggi 2019, *PowerSGD*). First the columns.


# %% orthogonalise tags=["solution"]
def orthogonalise(matrix: torch.Tensor) -> torch.Tensor:
    """A matrix of orthonormal columns with the shape and the column space of `matrix`.

    - `matrix` has n rows and r columns, 1 <= r <= n, in float32. It may be overwritten.
    - The columns of the result have length 1 and are at right angles to each other, up to rounding.
    - If the columns of `matrix` are linearly dependent, or zero, the only promise is that the
      result is finite.
    """
    ### BEGIN SOLUTION
    return torch.linalg.qr(matrix).Q
    ### END SOLUTION


# %% check_orthogonalise points=2
def check_orthogonalise():
    from worldsize import draw

    generator = torch.Generator().manual_seed(2)
    directions = torch.linalg.qr(torch.randn(30, 30, generator=generator)).Q
    strengths = 0.7 ** torch.arange(30.0)
    matrix = directions * strengths @ torch.linalg.qr(torch.randn(30, 30, generator=generator)).Q
    one_step, best = [], []
    for rank in range(1, 9):
        p = orthogonalise(matrix @ torch.randn(30, rank, generator=generator))
        expect_close(
            p.t() @ p,
            torch.eye(rank),
            "the products of the columns",
            "1 with itself, 0 with the others.",
        )
        one_step.append(((matrix - p @ (p.t() @ matrix)).norm() / matrix.norm()).item())
        best.append((strengths[rank:].norm() / strengths.norm()).item())
    lines = {"one step of power iteration": one_step, "the best of this rank": best}
    show(
        draw.curves(
            lines,
            y_label="part that is missed",
            x_label="rank r",
            title="How close P Qᵀ comes to M",
        )
    )
    if not orthogonalise(torch.zeros(5, 2)).isfinite().all():
        raise CheckFailed(
            "finite numbers for a matrix of zeros",
            "nan or inf",
            "Do not divide a column by a length of 0.",
        )
    print(
        f"orthogonalise: at rank 4, one step misses {one_step[3]:.0%} of the matrix; the best"
        f" misses {best[3]:.0%}."
    )


check_orthogonalise()

# %% [markdown]
# ## 4. PowerSGD
#
# Now on all ranks. What matters is the mean of the gradients, and both products are linear in M:
# the sum of all M Q is (sum of all M) Q, as long as all ranks use **the same Q**. So P and Q can be
# all-reduced, and unlike the entries of top-k, their bytes do not grow with the number of ranks.
#
# ```text
# M = gradient + memory
# P = M Q                  all-reduce P: the same on all ranks       P ← orthogonalise(P)
# Q = Mᵀ P                 all-reduce Q, divide by the ranks         result = P Qᵀ
# ```
#
# The next step begins with this Q (a **warm start**): gradients change slowly, so Q improves with
# every step.


# %% power_hook tags=["solution"]
def power_hook(state: PowerState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A future of a tensor like `bucket.buffer()`: the mean over the ranks, at most of rank r.

    - A parameter of two dimensions or more is a matrix: n = shape[0] rows, and m columns, all other
      dimensions flattened. With r = min(state.rank, n, m), it is compressed if r (n + m) < n m. All
      other parameters are sent uncompressed: their result is the mean over the ranks.
    - M is a rank's gradient plus what `state.memory` holds for that parameter: nothing at first. P
      is the sum over all ranks of M Q, with its columns made orthonormal; the new Q is the mean
      over all ranks of Mᵀ P. The result is P Qᵀ.
    - In the first step Q has standard normal numbers, of shape (m, r), from a generator of your own
      with `state.seed`, the same on all ranks. In all other steps it is the new Q of the step
      before, in `state.q[parameter]`; if that is all zeros (the layer was not used), draw it as in
      the first step. The global random state does not change.
    - After the backward pass, `state.memory[parameter]`, of the parameter's shape, is what is kept
      of each compressed parameter. Averaged over the ranks: result + kept = gradient + kept before.
      (Keep M - P Qᵀ; it does not matter whether Q is the mean or the rank's own.) This holds even
      after DDP has moved the parameters to other buckets.
    - A gradient that is all zeros in one step, such as that of an unused layer, does no harm to the
      steps after it.
    - The result has the same bits on all ranks.
    - Where the mean of M has rank r or less, the result equals it, up to rounding.
    - At most three all-reduces for a bucket. Together they carry r (n + m) numbers for each
      compressed parameter, and every element of the other parameters once. The hook may wait for
      them. (It should start them itself: operations that callbacks of two buckets start may come in
      another order on another rank.)
    """
    ### BEGIN SOLUTION
    world_size, plain, matrices = dist.get_world_size(), [], []
    for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
        num_rows = parameter.shape[0] if parameter.dim() > 1 else 1
        num_columns = parameter.numel() // num_rows
        rank = min(state.rank, num_rows, num_columns)
        if rank * (num_rows + num_columns) >= parameter.numel():
            plain.append(gradient)
            continue
        if parameter not in state.q or not state.q[parameter].any():
            generator = torch.Generator().manual_seed(state.seed)
            state.q[parameter] = torch.randn(num_columns, rank, generator=generator).to(
                gradient.device
            )
        gradient += state.memory.get(parameter, 0)
        matrices.append((parameter, gradient, gradient.view(num_rows, num_columns)))

    def summed(tensors):
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        dist.all_reduce(flat)
        parts = flat.split([tensor.numel() for tensor in tensors])
        return [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]

    if plain:
        for gradient, total in zip(plain, summed(plain), strict=True):
            gradient.copy_(total / world_size)
    if matrices:
        ps = [
            orthogonalise(p)
            for p in summed([matrix @ state.q[parameter] for parameter, _, matrix in matrices])
        ]
        qs = summed([matrix.t() @ p for (_, _, matrix), p in zip(matrices, ps, strict=True)])
        for (parameter, gradient, matrix), p, q in zip(matrices, ps, qs, strict=True):
            state.q[parameter] = q / world_size
            result = p @ state.q[parameter].t()
            state.memory[parameter] = gradient - result.view_as(gradient)
            matrix.copy_(result)
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future
    ### END SOLUTION


# %% check_power_hook points=8
def send_two_factors(steps):
    return results_of(power_hook, PowerState(2), steps, bucket_cap_mb=0.001)


def check_power_hook():
    from worldsize import draw

    generator = torch.Generator().manual_seed(3)
    of_rank_2 = torch.randn(20, 2, generator=generator) @ torch.randn(2, 24, generator=generator)
    apart = torch.randn(
        20, 24, generator=generator
    )  # what the two ranks have of their own cancels in the mean
    bias = torch.arange(20.0)
    each = [([[of_rank_2 + sign * apart, bias + sign]] * 3,) for sign in (-1, 1)]
    run = ws.run(send_two_factors, each=each, allow=OF_DDP | {"all_reduce"}, **EMULATED)
    show(
        draw.timeline(run.timeline, title="Three steps of PowerSGD of rank 2, emulated on 10 Gb/s")
    )
    (results, kept), (others, kept_there) = run.values
    expect_close(
        results[0][1], bias, "the bias's result", "Vectors are averaged and not compressed."
    )
    hint = "All ranks need the same Q; the sum of P is made orthonormal; Q is the mean of Mᵀ P."
    expect_close(
        results[0][0],
        of_rank_2,
        "a mean of rank 2, compressed to rank 2,",
        hint,
        rtol=1e-3,
        atol=1e-3,
    )
    if kept[0] is None or kept_there[0] is None:
        raise CheckFailed(
            "state.memory[parameter] for the matrix", "none", "Keep what the result lacks."
        )
    both = sum(step[0] for step in results) + (kept[0] + kept_there[0]) / 2
    expect_close(
        both,
        3 * of_rank_2,
        "results + kept after three steps",
        "Nothing is lost.",
        rtol=1e-3,
        atol=1e-3,
    )
    ours, theirs = (
        torch.cat([part.flatten() for step in one for part in step]) for one in (results, others)
    )
    if not torch.equal(ours, theirs):
        raise CheckFailed(
            "the same bits on both ranks", "different results", "What you all-reduce decides."
        )
    print(
        "power_hook: a 20 x 24 matrix goes as 2 x 44 numbers, and a mean of rank 2 arrives whole."
    )


check_power_hook()

# %% [markdown]
# ## 5. In words
#
# A job trains a model of 250 million parameters on 32 GPUs with DDP: gradients of 1 GB in float32,
# 200 ms of compute a step. Communication does not overlap with compute. There are two clusters to
# choose from: in one, each GPU has a link of 1 GB/s, in the other one of 300 GB/s. Selecting the
# top 1% takes 50 ms, and so do the products of PowerSGD, whose factors have 1% of the numbers.
# Ignore latency.
#
# Answer in at most 250 words, with numbers:
#
# 1. How long is a step on each of the two clusters: uncompressed (ring all-reduce), with top-k at
#    1% (a ring all-gather of 8 bytes an entry), and with PowerSGD (ring all-reduce)? On which
#    cluster do you compress?
# 2. The slow cluster grows to 512 GPUs. Which of the three steps gets longer, to what, and why? At
#    what number of ranks does top-k at 1% send as many bytes as no compression at all?
# 3. A colleague leaves the memory out, "because the largest entries are what counts". What goes
#    wrong?

# %% when_it_pays [markdown] points=4 tags=["solution"]
# **Answer.** S = 1 GB, N = 32. A ring all-reduce sends 2(N - 1)/N · S = 1.94 GB from each rank. An
# all-gather of k = 2.5 million entries of 8 bytes, 20 MB from each, sends (N - 1) · 20 MB = 0.62
# GB. The factors of PowerSGD are 10 MB, and their all-reduce sends 19 MB.
#
# 1. At 1 GB/s: uncompressed 0.2 + 1.94 = 2.14 s; top-k 0.2 + 0.05 + 0.62 = 0.87 s; PowerSGD 0.2 +
#    0.05 + 0.02 = 0.27 s. At 300 GB/s: uncompressed 200 + 6.5 = 206 ms; top-k 250 + 2.1 = 252 ms;
#    PowerSGD 250 + 0.1 = 250 ms. The 50 ms of work are more than the 6.5 ms that can be saved:
#    compress on the slow cluster, and not on the fast one.
# 2. Top-k. An all-gather brings every rank the entries of all others: 511 · 20 MB = 10.2 GB, a step
#    of 10.5 s, when the uncompressed one still takes 2.2 s and PowerSGD's 0.27 s, because an
#    all-reduce never sends more than twice its size. Equal where (N - 1) · 8 · 0.01 n = 2 (N - 1)/N
#    · 4 n: at N = 1/0.01 = 100 ranks.
# 3. Entries that are small but always of one sign are never sent, and their sum over many steps is
#    not small: those weights stand still, and the loss stalls. Top-k is biased; with the memory
#    such an entry grows until it is sent.
#
# **Rubric**, one point each:
#
# - The six times of the first part, within 5%, and both conclusions. Half a point with one slip.
# - Top-k named for 512 GPUs with about 10 s, because the all-gather grows with N.
# - 100 ranks, or 1/fraction, with the reason.
# - The bias named: small entries of steady sign never arrive, or the loss stalls; not merely
#   "accuracy suffers".

# %% [markdown]
# ## What you have built
#
# The next cell trains a small network on real images of digits, with DDP on two real ranks and over
# real sockets: without a hook, and with each of yours.


# %% against_ddp
def train(hook, state, num_steps=40):
    from torch.nn.functional import cross_entropy

    from worldsize import images, models

    torch.set_num_threads(1)
    ddp = DistributedDataParallel(models.vision_net())
    if hook:
        ddp.register_comm_hook(state, hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    pixels, labels = images.load_digits()
    for step in range(num_steps):
        places = (torch.arange(64) + 128 * step + 64 * dist.get_rank()) % len(labels)
        optimizer.zero_grad()
        cross_entropy(ddp(pixels[places]), labels[places]).backward()
        optimizer.step()
    with torch.no_grad():
        return cross_entropy(ddp.module(pixels), labels).item()


for name, hook, state in (
    ("no hook", None, None),
    ("top-k, 5%", top_k_hook, TopKState(0.05)),
    ("PowerSGD, rank 2", power_hook, PowerState(2)),
):
    loss = ws.run(train, hook, state, world_size=2, backend="gloo", echo=False).values[0]
    print(f"{name:<17} loss over all images after 40 steps: {loss:.3f}")
