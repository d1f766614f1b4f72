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
# | Function | What it does | Points |
# |---|---|---|
# | `rank_batches` | splits every global batch among the ranks | 4 |
# | `broadcast_model` | gives every rank the weights of rank 0 | 3 |
# | `average_gradients` | averages the gradients over all ranks | 7 |
# | `synchronise_buffers` | gives every rank the buffers of rank 0 | 2 |
# | `train` | the loop that calls the other four | 6 |
# | `what_it_costs` | questions that you answer in words | 3 |
#
# Each docstring is a contract: everything that it promises is graded, and nothing else. Below each
# function is an open check that runs your code on two or three real ranks. It shows the idea on
# small, even sizes. The hidden checks run the same function with other sizes, other numbers of
# ranks and the special cases that the docstring names.
#
# The checks run on real ranks on the CPU, with Gloo, so that they give the same result on every
# machine. Some also run on an emulated cluster, which records every message. They look at **the
# wire**: what is sent, how many bytes it has, and how long it takes there. Some count the bytes of
# all tensors that are alive at once: **the memory**. On the wire, `broadcast`, `all_reduce`,
# `reduce`, `send`, `recv` and `barrier` are allowed (and `isend` and `irecv`). Gather operations
# are refused, because each rank would receive the gradients of all others, and more with every
# added rank. Torch's `DistributedDataParallel` is refused too, because it is what you build here.

# %% setup
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import worldsize as ws
from worldsize.check import CheckFailed, expect_close


def show(run, title):
    from IPython.display import display  # here and not above: the ranks need neither

    from worldsize import draw

    if run.timeline.events:
        display(
            draw.timeline(run.timeline, title=f"{title}, measured here", streams=["communication"])
        )


ws.run(
    dist.get_rank, world_size=3, backend="gloo", echo=False
)  # the first run loads torch: the checks are then quick

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


# %% rank_batches tags=["solution"]
def rank_batches(
    num_samples: int, batch_size: int, epoch: int, seed: int, rank: int, world_size: int
) -> list[torch.Tensor]:
    """This rank's part of every global batch of an epoch: a 1-D int64 tensor of indices a step.

    - Step k's global batch is the k-th slice of `batch_size` indices from a random order of 0 ...
      num_samples - 1. Only the last one may be shorter; no sample is dropped and none comes twice.
    - The order depends on `seed` and `epoch` alone: every rank computes the same one, whatever the
      state of torch's global random generator. Different epochs (0, 1, 2, ...) give different
      orders, and so do different seeds.
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


# %% check_rank_batches points=4
def two_epochs():
    rank, world_size = dist.get_rank(), dist.get_world_size()
    return [rank_batches(8, 4, epoch, 1, rank, world_size) for epoch in (0, 1)]


def show_owners(parts):
    from IPython.display import display

    from worldsize.draw.contrast import grid

    owners = {}
    for epoch in (0, 1):
        of_sample = {
            int(sample): f"rank {rank}"
            for rank in (0, 1)
            for step in parts[rank][epoch]
            for sample in step
        }
        owners[f"epoch {epoch}"] = [of_sample[sample] for sample in range(8)]
    display(
        grid(
            owners,
            [f"sample {sample}" for sample in range(8)],
            "rank 0",
            "Which rank takes which sample",
        )
    )


rank_0, rank_1 = ws.run(two_epochs, world_size=2, backend="gloo", echo=False).values
orders = []
for epoch in (0, 1):
    steps = [
        sorted([*a.tolist(), *b.tolist()])
        for a, b in zip(rank_0[epoch], rank_1[epoch], strict=False)
    ]
    if sorted(index for step in steps for index in step) != list(range(8)):
        raise CheckFailed(
            "each of the samples 0 ... 7 once in an epoch, on one of the two ranks",
            f"{steps} as the global batches of epoch {epoch}",
            "Both ranks must cut the same order, and each must keep only its own part.",
        )
    if [len(step) for step in steps] != [4, 4]:
        raise CheckFailed(
            "two global batches of 4 samples", f"{steps}", "`batch_size` counts all ranks together."
        )
    orders.append(steps)
if orders[0] == orders[1]:
    raise CheckFailed(
        "a new order in epoch 1",
        "the order of epoch 0",
        "The generator's seed must depend on epoch.",
    )
show_owners([rank_0, rank_1])
print(f"rank_batches: 2 ranks share the batches {orders[0]}, then {orders[1]}.")

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


# %% broadcast_model tags=["solution"]
def broadcast_model(model: nn.Module) -> None:
    """Give every rank the parameters and buffers of rank 0's `model`, in place.

    - All of them, including frozen parameters (`requires_grad` False), integer buffers, and buffers
      that are not part of the `state_dict` (`persistent=False`). `model.parameters()` and
      `model.buffers()` list them all.
    - In place: the tensors that the model holds stay the same objects, so that an optimiser created
      before the call still updates this model. Every tensor keeps its dtype.
    """
    ### BEGIN SOLUTION
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), src=0)
    ### END SOLUTION


# %% check_broadcast_model points=3
def start_differently():
    model = nn.Linear(2, 3)
    with torch.no_grad():
        model.weight.fill_(dist.get_rank() + 1.0)
    broadcast_model(model)
    return model.weight


start = ws.run(start_differently, world_size=3, backend="gloo", echo=False)
show(start, "Broadcast")
for rank, weight in enumerate(start.values):
    expect_close(
        weight, torch.ones(3, 2), f"the weight on rank {rank}", "Rank 0 sends, all others receive."
    )
print("broadcast_model: 3 ranks start from the weights of rank 0.")

# %% [markdown]
# ## 3. Average the gradients
#
# After `backward` each rank holds the gradient of the mean loss over its own samples. This function
# replaces it by the gradient over the global batch, the $g$ of the formula above.
#
# ```text
#                     rank 0              rank 1
# samples             3                   1
# its gradient        2.0                 6.0
# afterwards          3.0                 3.0          (3 * 2.0 + 1 * 6.0) / (3 + 1)
# ```
#
# Not 8.0, which is the sum, and not 4.0, which counts rank 1's one sample as much as rank 0's
# three. The second case to think of is a rank without samples: its `grad` may be missing, and the
# mean of nothing is `nan`. But every rank has to take part in a collective, or the others wait for
# ever.


# %% average_gradients tags=["solution"]
def average_gradients(model: nn.Module, num_local_samples: int) -> None:
    """Replace `grad` on every rank by the gradient of the mean loss over all ranks' samples.

    Before the call, `grad` is the gradient of the mean loss over this rank's `num_local_samples`
    samples.

    - Ranks count by their samples: the result is the sum of num_local_samples * grad over the
      ranks, divided by the number of samples on all ranks together (which is at least 1).
    - A rank with `num_local_samples` 0 counts as zero, whatever its `grad` is: None, or even nan.
      It receives the result like every other rank.
    - Parameters that are frozen (`requires_grad` False, the same ones on every rank) keep `grad`
      None.
    - Every gradient has the shape and the dtype of its parameter.
    - On the wire: for S bytes of gradients all N ranks together send at most 2(N - 1) S bytes, what
      a ring all-reduce sends; anything else takes at most 256 bytes a rank.
    - In time: with gradients so large that latency does not matter, four ranks take at most 2.5
      times as long as a single all-reduce of S bytes. (If everything goes through one rank, it
      takes longer: that rank's link carries all the bytes.)
    - In memory: at no moment do the gradients and everything computed from them take more than 3 S
      bytes, however many ranks there are.

    Example: 3 samples with gradient 2.0 on rank 0 and 1 sample with gradient 6.0 on rank 1 give 3.0
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


# %% check_average_gradients points=7
def gradient(images, labels):
    """The gradient of a linear classifier, averaged over the ranks when there are several."""
    model = nn.Linear(4, 3, bias=False)
    nn.init.constant_(model.weight, 0.1)
    F.cross_entropy(model(images), labels).backward()
    if dist.is_initialized():
        average_gradients(model, len(images))
    return model.weight.grad


images, labels = torch.linspace(-1, 1, 32).reshape(8, 4), torch.tensor([0, 1, 2, 0, 0, 1, 1, 2])
halves = [(images[:4], labels[:4]), (images[4:], labels[4:])]
averaged = ws.run(gradient, world_size=2, each=halves, backend="gloo", echo=False)
show(averaged, "Average")
for rank, grad in enumerate(averaged.values):
    expect_close(
        grad,
        gradient(images, labels),
        f"the gradient on rank {rank}",
        "Twice as large means a sum instead of a mean; unequal ranks mean that nothing was"
        " exchanged.",
    )
print("average_gradients: 2 ranks with 4 samples each have the gradient of 8 samples.")

# %% [markdown]
# ## 4. Keep the buffers alike
#
# A buffer has no gradient, so averaging gradients does not touch it. While a BatchNorm layer
# trains, each rank updates its running statistics from its own samples, and the ranks drift apart.
# The model that is saved or evaluated then depends on the rank. Torch's `DistributedDataParallel`
# has a simple rule: rank 0's buffers count. Do the same.


# %% synchronise_buffers tags=["solution"]
def synchronise_buffers(model: nn.Module) -> None:
    """Set every buffer of `model` on every rank to exactly the values of rank 0, in place.

    - Every buffer keeps its dtype: integers (such as `num_batches_tracked`) stay integers, without
      rounding.
    - It leaves parameters and their gradients unchanged. A model without buffers is fine.
    """
    ### BEGIN SOLUTION
    for buffer in model.buffers():
        dist.broadcast(buffer, src=0)
    ### END SOLUTION


# %% check_synchronise_buffers points=2
def running_mean():
    model = nn.BatchNorm1d(2)
    model(
        torch.tensor([[1.0, 2.0], [3.0, 4.0]]) * (dist.get_rank() + 1)
    )  # each rank sees other numbers
    synchronise_buffers(model)
    return model.running_mean


synchronised = ws.run(running_mean, world_size=3, backend="gloo", echo=False)
show(synchronised, "Buffers")
for rank, mean in enumerate(synchronised.values):
    expect_close(
        mean,
        torch.tensor([0.2, 0.3]),
        f"the running mean on rank {rank}",
        "Rank 0's buffers count.",
    )
print("synchronise_buffers: 3 ranks hold the running mean of rank 0.")

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
# update    optimiser step                optimiser step
#           ╰─────── buffers of rank 0 ────────►╯                        synchronise_buffers
# ```
#
# The loss that you report is that of the global batch, too. A rank's own loss is only that of its
# part, and a rank with an empty part has none: the mean over no samples is `nan`, and `nan` times 0
# is still `nan`.


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

    Every rank calls it with the same data and settings, and returns the same list of floats:

    - All start from rank 0's parameters and buffers, however their models differ before.
    - The parts come from `rank_batches`, called with this `batch_size` and `seed` and with epochs 0
      ... num_epochs - 1. (A check may replace `rank_batches` by its own: call it by this name, and
      take your batches from it alone.) Only this rank's part of each batch goes through its model,
      once; an empty part may be skipped.
    - The loss is `F.cross_entropy(model(images[part]), labels[part])` and the update is plain SGD
      (`torch.optim.SGD(model.parameters(), lr=lr)`), one update for every global batch.
    - A step's loss is taken before the update, as in the usual loop.
    - Every step begins with the buffers of rank 0 on all ranks.
    - On the wire: the parameters and buffers of rank 0 once, then in each step the gradients as
      `average_gradients` sends them, the buffers of rank 0, and at most 256 bytes a rank for the
      loss. Samples stay where they are.
    - In time: the ranks compute their parts at the same time, so that a step takes as long as its
      largest part (plus the communication).
    - In memory: a step's tensors are freed before the next one. Memory does not grow with the
      number of steps, except for the list of losses and the lists of samples.
    - Afterwards every rank holds the parameters that one process would have reached with the same
      global batches (up to rounding), and the buffers of rank 0. One process with BatchNorm would
      normalise over the whole batch, while each rank normalises over its part: such a model ends up
      alike on all ranks, but not equal to one process.
    """
    ### BEGIN SOLUTION
    rank, world_size = dist.get_rank(), dist.get_world_size()
    broadcast_model(model)
    optimiser = torch.optim.SGD(model.parameters(), lr=lr)
    losses = []
    for epoch in range(num_epochs):
        for part in rank_batches(len(images), batch_size, epoch, seed, rank, world_size):
            optimiser.zero_grad()
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
            optimiser.step()
            synchronise_buffers(model)
            dist.all_reduce(summed_loss)
            losses.append((summed_loss[0] / summed_loss[1]).item())
    return losses
    ### END SOLUTION


# %% check_train points=6
def train_linear():
    torch.manual_seed(dist.get_rank())  # every rank starts from other weights
    model = nn.Linear(4, 3)
    images = torch.linspace(-1, 1, 48).reshape(12, 4).sin()
    labels = torch.arange(12) % 3
    losses = train(model, images, labels, num_epochs=3, batch_size=6, lr=0.5, seed=1)
    return model.weight, losses


((one_weight, one_losses),) = ws.run(train_linear, world_size=1, backend="gloo", echo=False).values
trained = ws.run(train_linear, world_size=3, backend="gloo", echo=False)
show(trained, "Six steps")
for rank, (weight, losses) in enumerate(trained.values):
    expect_close(
        weight,
        one_weight,
        f"the trained weight on rank {rank} of 3",
        "One rank alone reaches the expected value.",
    )
    if not isinstance(losses, list) or len(losses) != 6:
        raise CheckFailed("a list of 6 losses: 3 epochs of 2 steps", f"{losses!r:.80}")
    expect_close(
        torch.tensor(losses),
        torch.tensor(one_losses),
        f"the losses on rank {rank} of 3",
        "Report the global mean.",
    )
print(f"train: 3 ranks equal one; the loss went from {one_losses[0]:.3f} to {one_losses[-1]:.3f}.")

# %% [markdown]
# ## 6. In words
#
# A model of 350 million parameters trains in float32 on 8 GPUs. Each sends 24 GB/s, and latency
# does not matter. One GPU takes 1.6 s to compute the gradients of a batch of 512 samples, and a
# part of the batch takes that part of the time. After the backward pass, a ring all-reduces all
# gradients. The rest of the step takes no time.
#
# Answer in at most 200 words, with numbers:
#
# 1. The batch of 512 is split over the 8 GPUs. How long is a step, what is the speed-up over one
#    GPU, and what is the communication efficiency, compute / (compute + communication)?
# 2. Now each GPU gets 512 samples of its own. How long is a step, how many times as many samples a
#    second is that as with one GPU, and what is the efficiency? Why is it so much better, although
#    each GPU sends just as much?
# 3. A colleague forgot the division in `average_gradients`. With Adam the loss falls as well as
#    before. Why? Which comparison would have shown the mistake?

# %% what_it_costs [markdown] points=3 tags=["solution"]
# **Answer.** The gradients are S = 4 · 350 million = 1.4 GB. The ring takes 2 · 7/8 · 1.4 GB / 24
# GB/s = 102 ms.
#
# 1. Compute takes 1.6 s / 8 = 200 ms, so a step takes 302 ms. That is 1.6 / 0.302 = 5.3 times as
#    fast as one GPU, and 200/302 = 66% efficient.
# 2. A step takes 1.6 s + 102 ms = 1.70 s and 8 times the samples go through it: 8 · 1.6 / 1.70 =
#    7.5 times as many a second, 94% efficient. The gradients are as large as before, because their
#    size is the model's, not the batch's; there is 8 times as much compute to set against them.
#    (That is Gustafson's case; the first is Amdahl's.)
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
