# %% [markdown]
# # Lab 1. Average the gradients
#
# You have a training program for one process. In this lab you write the five functions that turn it
# into a program for N ranks that **computes the same weights**: N ranks with B/N samples each take
# the step that one process would have taken with all B samples.
#
# ```text
# one process   B samples ──────────────────────────► gradient ─────────────► step
#
#                         ┌─► rank 0: its samples ─► its gradient ─┐           ┌─► the same step
# N ranks       B samples ┼─► rank 1: its samples ─► its gradient ─┼─► average ┼─► the same step
#                         └─► rank 2: its samples ─► its gradient ─┘           └─► the same step
# ```
#
# Why it can work: the loss of a batch is a mean over its samples, and so is its gradient. Let rank
# $r$ hold $n_r$ of the $n = n_0 + n_1 + \dots + n_{N-1}$ samples of a batch, and let $g_r$ be the
# gradient of the mean loss over *its* samples. Then the gradient over the whole batch is
#
# $$g = \frac{1}{n} \sum_{r=0}^{N-1} n_r \, g_r .$$
#
# Only the $g_r$ and the counts $n_r$ have to travel. The samples stay where they are.
#
# | Function | What it does | Points | Time | Difficulty |
# |---|---|---|---|---|
# | `rank_batches` | splits every global batch among the ranks | 3 | 20 min | easy |
# | `broadcast_model` | gives every rank the weights of rank 0 | 2 | 10 min | easy |
# | `average_gradients` | averages the gradients over all ranks | 8 | 40 min | medium |
# | `synchronise_buffers` | gives every rank the buffers of rank 0 | 2 | 5 min | easy |
# | `train` | the loop that calls the other four | 7 | 40 min | medium |
# | `what_it_costs` | questions that you answer in words | 3 | 30 min | medium |
#
# Each docstring is a contract: everything that it promises is graded, and nothing else. Below each
# function is an open check that runs the docstring's example on real ranks. The hidden checks run
# the same function with other sizes, other numbers of ranks and the special cases that the
# docstring names. They judge each function by itself: while one is judged, correct versions stand
# in for the others. One check of `train` runs your five functions together.
#
# The open checks run on real ranks on the CPU, with Gloo, so that they give the same result on
# every machine. Most hidden checks run on an emulated cluster, which records every message. They
# look at **the wire**: which numbers travel, how many bytes they take, and how long that lasts.
# Whatever a rank knows about the others must have reached it over the wire, as plain numbers: do
# not pickle them, encode them in other numbers, or pass them through files. (Several tensors of one
# dtype may travel side by side in one message.) Some checks ask the operating system how much
# **memory** a rank uses. The same inputs must give the same bits in every run, so use no clock and
# no unseeded generator.
#
# The allowed operations are `broadcast`, `all_reduce`, `reduce`, `send`, `recv`, `isend`, `irecv`
# and `barrier`. All others are refused. In an all-gather, for example, each rank would receive the
# gradients of all others: more data with every added rank. Torch's `DistributedDataParallel` is
# refused too, because it is what you build here.

# %% setup
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import worldsize as ws
from worldsize.check import CheckFailed, expect_close

ALLOWED = {"broadcast", "all_reduce", "reduce", "send", "recv", "barrier"}


def show(run, title):
    from IPython.display import display  # here and not above: the ranks need neither

    from worldsize import draw

    if run.timeline.events:
        display(
            draw.timeline(run.timeline, title=f"{title}, measured here", streams=["communication"])
        )


# the first run loads torch: the checks are then quick
ws.run(dist.get_rank, world_size=3, backend="gloo", echo=False)

# %% [markdown]
# ## 1. Split the data
#
# All ranks agree on one random order of the samples, cut it into global batches, and take their own
# part of each. No rank sends anything: the same seed gives the same order everywhere.
#
# ```text
# num_samples=10, batch_size=4, world_size=2
#
# order of this epoch     7  2  9  0  │  4  8  1  5  │  6  3
#                           step 0    │    step 1    │  step 2 (shorter: nothing is dropped)
# part of rank 0          7  2        │  4  8        │  6
# part of rank 1                9  0  │        1  5  │     3
# ```
#
# Three questions to settle before you write: what makes the order of epoch 1 differ from that of
# epoch 0? What happens to the last batch when the sizes do not divide? What does a rank get when a
# batch has fewer samples than there are ranks?
#
# <details><summary>Hint 1: where to look</summary>
#
# A `torch.Generator` of your own has its own seed. `torch.randperm` accepts a generator, and
# tensors have `split` and `tensor_split`.
#
# </details>
# <details><summary>Hint 2: how</summary>
#
# Three lines: a generator with `manual_seed(seed + epoch)`, an order drawn from it, and a list that
# takes this rank's piece of every slice. `split(size)` keeps the shorter last slice;
# `tensor_split(world_size)` always gives `world_size` pieces, empty ones where it must.
#
# </details>


# %% rank_batches tags=["solution"]
def rank_batches(
    num_samples: int, batch_size: int, epoch: int, seed: int, rank: int, world_size: int
) -> list[torch.Tensor]:
    """This rank's part of every global batch of an epoch: a 1-D int64 tensor of indices per step.

    - Step k's global batch is the k-th slice of `batch_size` indices from a random order of 0 ...
      num_samples - 1. Only the last one may be shorter; no sample is dropped or repeated.
    - The order depends on `seed` and `epoch` alone: every rank computes the same one, whatever the
      state of torch's global random generator, which it leaves as it is. Each epoch (0, 1, 2,
      ...) is shuffled anew, and different seeds give different orders. (Seed 1 in epoch 0 may have
      the order of seed 0 in epoch 1.)
    - At each step the parts of the ranks are disjoint and together make up the global batch. Their
      sizes differ by at most one; which ranks get the extra samples is up to you.
    - A part may be empty, but it still has its place in the list: every rank has the same number of
      steps.
    - It communicates nothing, so it can be called for any rank, even without a process group.

    Example: 10 samples in batches of 4 on 3 ranks are 3 steps, with parts of 2, 1 and 1 samples,
    again 2, 1 and 1, and then 1, 1 and 0.
    """
    ### BEGIN SOLUTION
    generator = torch.Generator().manual_seed(seed + epoch)
    order = torch.randperm(num_samples, generator=generator)
    return [batch.tensor_split(world_size)[rank] for batch in order.split(batch_size)]
    ### END SOLUTION


# %% check_rank_batches points=3
SPLITS = [(0, 0), (1, 0), (0, 1), (0, 2)]  # seeds and epochs


def split_the_example():
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(100 + rank)  # the ranks' global generators differ
    before = torch.get_rng_state()
    parts = [rank_batches(10, 4, epoch, seed, rank, world_size) for seed, epoch in SPLITS]
    return parts, torch.equal(before, torch.get_rng_state())


def batches_of(parts):
    """The global batches of an epoch, sorted, from the parts of each rank."""
    for of_rank in parts:
        if not isinstance(of_rank, list) or not all(
            isinstance(one, torch.Tensor) for one in of_rank
        ):
            raise CheckFailed(
                "a list of tensors, one for each step", f"{of_rank!r:.80}", "What is returned?"
            )
    if len({len(of_rank) for of_rank in parts}) > 1:
        raise CheckFailed(
            "as many steps on every rank",
            f"{[len(of_rank) for of_rank in parts]} steps",
            "A rank whose part is empty still needs an entry for it.",
        )
    steps = list(zip(*parts, strict=True))
    sizes = [[len(part) for part in step] for step in steps]
    if [sum(of_step) for of_step in sizes] != [4, 4, 2]:
        raise CheckFailed(
            "10 samples in global batches of 4, 4 and 2, split among 3 ranks",
            f"parts of {sizes} samples",
            "`batch_size` counts all ranks together, and the last batch is shorter, not dropped.",
        )
    if any(max(of_step) - min(of_step) > 1 for of_step in sizes):
        raise CheckFailed(
            "parts that differ by one sample at most", f"parts of {sizes}", "See `tensor_split`."
        )
    batches = [sorted(torch.cat(step).tolist()) for step in steps]
    if sorted(sample for batch in batches for sample in batch) != list(range(10)):
        raise CheckFailed(
            "each of the samples 0 ... 9 once in an epoch",
            f"the global batches {batches}",
            "All ranks must cut the same order: draw it from a torch.Generator of your own.",
        )
    return batches


def show_owners(parts):
    from IPython.display import display

    from worldsize.draw.contrast import grid

    owners = {}
    for number, (seed, epoch) in enumerate(SPLITS):
        of_sample = {
            int(sample): f"rank {rank}"
            for rank, of_rank in enumerate(parts)
            for part in of_rank[number]
            for sample in part
        }
        owners[f"seed {seed}, epoch {epoch}"] = [of_sample[sample] for sample in range(10)]
    samples = [f"sample {sample}" for sample in range(10)]
    display(grid(owners, samples, "rank 0", "Which rank takes which sample"))


split = ws.run(split_the_example, world_size=3, backend="gloo", echo=False).values
split_batches = [batches_of([parts[number] for parts, _ in split]) for number in range(len(SPLITS))]
for number, (seed, epoch) in enumerate(SPLITS):
    if number and split_batches[number] == split_batches[0]:
        raise CheckFailed(
            f"another order with seed {seed} in epoch {epoch} than with seed 0 in epoch 0",
            "the same order",
            "The generator's seed must depend on seed and on epoch, even where one of them is 0.",
        )
if not all(is_untouched for _, is_untouched in split):
    raise CheckFailed(
        "torch's global generator to stay as it is",
        "another state after the call",
        "torch.manual_seed seeds it for everybody: use a torch.Generator of your own.",
    )
show_owners([parts for parts, _ in split])
print(f"rank_batches: 3 ranks share the batches {split_batches[0]}, and others in epoch 1.")

# %% [markdown]
# ## 2. Start from the same weights
#
# Ranks that start from different weights stay different, even if they add the same steps. So rank 0
# sends its model to all others once, before the first step.
#
# ```text
# before    rank 0: a        rank 1: b        rank 2: c
# after     rank 0: a        rank 1: a        rank 2: a
# ```
#
# A model is more than its parameters. Its *buffers* are the tensors that it keeps without training
# them: the running mean and variance of a BatchNorm layer, and the integer that counts its batches.
#
# <details><summary>Hint 1: where to look</summary>
#
# `model.state_dict()` leaves some buffers out. `dist.broadcast` fills the tensor that it is given.
#
# </details>
# <details><summary>Hint 2: how</summary>
#
# Broadcast every tensor of `model.parameters()` and `model.buffers()` from rank 0, one after the
# other. For a parameter pass `parameter.detach()`, which shares its numbers.
#
# </details>


# %% broadcast_model tags=["solution"]
def broadcast_model(model: nn.Module) -> None:
    """Give every rank the parameters and buffers of rank 0's `model`, in place.

    - All of them, including frozen parameters (`requires_grad` False), integer buffers, and buffers
      that are not part of the `state_dict` (`persistent=False`). `model.parameters()` and
      `model.buffers()` list them all.
    - In place: the tensors that the model holds stay the same objects, so that an optimizer created
      before the call still updates this model. Every tensor keeps its dtype.
    """
    ### BEGIN SOLUTION
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), src=0)
    ### END SOLUTION


# %% check_broadcast_model points=2
def of_rank(rank):
    """A model whose numbers, even the frozen and integer ones, show which rank filled it."""
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    model[0].bias.requires_grad_(False)
    model.register_buffer("unsaved", torch.zeros(2), persistent=False)
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            tensor.fill_(rank + 1)
    return model


def tensors_of(model):
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def start_differently():
    model = of_rank(dist.get_rank())
    held = dict(model.named_parameters())  # as an optimizer would hold them
    broadcast_model(model)
    return held, tensors_of(model)


start = ws.run(start_differently, world_size=3, backend="gloo", echo=False)
show(start, "Broadcast")
for rank, (held, found) in enumerate(start.values):
    for name, wanted in tensors_of(of_rank(0)).items():
        what, hint = f"`{name}` on rank {rank}", "Rank 0 sends, all others receive."
        if name == "unsaved":
            hint = "state_dict leaves out buffers with persistent=False; model.buffers() has them."
        expect_close(found[name], wanted, what, hint)
        if name in held:
            hint = "Copy the values into the parameters that are there; make no new ones."
            expect_close(held[name], wanted, f"{what}, as an optimizer holds it,", hint)
print("broadcast_model: 3 ranks start from the weights and buffers of rank 0.")

# %% [markdown]
# ## 3. Average the gradients
#
# After `backward` each rank holds the gradient of the mean loss over its own samples. This function
# replaces it with the gradient over the global batch, the $g$ of the formula at the top.
#
# ```text
#                     rank 0              rank 1
# samples             3                   1
# its gradient        3.0                 7.0
# afterwards          4.0                 4.0          (3 * 3.0 + 1 * 7.0) / (3 + 1)
# ```
#
# Not 10.0, which is the sum, and not 5.0, which counts rank 1's one sample as much as rank 0's
# three. The second case to think of is a rank without samples: its `grad` may be missing, and the
# mean of nothing is `nan`. Even so, it has to take part in every collective, or the others wait for
# ever.
#
# <details><summary>Hint 1: where to look</summary>
#
# In $g = \frac{1}{n} \sum_r n_r g_r$, what does a rank know by itself, and what must travel? An
# all-reduce adds up. So each rank puts in its own term of the sum.
#
# </details>
# <details><summary>Hint 2: the order</summary>
#
# First all-reduce the count. Then, for every parameter that is trained, weight the gradient and
# all-reduce it: on every rank, in the same order.
#
# </details>
# <details><summary>Hint 3: a rank without samples</summary>
#
# Replace its gradient by `torch.zeros_like(parameter)`. Multiplying it by 0 is not enough: `None`
# cannot be multiplied, and `0 * nan` is `nan`.
#
# </details>


# %% average_gradients tags=["solution"]
def average_gradients(model: nn.Module, num_local_samples: int) -> None:
    """Replace `grad` on every rank with the gradient of the mean loss over all ranks' samples.

    Before the call, `grad` is the gradient of the mean loss over this rank's `num_local_samples`
    samples.

    - Each rank counts in proportion to its samples: the result is the sum of num_local_samples *
      grad over the ranks, divided by the number of samples on all ranks together (which is at least
      1).
    - A rank with `num_local_samples` 0 counts as zero, whatever its `grad` is: None, or even nan.
      It receives the result like every other rank.
    - Parameters that are frozen (`requires_grad` False, the same ones on every rank) keep `grad`
      None.
    - Every gradient has the shape and the dtype of its parameter.
    - On the wire: for S bytes of gradients all N ranks together send at most 2(N - 1) S bytes, as
      much as a ring all-reduce; anything else takes at most 256 bytes per rank. The only numbers
      that travel are gradients, as they are or weighted by sample counts, sums of these, and the
      sample counts themselves.
    - In time: with gradients so large that latency does not matter, four ranks take at most 2.5
      times as long as a single all-reduce of S bytes. (If everything goes through one rank, it
      takes longer: that rank's link carries all the bytes.)
    - In memory: on each rank, the gradients and everything computed from them together never take
      more than 3 S bytes, however many ranks there are.

    Example: 3 samples with gradient 3.0 on rank 0 and 1 sample with gradient 7.0 on rank 1 give 4.0
    on both.
    """
    ### BEGIN SOLUTION
    num_samples = torch.tensor(num_local_samples, device=next(model.parameters()).device)
    dist.all_reduce(num_samples)
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        if num_local_samples == 0:
            parameter.grad = torch.zeros_like(parameter)  # not 0 * grad: 0 * nan is nan
        parameter.grad *= num_local_samples / num_samples.item()
        dist.all_reduce(parameter.grad)
    ### END SOLUTION


# %% check_average_gradients points=8
def average_the_example(num_samples, gradient):
    model = nn.Linear(1, 1)
    model.bias.requires_grad_(False)  # frozen: it has no gradient, before and afterwards
    model.weight.grad = None if gradient is None else torch.full((1, 1), gradient)
    average_gradients(model, num_samples)
    return model.weight.grad, model.bias.grad


def hint_for_gradient(grad, of_ranks, rank):
    """The hint for a wrong gradient: the mistake that gives this number, where it is known."""
    if grad is None:
        return "A rank without a gradient receives the result like every other rank."
    if not isinstance(grad, torch.Tensor) or grad.numel() != 1:
        return "`grad` has the shape of its parameter."
    if grad.isnan():
        return "The nan of an empty part spreads: replace it by zeros."
    busy = [(count, own) for count, own in of_ranks if count]
    (count, own), samples = of_ranks[rank], sum(count for count, _ in busy)
    total, plain = sum(count * own for count, own in busy), sum(own for _, own in busy)
    mistakes = [(plain, "the sum of the ranks' gradients: weigh them, and divide.")]
    for ranks in (len(busy), len(of_ranks)):
        mistakes.append((plain / ranks, "the unweighted mean: 3 samples count for more than 1."))
        mistakes.append((total / samples / ranks, "the mean, divided by the number of ranks too."))
    mistakes.append((total, "the sum over all samples: divide by their number."))
    if count:
        mistakes += [
            (own, "the rank's own gradient: nothing was exchanged."),
            (total / count, "the sum over all samples, divided by this rank's alone."),
            (count * own / samples, "the rank's own term of the sum: is all_reduce awaited?"),
        ]
    known = [words for wrong, words in mistakes if abs(float(grad) - wrong) < 1e-4]
    otherwise = "Weigh each gradient by its samples, add up, and divide by all samples."
    return f"{float(grad):.4g} is {known[0]}" if known else otherwise


def check_average(of_ranks):
    options = {"world_size": len(of_ranks), "each": of_ranks, "allow": ALLOWED}
    try:
        run = ws.run(average_the_example, backend="gloo", echo=False, **options)
    except ws.RunTimeout as hang:
        hint = "Every rank makes the same calls in the same order, also a rank without samples."
        raise CheckFailed("all ranks to return", f"{hang}", hint) from None
    for rank, (grad, frozen) in enumerate(run.values):
        hint = hint_for_gradient(grad, of_ranks, rank)
        expect_close(grad, torch.full((1, 1), 4.0), f"the gradient on rank {rank}", hint)
        if frozen is not None:
            raise CheckFailed("no gradient of a frozen parameter", "one", "See `requires_grad`.")
    return run


example = check_average([(3, 3.0), (1, 7.0)])
show(example, "Average of 3 and 1 samples")
print("Next, rank 1 has no samples, and its gradient is None. It has to make the same calls.")
check_average([(3, 3.0), (0, None), (1, 7.0)])
check_average([(1, 7.0), (0, float("nan")), (3, 3.0)])
print("average_gradients: 3 samples with 3.0 and 1 sample with 7.0 give 4.0 on every rank.")

# %% [markdown]
# ## 4. Keep the buffers alike
#
# A buffer has no gradient, so averaging gradients does not touch it. While a BatchNorm layer
# trains, each rank updates its running statistics from its own samples, and the ranks drift apart.
# The model that is saved or evaluated then depends on the rank. Torch's `DistributedDataParallel`
# has a simple rule: the buffers of rank 0 replace all others. Do the same.
#
# <details><summary>Hint</summary>
#
# You have written this loop before, in `broadcast_model`. Nothing is averaged, so nothing is
# rounded.
#
# </details>


# %% synchronise_buffers tags=["solution"]
def synchronise_buffers(model: nn.Module) -> None:
    """Set every buffer of `model` on every rank to exactly the values of rank 0, in place.

    - Every buffer keeps its dtype: integers (such as `num_batches_tracked`) stay integers and are
      never rounded.
    - It leaves parameters and their gradients unchanged. A model without buffers is fine.
    """
    ### BEGIN SOLUTION
    for buffer in model.buffers():
        dist.broadcast(buffer, src=0)
    ### END SOLUTION


# %% check_synchronise_buffers points=2
def buffers_after_a_batch():
    model = nn.BatchNorm1d(2)
    images = torch.tensor([[1.0, 2.0], [3.0, 4.0]]) * (dist.get_rank() + 1)
    model(images)  # each rank sees other numbers
    model.num_batches_tracked += 2**40 + dist.get_rank()  # too large for a float32
    synchronise_buffers(model)
    return dict(model.named_buffers())


synchronised = ws.run(buffers_after_a_batch, world_size=3, backend="gloo", echo=False)
show(synchronised, "Buffers")
for rank, buffers in enumerate(synchronised.values):
    wanted = {
        "running_mean": torch.tensor([0.2, 0.3]),
        "running_var": torch.tensor([1.1, 1.1]),
        "num_batches_tracked": torch.tensor(2**40 + 1),
    }
    for name, tensor in wanted.items():
        hint = "Rank 0's buffers count: no average, and every buffer in its own dtype."
        expect_close(buffers[name], tensor, f"{name} on rank {rank}", hint, rtol=1e-6)
    count = buffers["num_batches_tracked"]
    if not torch.equal(count, wanted["num_batches_tracked"]):
        is_own = count == 2**40 + 1 + rank
        raise CheckFailed(
            f"num_batches_tracked on rank {rank} to be {2**40 + 1:,}",
            f"{count.item():,}",
            "That is the rank's own: integers are synchronised, too."
            if is_own
            else "An integer as large as this loses its last digits in a float.",
        )
print("synchronise_buffers: 3 ranks hold the buffers of rank 0, and integers stay exact.")

# %% [markdown]
# ## 5. Train
#
# Now the loop. One step of N ranks:
#
# ```text
#           rank 0                        rank 1
# data      its part of the batch         its part of the batch          rank_batches
# compute   loss, backward                loss, backward
#           ╰─────────── one average ───────────╯                        average_gradients
# update    optimizer step                optimizer step
#           ╰─────── buffers of rank 0 ────────►╯                        synchronise_buffers
# ```
#
# The loss that you return is that of the global batch, too. A rank's own loss is only that of its
# part, and a rank with an empty part has none: the mean over no samples is `nan`, and `nan` times 0
# is still `nan`.
#
# <details><summary>Hint 1: where to look</summary>
#
# Write the loop for one process first, with `zero_grad`, loss, `backward` and `step`. Then put each
# of the other four functions where the picture above shows it; `broadcast_model` comes before the
# loop.
#
# </details>
# <details><summary>Hint 2: an empty part</summary>
#
# Skip the loss and `backward` where the part is empty, and nothing else: the rank still averages,
# takes the step, and synchronises its buffers.
#
# </details>
# <details><summary>Hint 3: the loss</summary>
#
# All-reduce two numbers: the rank's loss times its samples, and its samples. The quotient of the
# sums is the loss of the global batch.
#
# </details>


# %% train tags=["solution"]
def train(
    model: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    *,
    num_epochs: int,
    batch_size: int,
    lr: float,
    seed: int,
) -> list[float]:
    """Train `model` in place, and return the mean loss over the global batch at every step.

    Every rank calls it with the same data and settings, and returns the same list of floats.

    - All ranks start from rank 0's parameters and buffers, however their models differ before the
      call.
    - The parts come from `rank_batches`, called with this `batch_size` and `seed` and with epochs 0
      ... num_epochs - 1. Only this rank's part of each batch goes through its model, once; an empty
      part may be skipped.
    - It calls the four functions above by their names: `broadcast_model` before the first step, and
      `average_gradients` and `synchronise_buffers` once in every step. (The checks replace these
      functions with their own.)
    - The loss is `F.cross_entropy(model(images[part]), labels[part])` and the update is plain SGD
      (`torch.optim.SGD(model.parameters(), lr=lr)`), one update for every global batch.
    - A step's loss is taken before the update, as in the usual loop.
    - Every step begins with the buffers of rank 0 on all ranks.
    - On the wire: the parameters and buffers of rank 0 once, then in each step the gradients as
      `average_gradients` sends them, the buffers of rank 0, and at most 256 bytes per rank for the
      loss. Samples stay where they are.
    - In time: the ranks compute their parts at the same time, so that a step takes as long as its
      largest part (plus the communication).
    - In memory: a step's tensors are freed before the next step, so that memory does not grow with
      the number of steps, except for the list of losses and the lists of samples.
    - Afterwards every rank holds the parameters that one process would have reached with the same
      global batches (up to rounding), and the buffers of rank 0. (A model with BatchNorm ends up
      the same on all ranks, but differs from one process, which normalises over the whole batch,
      while each rank normalises over its part.)
    """
    ### BEGIN SOLUTION
    rank, world_size = dist.get_rank(), dist.get_world_size()
    broadcast_model(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    losses = []
    for epoch in range(num_epochs):
        for part in rank_batches(len(images), batch_size, epoch, seed, rank, world_size):
            optimizer.zero_grad()
            summed_loss = torch.zeros(
                2, device=images.device
            )  # the sum of the losses, the number of samples
            if len(part) > 0:
                loss = F.cross_entropy(model(images[part]), labels[part])
                loss.backward()
                summed_loss = torch.stack(
                    [loss.detach() * len(part), torch.ones_like(loss) * len(part)]
                )
            average_gradients(model, len(part))
            optimizer.step()
            synchronise_buffers(model)
            dist.all_reduce(summed_loss)
            losses.append((summed_loss[0] / summed_loss[1]).item())
    return losses
    ### END SOLUTION


# %% check_train points=7
SETTINGS = {"num_epochs": 3, "batch_size": 4, "lr": 0.5, "seed": 1}


def labelled_points():
    """Ten points, each with the number of its largest coordinate."""
    points = torch.linspace(-1, 1, 30).mul(40).sin().reshape(10, 3)
    return points, points.argmax(dim=1)


class Watched(nn.Linear):
    """A linear layer with a buffer that depends on the samples that went through it."""

    def __init__(self):
        super().__init__(3, 3)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, points):
        self.seen += points.sum()
        return super().forward(points)


def model_of(rank):
    torch.manual_seed(100 + rank)  # every rank starts from other weights
    return Watched()


def train_on_ranks():
    model = model_of(dist.get_rank())
    losses = train(model, *labelled_points(), **SETTINGS)
    return model.weight, losses, model.seen


def mean_loss(model, parts):
    """The mean loss over a global batch."""
    points, labels = labelled_points()
    batch = torch.cat(parts)
    return F.cross_entropy(model(points[batch]), labels[batch])


def mean_of_ranks(model, parts):
    """The mean of the ranks' mean losses, where an empty part counts as 0."""
    return sum(mean_loss(model, [part]) for part in parts if len(part)) / len(parts)


def plain_loop(epochs=(0, 1, 2), resets=True, loss_of=mean_loss):
    """The weight and the losses of one process, on the global batches of `rank_batches`."""
    model, losses = model_of(0), []
    optimizer = torch.optim.SGD(model.parameters(), lr=SETTINGS["lr"])
    for epoch in epochs:
        parts = [rank_batches(10, 4, epoch, SETTINGS["seed"], rank, 3) for rank in range(3)]
        for parts_of_step in zip(*parts, strict=True):
            if resets:
                optimizer.zero_grad()
            loss = loss_of(model, parts_of_step)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return model.weight, losses


def expect_alike(weights):
    """Raise CheckFailed unless all ranks end with the weight of rank 0."""
    for rank, weight in enumerate(weights):
        ahead = weight - weights[0]
        if torch.allclose(ahead, torch.zeros(3, 3), atol=1e-5):
            continue
        hint = "They step along different gradients: average between backward and the step."
        if torch.allclose(ahead, model_of(rank).weight - model_of(0).weight, atol=1e-5):
            hint = "They are as far apart as at the start: call broadcast_model first."
        raise CheckFailed(
            f"rank {rank} to end with the weights of rank 0",
            f"weights that differ by up to {ahead.abs().max():.3g}",
            hint,
        )


trained = ws.run(train_on_ranks, world_size=3, backend="gloo", allow=ALLOWED, echo=False)
one_weight, one_losses = plain_loop()
known_weights = [
    (plain_loop(resets=False)[0], "Gradients add up from step to step: call zero_grad."),
    (plain_loop(epochs=(0, 0, 0))[0], "Every epoch has the order of epoch 0: pass the epoch."),
    (model_of(0).weight, "These are rank 0's weights of the start: no step was taken."),
    (
        plain_loop(loss_of=mean_of_ranks)[0],
        "Every rank counts the same: pass the length of its part to average_gradients.",
    ),
]
show(trained, "Nine steps")
expect_alike([weight for weight, _, _ in trained.values])
for rank, (weight, losses, seen) in enumerate(trained.values):
    weight_hint = "Compare with one process: equal starts, zero_grad, average, step, in this order?"
    for known, words in known_weights:
        if weight.shape == known.shape and torch.allclose(weight, known, atol=1e-5):
            weight_hint = words
    expect_close(weight, one_weight, f"the trained weight on rank {rank} of 3", weight_hint)
    if not isinstance(losses, list) or len(losses) != 9:
        raise CheckFailed("a list of 9 losses: 3 epochs of 3 steps", f"{losses!r:.80}")
    loss_hint = "Sum the losses of all samples over the ranks, and divide by all samples."
    if not all(loss == loss for loss in losses):
        loss_hint = "The mean over an empty part is nan: let it add 0 to the sum."
    losses_label = f"the losses on rank {rank} of 3"
    expect_close(torch.tensor(losses), torch.tensor(one_losses), losses_label, loss_hint)
    seen_hint = "Each forward pass changes the buffers: call synchronise_buffers in every step."
    expect_close(seen, trained.values[0][2], f"the buffer on rank {rank}, as on rank 0,", seen_hint)
print(f"train: 3 ranks equal one process; the loss fell from {one_losses[0]:.3f} to", end=" ")
print(f"{one_losses[-1]:.3f} in 9 steps; the last of each epoch left a rank without samples.")

# %% [markdown]
# ## 6. In words
#
# A model of 350 million parameters trains in float32 on 8 GPUs. Each GPU sends 24 GB/s, and latency
# does not matter. One GPU takes 1.6 s to compute the gradients of a batch of 512 samples, and a
# fraction of the batch takes that fraction of the time. After the backward pass, a ring all-reduces
# all gradients. The rest of the step takes no time.
#
# Answer in at most 200 words, with numbers:
#
# 1. The batch of 512 is split over the 8 GPUs. How long is a step, what is the speed-up over one
#    GPU, and what is the communication efficiency, compute / (compute + communication)?
# 2. Now each GPU gets 512 samples of its own. How long is a step, how many times one GPU's samples
#    per second is that, and what is the efficiency? Why is it so much better, although each GPU
#    sends just as much?
# 3. A colleague forgot the division in `average_gradients`. With Adam the loss still falls as fast
#    as it should. Why? Which comparison would have shown the mistake?

# %% what_it_costs [markdown] points=3 tags=["solution"]
# **Answer.** The gradients are S = 4 · 350 million = 1.4 GB. The ring takes 2 · 7/8 · 1.4 GB / 24
# GB/s = 102 ms.
#
# 1. Compute takes 1.6 s / 8 = 200 ms, so a step takes 302 ms. That is 1.6 / 0.302 = 5.3 times as
#    fast as one GPU, with an efficiency of 200/302 = 66%.
# 2. A step takes 1.6 s + 102 ms = 1.70 s and processes 8 times the samples: 8 · 1.6 / 1.70 = 7.5
#    times as many per second, with an efficiency of 94%. The gradients are as large as before,
#    because their size is the model's, not the batch's; but there is 8 times as much compute in a
#    step. (This is Gustafson's case; the first is Amdahl's.)
# 3. Adam divides the mean gradient by the root of the mean square, so that a factor of N (or of the
#    number of samples) nearly cancels. Compare the averaged *gradient*, or the weights after a few
#    steps of SGD, with those of one process on the same global batch.
#
# **Rubric**, one point each:
#
# - 302 ms (0.29 to 0.31 s), 5.3 times, 66%. Half a point where the all-reduce is 102 ms and one of
#   the three is wrong by a slip; none where the factor 2(N - 1)/N is missing.
# - 1.70 s, 7.5 times, 94%, and that the gradient's size does not depend on the batch.
# - Adam's division cancels the factor, and a comparison with one process of something that Adam
#   does not hide: the gradient itself, or weights under SGD. Half a point for one of the two.

# %% [markdown]
# ## What you have built
#
# The next cell trains a small convolutional network on real handwritten digits with your functions:
# on one rank, on two and on four, each time with global batches of 64. If the contract holds, the
# three curves lie on top of each other, and the lower panel shows only rounding: floats added in
# another order.


# %% loss_curves
def train_digits(images, labels):
    from worldsize.models import vision_net

    model = vision_net(width=4, seed=dist.get_rank())
    return train(model, images, labels, num_epochs=2, batch_size=64, lr=0.2, seed=0)


def compare_world_sizes():
    from worldsize import draw, images  # here and not above: the ranks need neither

    pixels, digits = images.load_digits()
    names = {1: "1 rank of 64", 2: "2 ranks of 32", 4: "4 ranks of 16"}
    runs = {
        n: ws.run(train_digits, pixels[:768], digits[:768], world_size=n, backend="gloo")
        for n in names
    }
    return draw.curves(
        {name: runs[n].values[0] for n, name in names.items()},
        x_label="training step",
        y_label="mean loss of the global batch",
        title="The same training on 1, 2 and 4 ranks",
        difference_from="1 rank of 64",
    )


compare_world_sizes()
