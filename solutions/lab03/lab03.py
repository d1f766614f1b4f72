# %% [markdown]
# # Lab 3. Write DDP
#
# In lab 1 you averaged gradients after the backward pass, so until then every link was idle. In
# this lab you write what torch's `DistributedDataParallel` does: collect gradients in buckets, and
# send each bucket as soon as it is full, while backward still works on the layers before it. Then
# you write the test that such a class must pass.
#
# ```text
# one call at the end    forward ▒▒▒▒ backward ▒▒▒▒▒▒▒▒                the link waits, then you wait
#                                                      ████████ all gradients
#
# buckets, overlapped    forward ▒▒▒▒ backward ▒▒▒▒▒▒▒▒
#                                              ██  ██  ██  ██      only the last bucket is exposed
# ```
#
# | Function | What it does | Points | Time | Difficulty |
# |---|---|---|---|---|
# | `broadcast_state` | gives all ranks the state of rank 0 | 2 | 10 min | easy |
# | `average_one_by_one` | mean gradients, an all-reduce for each parameter | 2 | 10 min | easy |
# | `average_flat` | the same in one all-reduce | 3 | 20 min | medium |
# | `make_buckets` | which gradients travel together | 3 | 15 min | medium |
# | `DataParallel`, step 1 | buckets that are sent in `finish` | 3 | 25 min | medium |
# | `DataParallel`, step 2 | hooks that send full buckets during backward | 6 | 30 min | hard |
# | `DataParallel`, step 3 | parameters that a rank did not use | 2.5 | 20 min | hard |
# | `DataParallel`, step 4 | `no_sync` | 2.5 | 10 min | medium |
# | `test_data_parallel` | a test that right classes pass and wrong ones fail | 6 | 40 min | hard |
# | `bucket_size` | questions that you answer in words | 5 | 40 min | medium |
#
# Work in this order. Each part has a check below it and folded hints above it: the first hint says
# where to look, the next one how to do it.
#
# Each docstring is a contract: everything that it promises is graded, and nothing else. The checks
# run your code on an emulated cluster. They look at the gradients **and at the wire**: which
# numbers each all-reduce carried, and what the rank did before and after it. Whatever a rank knows
# about the others must come from its broadcasts and all-reduces. Each function is graded with
# correct versions of the functions above it, so that a mistake costs points only once.
#
# Of the operations of `torch.distributed`, `broadcast` and `all_reduce` are allowed, with or
# without `async_op`. Torch's own `DistributedDataParallel`, its `Reducer` and its other wrappers
# are refused. The same inputs must give the same bits in every run, so use no clock, no threads and
# no unseeded generator.

# %% setup
from contextlib import contextmanager, nullcontext

import torch
import torch.distributed as dist
from torch import nn

import worldsize as ws
from worldsize import emulate
from worldsize.check import CheckFailed, expect_close

RULES = {
    "cluster": "dgx-h100",
    "allow": {"all_reduce", "broadcast"},
    "compute": "none",
    "echo": False,
}


class Work(torch.autograd.Function):
    """An identity that keeps the rank busy in forward, and twice as long in backward."""

    @staticmethod
    def forward(ctx, tensor, time_s):
        ctx.time_s = time_s
        with ws.span("forward", kind="forward"):
            emulate.spend(time_s)
        return tensor.clone()

    @staticmethod
    def backward(ctx, gradient):
        with ws.span("backward", kind="backward"):
            emulate.spend(2 * ctx.time_s)
        return gradient, None


class TimedLayer(nn.Linear):
    """A linear layer of 1 MiB that takes 10 µs forward and 20 µs backward, in virtual time."""

    def __init__(self):
        super().__init__(512, 512, bias=False)

    def forward(self, tensor):
        return Work.apply(super().forward(tensor), 10e-6)


class FourLayers(nn.Module):
    """Four timed layers, used in any order."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([TimedLayer() for _ in range(4)])

    def forward(self, tensor, order):
        for place in order:
            tensor = self.layers[place](tensor)
        return tensor


class Tangled(nn.Module):
    """A model with everything that makes data parallelism difficult, in one of two branches."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.tied = nn.Linear(4, 4)
        self.tied.weight = self.first.weight  # one parameter, used twice
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.one, self.other = nn.Linear(4, 1), nn.Linear(4, 1)

    def forward(self, inputs, is_second=False):
        hidden = self.frozen(self.tied(torch.tanh(self.norm(self.first(inputs)))))
        return self.other(hidden) if is_second else self.one(hidden)


class BothBranches(Tangled):
    """The same with both branches in use."""

    def forward(self, inputs):
        return super().forward(inputs) + super().forward(inputs, is_second=True)


def on_each_rank(model):
    """A model, equal on all ranks, whose gradients are 1 on rank 0, 2 on rank 1, and so on."""
    torch.manual_seed(0)
    made = model()
    for parameter in made.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.full_like(parameter, dist.get_rank() + 1.0)
    return made


def show(run, title):
    from IPython.display import display  # here and not above: the ranks need neither

    from worldsize import draw

    if run.timeline.events:
        display(draw.timeline(run.timeline, title=f"{title}, emulated"))


def show_parts(parts):
    from IPython.display import display

    from worldsize import draw

    if parts:
        display(draw.memory(parts, title="Which gradients travel together, computed"))


def sizes_of(run, name, rank=0):
    """The bytes of each operation of this name that a rank took part in, in order."""
    events = run.timeline.of(rank)
    return [one.size_bytes for one in events if one.kind == "communication" and one.name == name]


def run_with_hint(hint, function, *args):
    """A run on two ranks. If it hangs, or ranks call different things, the report has the hint."""
    try:
        return ws.run(function, *args, world_size=2, **RULES)
    except (ws.RankFailed, ws.RunTimeout) as error:
        if isinstance(error, ws.RankFailed) and error.failures[0].cause.name != "MISMATCH":
            raise  # an error of a rank says itself what is wrong
        raise CheckFailed("both ranks to finish", f"{error}", hint) from error


def timed_steps(orders, bucket_bytes=2**20, is_first_quiet=False):
    """Steps of four layers in these orders, of which the first may be inside no_sync."""
    parallel = DataParallel(FourLayers(), bucket_bytes)
    for number, order in enumerate(orders):
        is_quiet = is_first_quiet and number == 0
        with parallel.no_sync() if is_quiet else nullcontext():
            parallel(torch.ones(2, 512), order).sum().backward()
        if not is_quiet:
            parallel.finish()


def step_us(run, number=0):
    """How long a step of four layers took, in µs, from the beginning of its forward."""
    starts_s = [one.start_s for one in run.timeline.of(0) if one.kind == "forward"][::4]
    return ([*starts_s, run.timeline.end_s][number + 1] - starts_s[number]) * 1e6


def done_us(*ready_us):
    """e_4 of the contract, for buckets of 1 MiB that are full at these times."""
    one = ws.run(dist.all_reduce, torch.zeros(2**18), world_size=2, **RULES).timeline.end_s * 1e6
    end_us = 0.0
    for each_us in ready_us:
        end_us = max(end_us, each_us) + one
    return end_us


def gradients_by_name(module):
    return {
        name: None if parameter.grad is None else parameter.grad.clone()
        for name, parameter in module.named_parameters()
    }


def batch_of(seed, *branch):
    """What a model is called with: inputs, and which branch to take."""
    return (torch.randn(6, 4, generator=torch.Generator().manual_seed(seed)), *branch)


def means_by_one_process(model, batches_of_ranks):
    """The gradients that one process has for the mean of all ranks' losses."""
    torch.manual_seed(0)
    single = model()
    for batches in batches_of_ranks:
        for batch in batches:
            (single(*batch).square().mean() / len(batches_of_ranks)).backward()
    return gradients_by_name(single)


def expect_gradients(run, wanted, hint, own=()):
    """Compare every rank's gradients with the means, and say what a wrong one looks like.

    `own` is the number that a rank had in all its gradients, if it was one.
    """
    for rank, gradients in enumerate(run.values):
        for name, mean in wanted.items():
            given = gradients.get(name)
            if mean is None:
                if given is not None and given.any():
                    raise CheckFailed(f"{name} on rank {rank} to be zeros or None", "other numbers")
                continue
            why = hint
            if given is None:
                why = f"This rank did not use the parameter, but the other one did. {hint}"
                given = torch.full_like(mean, float("nan"))
            elif torch.allclose(given, mean * 2, rtol=1e-3):
                why = "That is the sum: divide by the number of ranks."
            elif torch.allclose(given, mean / 2, rtol=1e-3):
                why = "That is the mean, divided by the number of ranks a second time."
            elif own and torch.equal(given, torch.full_like(given, own[rank])):
                why = "That is this rank's own gradient: the mean never came back into grad."
            expect_close(given, mean, f"the gradient of {name} on rank {rank}", why, atol=1e-6)


# the first run loads torch: the checks are then quick
ws.run(dist.get_rank, world_size=2, **RULES)


# %% [markdown]
# ## 1. Start from the same state
#
# Gradients are averaged, weights never are. So weights that differ at the start stay different. A
# model also holds more than weights: the running mean of a `BatchNorm` is a **buffer**, and its
# count of batches an *integer* buffer.
#
# `dist.broadcast(tensor, src=0)` writes into `tensor` in place. Autograd guards parameters that
# require a gradient: torch's own operations, such as `copy_`, refuse to write to them in place.
# `parameter.data` is the same memory without that guard.
#
# <details><summary>Hint 1: where to look</summary>
# <code>module.parameters()</code> and <code>module.buffers()</code> list each tensor once;
# <code>module.state_dict()</code> lists a shared one twice and leaves some buffers out.
# </details>
# <details><summary>Hint 2: how</summary>
# One loop over both lists, with <code>dist.broadcast(tensor.data, src=0)</code>.
# </details>


# %% broadcast_state tags=["solution"]
def broadcast_state(module: nn.Module) -> None:
    """Give every rank the parameters and buffers of rank 0's `module`, in place.

    - All of them, including frozen parameters and buffers of any dtype, even integers.
    - Each is sent once, even if two layers share a parameter.
    """
    ### BEGIN SOLUTION
    for tensor in [*module.parameters(), *module.buffers()]:
        dist.broadcast(tensor.data, src=0)
    ### END SOLUTION


# %% check_broadcast_state points=2
def start_alike():
    torch.manual_seed(dist.get_rank())
    model = Tangled()
    model.get_buffer("norm.num_batches_tracked").fill_(dist.get_rank())
    broadcast_state(model)
    return [tensor.detach() for tensor in model.state_dict().values()]


def state_of_rank_0():
    torch.manual_seed(0)
    return Tangled()


started = ws.run(start_alike, world_size=3, **RULES)
show(started, "The state of rank 0, on H100s")
for rank, found in enumerate(started.values):
    for mine, (name, wanted) in zip(found, state_of_rank_0().state_dict().items(), strict=True):
        hint = "Parameters and buffers, also frozen ones, and all in place."
        expect_close(mine, wanted, f"{name} on rank {rank}", hint)
once = sum(one.nbytes for one in [*Tangled().parameters(), *Tangled().buffers()])
sent = sizes_of(started, "broadcast")
if sum(sent) > once:
    hint = "A shared parameter counts once: `module.parameters()` lists it once."
    raise CheckFailed(f"{once} bytes, each tensor once", f"{sum(sent)} bytes", hint)
print(f"broadcast_state: 3 ranks start alike, after {len(sent)} broadcasts of {sum(sent)} bytes.")

# %% [markdown]
# ## 2. One call for each parameter
#
# The plain way, as in lab 1. `module.parameters()` lists a shared parameter once. Two things are
# new: a **frozen** parameter has no gradient and takes no part, and a parameter that this rank did
# **not use** in this step has `grad=None`. Another rank may have used it. If this rank leaves it
# out, the calls of the two ranks no longer match.
#
# <details><summary>Hint 1: where to look</summary>
# Whether a parameter takes part depends on <code>requires_grad</code>, which is the same on all
# ranks, never on <code>grad</code>, which is not.
# </details>
# <details><summary>Hint 2: how</summary>
# Where <code>grad</code> is None, set it to <code>torch.zeros_like(parameter)</code> first. Then
# all-reduce it and divide by <code>dist.get_world_size()</code>.
# </details>


# %% average_one_by_one tags=["solution"]
def average_one_by_one(module: nn.Module) -> None:
    """Average every gradient over all ranks, in place; all ranks get the same result.

    - One all-reduce for each parameter that requires a gradient, in the order of
      `module.parameters()`, with as many bytes as the gradient has.
    - A rank whose gradient is None counts as zeros, and gets the result like the others. If all are
      None, the result may be zeros or None.
    - Frozen parameters (`requires_grad` is False) take no part, and still have no gradient after
      the call.
    """
    ### BEGIN SOLUTION
    for parameter in module.parameters():
        if parameter.requires_grad:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
    ### END SOLUTION


# %% check_average_one_by_one points=2
MISSING = "Rank 0 has ones, rank 1 twos, but none of other.weight: missing ones count as zeros."


def average_with(average):
    model = on_each_rank(Tangled)
    if dist.get_rank() == 1:
        model.other.weight.grad = None
    average(model)
    return gradients_by_name(model)


def known_means():
    """The means of ones and twos, and of ones and zeros."""
    means = {name: torch.full_like(one, 1.5) for name, one in Tangled().named_parameters()}
    means["other.weight"] = torch.full_like(means["other.weight"], 0.5)
    return means | {"frozen.weight": None, "frozen.bias": None}


one_by_one = run_with_hint(MISSING, average_with, average_one_by_one)
show(one_by_one, "One all-reduce for each parameter, on H100s")
expect_gradients(one_by_one, known_means(), MISSING, own=(1.0, 2.0))
if one_by_one.values[0]["frozen.weight"] is not None:
    raise CheckFailed("no gradient of the frozen layer", "one", "Leave frozen parameters out.")
wanted = [one.nbytes for one in Tangled().parameters() if one.requires_grad]
if sizes_of(one_by_one, "all_reduce") != wanted:
    expected = f"all-reduces of {wanted} bytes, one for each parameter that is not frozen, in order"
    raise CheckFailed(expected, f"{sizes_of(one_by_one, 'all_reduce')}")
end_us = one_by_one.timeline.end_s * 1e6
print(f"average_one_by_one: {len(wanted)} all-reduces in {end_us:.0f} µs.")

# %% [markdown]
# ## 3. One call for all
#
# The nine small calls of the check above cost nine times the latency of one. Copy all gradients
# into one **flat** tensor, side by side, all-reduce that, and copy the means back. `torch.cat`
# joins tensors; `flat.split([3, 5, 2])` cuts one into pieces of these lengths. A tensor has one
# dtype, so there is one flat tensor for each dtype.
#
# <details><summary>Hint 1: where to look</summary>
# Write two functions of your own, which <code>DataParallel</code> can use again: one that returns
# the flat tensor of a list of parameters, and one that copies the means back.
# </details>
# <details><summary>Hint 2: how</summary>
# <code>torch.cat([gradient.flatten() for ...])</code>, with zeros where a gradient is missing; then
# <code>flat.split([one.numel() for one in parameters])</code> and
# <code>piece.view_as(parameter)</code>. Collect the parameters of each dtype in a dict of lists.
# </details>


# %% average_flat tags=["solution"]
def average_flat(module: nn.Module) -> None:
    """Average every gradient over all ranks, in place, in one all-reduce for each dtype.

    - One all-reduce for each dtype among the parameters that require a gradient, with as many bytes
      as all gradients of that dtype have together. A gradient has its parameter's dtype, and
      travels in it.
    - There is no call when there is nothing to send, as for a dtype that only frozen parameters
      have.
    - Missing gradients and frozen parameters are treated as in `average_one_by_one`.
    """
    ### BEGIN SOLUTION
    of_dtypes = {}
    for parameter in module.parameters():
        if parameter.requires_grad:
            of_dtypes.setdefault(parameter.dtype, []).append(parameter)
    for parameters in of_dtypes.values():
        flat = flatten_gradients(parameters)
        dist.all_reduce(flat)
        unflatten_gradients(flat, parameters)


def flatten_gradients(parameters, out=None):
    """The gradients side by side, with zeros for missing ones; in `out` if that is given."""
    with_zeros = [torch.zeros_like(one) if one.grad is None else one.grad for one in parameters]
    return torch.cat([gradient.flatten() for gradient in with_zeros], out=out)


def unflatten_gradients(flat, parameters):
    """Set the parameters' gradients to the flat sum divided by the number of ranks."""
    for parameter, total in zip(
        parameters, flat.split([one.numel() for one in parameters]), strict=True
    ):
        if parameter.grad is None:
            parameter.grad = torch.empty_like(parameter)
        torch.div(total.view_as(parameter), dist.get_world_size(), out=parameter.grad)
    ### END SOLUTION


# %% check_average_flat points=3
def average_ones(average):
    """The means of ones on rank 0, twos on rank 1, and nothing in one place."""
    model = on_each_rank(Tangled)
    if dist.get_rank() == 1:
        model.other.weight.grad = None
    average(model)
    return gradients_by_name(model)


def average_two_dtypes():
    module = on_each_rank(lambda: nn.ModuleList([nn.Linear(2, 2), nn.Linear(3, 1).double()]))
    average_flat(module)
    return gradients_by_name(module)


def many_calls(sizes):
    for size in sizes:
        dist.all_reduce(torch.zeros(size))


trained = [one for one in Tangled().parameters() if one.requires_grad]
zeros = "A missing gradient counts as zeros, on a rank that then gets the mean like the others."
flat_run = run_with_hint(zeros, average_ones, average_flat)
show(flat_run, "One all-reduce for all, on H100s")
means = {name: torch.full_like(one, 1.5) for name, one in Tangled().named_parameters()}
means["other.weight"] = torch.full_like(means["other.weight"], 0.5)
means |= {"frozen.weight": None, "frozen.bias": None}
expect_gradients(flat_run, means, zeros, own=(1.0, 2.0))
once = [sum(one.nbytes for one in trained)]
if sizes_of(flat_run, "all_reduce") != once:
    expected = f"1 all-reduce of {once[0]} bytes: all parameters are float32"
    raise CheckFailed(expected, f"all-reduces of {sizes_of(flat_run, 'all_reduce')} bytes")
mixed = run_with_hint("A tensor has one dtype.", average_two_dtypes)
if sorted(sizes_of(mixed, "all_reduce")) != [24, 32]:
    expected = "all-reduces of 24 bytes (6 numbers in float32) and of 32 bytes (4 in float64)"
    hint = "One flat tensor for each dtype, and numbers travel in the dtype of their gradient."
    raise CheckFailed(expected, f"{sizes_of(mixed, 'all_reduce')}", hint)
expect_close(mixed.values[1]["1.weight"], torch.full((1, 3), 1.5).double(), "a mean in float64")
many = ws.run(many_calls, [one.numel() for one in trained], world_size=2, **RULES)
one_us, many_us = flat_run.timeline.end_s * 1e6, many.timeline.end_s * 1e6
print(
    f"average_flat: 1 all-reduce in {one_us:.0f} µs; {len(trained)} of one parameter each take"
    f" {many_us:.0f} µs."
)

# %% [markdown]
# ## 4. Buckets
#
# A single call has the least latency, but cannot begin before backward is over. A call for each
# parameter can begin at once, but pays the latency each time. A **bucket** is a compromise: as many
# gradients as fit into a given number of bytes.
#
# Which gradients belong together? Backward goes through the layers from the last to the first, so
# the first gradients to be complete are those of the *last* parameters. Buckets are filled in that
# order.
#
# ```text
# parameters     a 4 B    b 8 B    c 4 B    d 4 B        bucket_bytes=12
# buckets        [d, c]   [b, a]        d + c = 8, with b 16: too many. b + a = 12 fits.
# ```
#
# <details><summary>Hint 1: where to look</summary>
# Go through <code>reversed(parameters)</code>. There are two cases: the parameter fits into the
# last bucket, or it begins a new one. <code>parameter.nbytes</code> is its size.
# </details>
# <details><summary>Hint 2: how</summary>
# It fits if there is a bucket, its bytes and these together are at most <code>bucket_bytes</code>,
# and it has the same dtype. Decide before you append, not after.
# </details>


# %% make_buckets tags=["solution"]
def make_buckets(parameters: list[nn.Parameter], bucket_bytes: int) -> list[list[nn.Parameter]]:
    """The parameters that require a gradient, last first, in buckets of at most `bucket_bytes`.

    - A bucket ends where the next parameter would bring it above `bucket_bytes` or has another
      dtype. So a bucket has one dtype and is never empty.
    - A parameter of more than `bucket_bytes` is a bucket of its own.
    - Frozen parameters are left out. If no parameter is left, the result is [].
    """
    ### BEGIN SOLUTION
    buckets, size_bytes = [], 0
    for parameter in reversed(parameters):
        if not parameter.requires_grad:
            continue
        fits = (
            buckets
            and size_bytes + parameter.nbytes <= bucket_bytes
            and buckets[-1][0].dtype == parameter.dtype
        )
        if fits:
            buckets[-1].append(parameter)
            size_bytes += parameter.nbytes
        else:
            buckets.append([parameter])
            size_bytes = parameter.nbytes
    return buckets
    ### END SOLUTION


# %% check_make_buckets points=3
four = {
    name: nn.Parameter(torch.zeros(size)) for name, size in {"a": 1, "b": 2, "c": 1, "d": 1}.items()
}
found = [
    [next(name for name, known in four.items() if known is one) for one in bucket]
    for bucket in make_buckets(list(four.values()), bucket_bytes=12)
]
show_parts(
    {
        f"bucket {place}": {name: four[name].nbytes for name in bucket}
        for place, bucket in enumerate(found)
    }
)
if found != [["d", "c"], ["b", "a"]]:
    raise CheckFailed(
        "the buckets [d, c] and [b, a] of the picture",
        f"{found}",
        "From the last to the first; a bucket ends before it would be too full.",
    )
for name, bucket_bytes, wanted, hint in (
    ("abcd", 4, ["d", "c", "b", "a"], "b is larger than a bucket, and alone."),
    (
        "abcd",
        8,
        ["dc", "b", "a"],
        "A bucket may be exactly full; it ends before it would be fuller.",
    ),
    ("aFcd", 12, ["dca"], "F is frozen: it takes no part and no room."),
    ("aDcd", 100, ["dc", "D", "a"], "D is float64: another dtype begins another bucket."),
    ("F", 8, [], "Without parameters there are no buckets."),
):
    known = four | {
        "F": nn.Parameter(torch.zeros(1), requires_grad=False),
        "D": nn.Parameter(torch.zeros(1).double()),
    }
    buckets = make_buckets([known[one] for one in name], bucket_bytes)
    named = [
        "".join(key for one in bucket for key in known if known[key] is one) for bucket in buckets
    ]
    if named != wanted:
        expected = f"buckets {wanted} of the parameters {name} with bucket_bytes={bucket_bytes}"
        raise CheckFailed(expected, f"{named}", hint)
print(f"make_buckets: {found} with 12 bytes, and the edges are right.")

# %% [markdown]
# ## 5. Overlap, in four steps
#
# You write one class in the next cell, and come back to it three times. After each step run its
# check below; the checks of earlier steps must still pass.
#
# On the left is a training step, on the right one with gradient accumulation:
#
# ```python
# parallel = DataParallel(module, bucket_bytes=25_000_000)
#
# loss(parallel(inputs)).backward()          with parallel.no_sync():
# parallel.finish()                              loss(parallel(first_half)).backward()
# optimizer.step()                           loss(parallel(second_half)).backward()
# optimizer.zero_grad()                      parallel.finish()
# ```
#
# **Step 1: right gradients (25 minutes).** Begin without overlap. The constructor calls
# `broadcast_state` and `make_buckets`, and `finish` averages the buckets one after the other, each
# in one flat tensor. The check is `check_DataParallel`.
#
# <details><summary>Hint 1: where to look</summary>
# <code>average_flat</code> has all that you need, for a list of parameters in place of a module.
# </details>
# <details><summary>Hint 2: how</summary>
# Keep <code>self.module</code> and <code>self.buckets</code>. For each bucket: flatten, all-reduce,
# copy the means back.
# </details>
#
# **Step 2: hooks (30 minutes).** Torch calls you when a gradient is complete:
# `parameter.register_post_accumulate_grad_hook(hook)`, and `hook(parameter)` runs during backward,
# right after the gradient was added to `parameter.grad`. For a shared parameter that is once, when
# all its uses have been added. When the last gradient of a bucket is complete, flatten the bucket
# and start the all-reduce: with `async_op=True` the call returns a handle at once, and backward
# goes on. `finish` waits for the handles and copies the means back. The check is `check_overlap`.
#
# <details><summary>Hint 1: where to look</summary>
# The hook needs three things: in which bucket its parameter is, for how many gradients that bucket
# still waits, and a list of what has been sent, each handle with its flat tensor.
# </details>
# <details><summary>Hint 2: how</summary>
# Count down in the hook, and send at 0. Reset the counts in <code>finish</code>. A handle's
# <code>wait()</code> belongs in <code>finish</code> only.
# </details>
#
# **Step 3: unused parameters (20 minutes).** A rank that took another branch has no gradient for
# some parameters, whose hooks are never called, and its gradients may become complete in another
# order. But collectives are matched in the order of the calls. So bucket 1 leaves after bucket 0 on
# every rank, even if it is full first, and `finish` sends what has not left. The check is
# `check_unused`.
#
# <details><summary>Hint 1: where to look</summary>
# Only the *next* bucket in the list may leave: how many have left says which one that is. One
# gradient may allow several buckets to leave, if full ones were waiting behind its own.
# </details>
# <details><summary>Hint 2: how</summary>
# In the hook: <code>while</code> the next bucket is complete, send it. In <code>finish</code>:
# <code>while</code> there is a next bucket, send it, with zeros for missing gradients.
# </details>
#
# **Step 4: `no_sync` (10 minutes).** Inside this context, backward only adds to `grad`, and nothing
# is sent. The next backward outside adds its own part, and the sum is averaged. (Here it is the
# backward pass that has to be inside. In torch's DDP it is the forward pass.) The check is
# `check_no_sync`.
#
# <details><summary>Hint 1: where to look</summary>
# Hooks run inside <code>no_sync</code> too. What must they leave undone there?
# </details>
# <details><summary>Hint 2: how</summary>
# A flag, which <code>no_sync</code> sets and which its <code>finally</code> clears. While it is
# set, a hook neither sends nor counts.
# </details>


# %% DataParallel tags=["solution"]
class DataParallel:
    """A module whose gradients are, after `finish`, the means over all ranks."""

    def __init__(self, module: nn.Module, bucket_bytes: int) -> None:
        """Give all ranks the state of rank 0 by `broadcast_state`, and prepare the buckets.

        - From then on, the gradients of a backward outside `no_sync` travel in the buckets of
          `make_buckets(list(module.parameters()), bucket_bytes)`: one all-reduce for each bucket,
          in the order of that list on every rank. It carries the rank's gradients side by side in
          any order, in their dtype, as they are or divided by the number of ranks. Nothing else is
          sent.
        - A bucket leaves as soon as its last gradient is there and the buckets before it have left,
          while backward goes on. If all-reduce k takes c_k seconds and bucket k is full at r_k,
          that bucket is done at e_k = max(r_k, e_(k-1)) + c_k (k = 1, 2, ...; e_0 = 0), and the
          step is done when both backward and the last bucket are.
        """
        ### BEGIN SOLUTION
        broadcast_state(module)
        self.module, self.is_syncing = module, True
        self.buckets = make_buckets(list(module.parameters()), bucket_bytes)
        self.place_of = {
            parameter: place for place, bucket in enumerate(self.buckets) for parameter in bucket
        }
        self.flats = [
            torch.cat([one.detach().flatten() for one in bucket]) for bucket in self.buckets
        ]
        self.begin()
        for parameter in self.place_of:
            parameter.register_post_accumulate_grad_hook(self.on_gradient)
        ### END SOLUTION

    def __call__(self, *inputs):
        """The module's output for these inputs."""
        ### BEGIN SOLUTION
        return self.module(*inputs)
        ### END SOLUTION

    def finish(self) -> None:
        """Complete the averaging: afterwards every gradient is the mean over all ranks.

        - Call it once after each backward outside `no_sync`.
        - The mean is the gradient that one process would have for the ranks' batches together, if
          these are equally large, the loss is a mean, and no layer mixes samples. It is the same on
          all ranks, including parameters that are used twice.
        - A rank that did not use a parameter counts as zeros for it. If no rank used it, its
          gradient is zeros or None. Frozen parameters have no gradient. Each rank may use different
          parameters, in a different order.
        - Between two steps the object keeps no more bytes of its own than one copy of the
          gradients. The memory is measured by the operating system, over several steps.
        """
        ### BEGIN SOLUTION
        while len(self.sent) < len(self.buckets):
            self.send_next()
        for bucket, flat, work in zip(self.buckets, self.flats, self.sent, strict=True):
            work.wait()
            unflatten_gradients(flat, bucket)
        self.begin()
        ### END SOLUTION

    @contextmanager
    def no_sync(self):
        """A context in which backward adds to each rank's own gradients, and sends nothing.

        The next backward outside sends everything that has been added up since, each bucket as soon
        as it is full, and `finish` averages it, including the gradients of parameters that this
        last backward did not use. An error inside ends the context as its last line does.
        """
        ### BEGIN SOLUTION
        self.is_syncing = False
        try:
            yield
        finally:
            self.is_syncing = True

    def begin(self):
        self.missing = [len(bucket) for bucket in self.buckets]
        self.sent = []

    def on_gradient(self, parameter):
        if self.is_syncing:
            self.missing[self.place_of[parameter]] -= 1
            while len(self.sent) < len(self.buckets) and self.missing[len(self.sent)] == 0:
                self.send_next()

    def send_next(self):
        flat = flatten_gradients(self.buckets[len(self.sent)], out=self.flats[len(self.sent)])
        self.sent.append(dist.all_reduce(flat, async_op=True))
        ### END SOLUTION


# %% check_DataParallel points=3
def tangled_steps():
    """The gradients after each of two steps of a model with tied and frozen layers."""
    torch.manual_seed(dist.get_rank())
    module = BothBranches().eval()
    parallel, found = DataParallel(module, 40), {}
    for step in range(2):
        parallel(*batch_of(2 * step + dist.get_rank())).square().mean().backward()
        parallel.finish()
        found |= {f"{name} in step {step}": one for name, one in gradients_by_name(module).items()}
        module.zero_grad()
    return found


hint = "Did all start from rank 0's weights, did you wait, and did the means come back into grad?"
in_steps = run_with_hint(hint, tangled_steps)
show(in_steps, "Two steps in buckets of at most 40 bytes")
for step in range(2):
    batches = [[batch_of(2 * step)], [batch_of(2 * step + 1)]]
    means = means_by_one_process(lambda: BothBranches().eval(), batches)
    expect_gradients(in_steps, {f"{name} in step {step}": one for name, one in means.items()}, hint)
# other and one: 20 bytes each; four of 16 bytes; first.weight: 64
wanted = [40, 32, 32, 64] * 2
if sizes_of(in_steps, "all_reduce") != wanted:
    expected = f"all-reduces of {wanted} bytes in two steps, one for each bucket"
    hint = "One flat tensor for each bucket of make_buckets; a shared parameter is in one of them."
    raise CheckFailed(expected, f"{sizes_of(in_steps, 'all_reduce')}", hint)
print(f"step 1: right gradients in two steps, with {len(wanted) // 2} all-reduces in each.")


# %% check_overlap points=6
steps = {
    size: run_with_hint("In the hook start, in finish wait.", timed_steps, [range(4)] * 2, size)
    for size in (2**20, 2**22)
}
overlapped = steps[2**20].timeline
show(steps[2**20], "Two steps, a layer a bucket")
calls = [
    one for one in overlapped.of(0) if one.kind == "communication" and one.name == "all_reduce"
]
backward = [one for one in overlapped.of(0) if one.kind == "backward"]
if len(calls) != 8:
    expected = "8 all-reduces in two steps, one for each layer of 1 MiB"
    raise CheckFailed(expected, f"{len(calls)}", "Each step begins with nothing sent.")
if calls[0].start_s >= backward[3].end_s:
    hint = "Send from the hook of a bucket's last gradient, with async_op=True."
    raise CheckFailed("the first all-reduce during backward", "it began after", hint)
due_us, took_us = done_us(60, 80, 100, 120), step_us(steps[2**20])  # from the beginning of forward
if took_us > 1.01 * due_us:
    hint = "Send a bucket in the hook of its last gradient, not later, and wait in finish only."
    if backward[3].end_s - backward[0].start_s > 81e-6:
        hint = (
            "Backward itself takes longer than its 80 µs: a call in the hook waits. Use"
            " async_op=True, and wait in finish."
        )
    raise CheckFailed(f"e_4 = {due_us:.0f} µs for the step", f"{took_us:.0f} µs", hint)
if (second_us := step_us(steps[2**20], 1)) > 1.01 * due_us:
    hint = "The first step was in time. In finish all counts begin anew, or they never reach 0."
    raise CheckFailed(f"{due_us:.0f} µs for the second step, too", f"{second_us:.0f} µs", hint)
one_us = step_us(steps[2**22])
if took_us >= one_us:
    raise CheckFailed("four buckets to take less than one", f"{took_us:.0f} and {one_us:.0f} µs")
print(
    f"step 2: a step takes {took_us:.0f} µs with four buckets, as e_4 says, and {one_us:.0f} µs"
    " with one: overlap pays."
)


# %% check_unused points=2.5
def two_branches(bucket_bytes):
    torch.manual_seed(0)
    module = Tangled().eval()
    parallel = DataParallel(module, bucket_bytes)
    rank = dist.get_rank()
    parallel(*batch_of(rank, rank == 1)).square().mean().backward()
    parallel.finish()
    return gradients_by_name(module)


means = means_by_one_process(lambda: Tangled().eval(), [[batch_of(0, False)], [batch_of(1, True)]])
for bucket_bytes in (10_000, 4):
    hint = (
        "Rank 0 takes branch `one` and rank 1 branch `other`. What a rank did not use counts as"
        " zeros, and `finish` sends the buckets that have not left."
    )
    if bucket_bytes == 4:  # every parameter is a bucket
        hint += " Bucket 1 leaves after bucket 0 on every rank, even if it is full first."
    branched = run_with_hint(hint, two_branches, bucket_bytes)
    expect_gradients(branched, means, hint)
show(branched, "Every parameter a bucket, and another branch on each rank")
hint = "The bucket of layer 2 is full first, and waits for that of layer 3: one hook sends both."
swapped = run_with_hint(hint, timed_steps, [[0, 1, 3, 2]])  # backward begins with layer 2
due_us, took_us = done_us(80, 60, 100, 120), step_us(swapped)
if took_us > 1.01 * due_us:
    hint += " So a hook goes on sending while the next bucket misses nothing."
    raise CheckFailed(f"e_4 = {due_us:.0f} µs, backward 2, 3, 1, 0", f"{took_us:.0f} µs", hint)
print("step 3: right gradients on ranks that take different branches, in one bucket and in many.")


# %% check_no_sync points=2.5
def accumulate():
    torch.manual_seed(0)
    module = BothBranches().eval()
    parallel, rank = DataParallel(module, 10_000), dist.get_rank()
    with parallel.no_sync():
        parallel(*batch_of(rank)).square().mean().backward()
        inside = gradients_by_name(module)
    parallel(*batch_of(2 + rank)).square().mean().backward()
    parallel.finish()
    return gradients_by_name(module) | {f"inside {name}": one for name, one in inside.items()}


hint = "Inside no_sync a hook neither sends nor counts; the sums leave with the next backward."
quiet = run_with_hint(hint, accumulate)
show(quiet, "Two batches, one optimizer step")
if len(sizes_of(quiet, "all_reduce")) != 1:
    actual = f"{len(sizes_of(quiet, 'all_reduce'))}"
    raise CheckFailed("1 all-reduce for two batches, with a single bucket", actual, hint)
for rank, found in enumerate(quiet.values):
    for name, own in means_by_one_process(
        lambda: BothBranches().eval(), [[batch_of(rank)]]
    ).items():
        if own is not None:
            label = f"{name} on rank {rank} inside no_sync"
            expect_close(found[f"inside {name}"], own, label, "Each rank's own.", atol=1e-6)
batches = [[batch_of(rank), batch_of(2 + rank)] for rank in range(2)]
expect_gradients(quiet, means_by_one_process(lambda: BothBranches().eval(), batches), hint)
after = run_with_hint(hint, timed_steps, [range(4)] * 2, 2**20, True)
due_us, took_us = done_us(60, 80, 100, 120), step_us(after, 1)
if took_us > 1.01 * due_us:
    hint += " The counts that the next backward finds are those of a new step."
    raise CheckFailed(f"{due_us:.0f} µs for the step after no_sync", f"{took_us:.0f} µs", hint)
print("step 4: nothing is sent inside no_sync, and the sums are averaged afterwards.")

# %% [markdown]
# ## 6. Write the test
#
# How would you know that a class like yours is right? Here you write a test for it. Your test is
# graded by **mutation**: it is run on several right classes and on ten wrong ones. It has to let
# all right ones pass, and to catch a class that sends nothing; then it earns points for each of the
# ten that it catches.
#
# The test runs on the ranks, inside a process group. What would catch a class that sums instead of
# taking the mean? One that forgets the buffers? One whose `no_sync` averages nevertheless? Compare
# with what each rank can compute alone: every rank can make the batches of all ranks from a seed.
#
# <details><summary>Hint 1: where to look</summary>
# Read the contract of the class sentence by sentence, and write an assertion for each about state
# and gradients. <code>Tangled</code> has a tied layer, a frozen one, buffers and two branches.
# </details>
# <details><summary>Hint 2: how</summary>
# Keep a second model of the same seed, on which you compute what one process would have. Let each
# rank take another branch, for two steps; then a round with <code>no_sync</code>, with an assertion
# inside the context and one after <code>finish</code>.
# </details>


# %% test_data_parallel tags=["solution"]
def test_data_parallel(DataParallel: type) -> None:
    """Raise an error, such as AssertionError, if `DataParallel` breaks one of its promises.

    - It is called on every rank of a run of two ranks. It makes its own modules and inputs, and
      takes at most a second for a class.
    - A class counts as caught if the test raises any error on any rank, even one that the class
      itself raises.
    - The promises are those of the class above about *state and gradients*: after the constructor,
      inside `no_sync`, and after `finish`, in one step and in several. How a class sends does not
      matter here: a class without buckets that sends everything in `finish` is right.
    - What is left open above stays open: the gradient of a parameter that no rank used may be zeros
      or None.
    """
    ### BEGIN SOLUTION
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    module = Tangled()
    module.get_buffer("norm.running_mean").fill_(rank)
    parallel = DataParallel(module, 100)
    torch.manual_seed(0)
    single = Tangled()
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, single.state_dict()[name]), f"{name} is not that of rank 0"

    def gradients_of(batches):
        """The gradients of one process; each (seed, branch) is a batch with a share of the mean."""
        single.zero_grad()
        for seed, is_second in batches:
            batch = torch.randn(6, 4, generator=torch.Generator().manual_seed(seed))
            (single(batch, is_second).square().mean() / num_ranks).backward()
        return {name: parameter.grad for name, parameter in single.named_parameters()}

    def backward(seed, is_second):
        batch = torch.randn(6, 4, generator=torch.Generator().manual_seed(seed))
        parallel(batch, is_second).square().mean().backward()

    def expect(wanted, scale=1):
        for name, parameter in module.named_parameters():
            zeros = torch.zeros_like(parameter)
            mine = zeros if parameter.grad is None else parameter.grad
            other = zeros if wanted[name] is None else wanted[name] * scale
            assert torch.allclose(mine, other, rtol=1e-4, atol=1e-6), f"the gradient of {name}"

    for step in range(2):
        backward(10 * step + rank, rank == 1)  # each rank takes another branch
        parallel.finish()
        expect(gradients_of([(10 * step, False), (10 * step + 1, True)]))
        module.zero_grad()
    with parallel.no_sync():
        backward(20 + rank, True)
        expect(gradients_of([(20 + rank, True)]), scale=num_ranks)
    backward(30 + rank, False)
    parallel.finish()
    expect(gradients_of([(20, True), (21, True), (30, False), (31, False)]))
    ### END SOLUTION


# %% check_test_data_parallel points=6
class SendsEachInFinish:
    """A right class that sends everything in `finish`."""

    def __init__(self, module, bucket_bytes):
        self.module = module
        for tensor in self.state():
            dist.broadcast(tensor.data, src=0)

    def state(self):
        return [*self.module.parameters(), *self.module.buffers()]

    def __call__(self, *inputs):
        return self.module(*inputs)

    def finish(self):
        for parameter in self.module.parameters():
            if parameter.requires_grad:
                mine = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                parameter.grad = self.averaged(mine.clone())

    def averaged(self, gradient):
        dist.all_reduce(gradient)
        return gradient / dist.get_world_size()

    @contextmanager
    def no_sync(self):
        yield


class Sums(SendsEachInFinish):
    """A wrong class whose gradients are sums."""

    def averaged(self, gradient):
        return super().averaged(gradient) * dist.get_world_size()


class StartsAlone(SendsEachInFinish):
    """A wrong class that broadcasts nothing but buffers."""

    def state(self):
        return list(self.module.buffers())


class DropsAccumulated(SendsEachInFinish):
    """A wrong class that forgets the gradients of no_sync."""

    @contextmanager
    def no_sync(self):
        yield
        self.module.zero_grad()


def tested(parallel_class):
    test_data_parallel(parallel_class)
    return "passed"


try:
    right = ws.run(tested, SendsEachInFinish, world_size=2, **RULES)
except (ws.RankFailed, ws.RunTimeout) as error:
    hint = "It sends everything in finish, and keeps every promise about state and gradients."
    raise CheckFailed("a right class to pass", f"{error}", hint) from error
show(right, "What your test does on the ranks")
for wrong, hint in {
    Sums: "Compare with a number that you know, not only the ranks with each other.",
    StartsAlone: "Let ranks begin with different weights, and compare them after the constructor.",
    DropsAccumulated: "Run a backward inside no_sync and one after it, and compare with their sum.",
}.items():
    try:
        ws.run(tested, wrong, world_size=2, **RULES)
    except (ws.RankFailed, ws.RunTimeout):
        continue
    raise CheckFailed(f"the test to catch the class {wrong.__name__}", "it passed", hint)
print("test_data_parallel: lets a right class pass and catches three wrong ones; ten are graded.")

# %% [markdown]
# ## 7. In words
#
# A model has 800 MB of gradients. A step on each GPU takes 20 ms forward and 40 ms backward;
# gradients become complete evenly over the backward pass. An all-reduce of S bytes takes 0.2 ms + S
# / (20 GB/s), and one runs at a time.
#
# Answer in at most 250 words, with numbers:
#
# 1. How long is a step with one all-reduce after backward, and which fraction of it is compute?
# 2. How long is it with buckets of 100 MB that leave as soon as they are full?
# 3. And with buckets of 1 MB? Why is that worse than no overlap at all?
# 4. Could any size of bucket bring the step to 60.5 ms? Why?
# 5. With 100 MB buckets and `no_sync`, four batches are accumulated into one optimizer step. Which
#    fraction is compute now, and what has changed besides the time?

# %% bucket_size [markdown] points=5 tags=["solution"]
# **Answer.**
#
# 1. 800 MB take 0.2 + 40 = 40.2 ms after 60 ms of compute: 100.2 ms, of which 60/100.2 = 59.9% are
#    compute.
# 2. 8 buckets of 0.2 + 5 = 5.2 ms, one every 5 ms of backward. The first is full at 20 + 5 = 25 ms;
#    from then on the link is never idle: 25 + 8 · 5.2 = 66.6 ms.
# 3. 800 buckets of 0.2 + 0.05 = 0.25 ms: 200 ms of communication, of which 160 ms are latency.
#    20.05 + 200 = 220 ms. It hides 40 ms and adds 160 ms.
# 4. No. The bytes alone take 40 ms on the link, and the link cannot begin before the first bucket
#    is full. With buckets of b, that is at 20 + 40 · b/800 MB, so the step is at least 60 ms plus
#    b/800 MB · 40 ms, plus 0.2 ms for each of the 800 MB / b buckets: with n buckets 60 + 40/n +
#    0.2 n. It is least at n = sqrt(40/0.2) = 14, with 65.7 ms.
# 5. 3 · 60 + 66.6 = 246.6 ms for 240 ms of compute: 97.3%. The batch of one optimizer step is four
#    times as large (and the same number of samples makes a quarter as many steps), which may call
#    for another learning rate.
#
# **Rubric**, one point each:
#
# - 100.2 ms and 60% (59 to 61%).
# - 66.6 ms (66 to 67.5), with the first bucket at 25 ms.
# - About 220 ms, with latency named and 800 calls of 0.2 ms counted.
# - No, with a reason in numbers: the last bucket (or the first one's delay) and the latency of n
#   buckets. The optimum itself is not asked for.
# - 97% (96 to 98%), and the larger batch.
#
# Half a point where the reasoning is right and a number is wrong by a slip. No point for a list of
# facts without numbers.

# %% [markdown]
# ## What you have built
#
# The next cell compares your class with torch's own, on this machine and over real sockets: the
# same gradients, and the time of each.


# %% against_torch
def race():
    import statistics
    import time

    torch.set_num_threads(1)
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(nn.Sequential(*[nn.Linear(512, 512) for _ in range(6)]))
    ours = DataParallel(models[0], 2_000_000)
    theirs = nn.parallel.DistributedDataParallel(models[1], bucket_cap_mb=2)
    inputs = torch.randn(32, 512, generator=torch.Generator().manual_seed(dist.get_rank()))
    times_ms = {"yours": [], "torch's": []}
    for _ in range(8):
        for kept, parallel in zip(times_ms.values(), (ours, theirs), strict=True):
            dist.barrier()
            start_s = time.perf_counter()
            parallel(inputs).square().mean().backward()
            if parallel is ours:
                ours.finish()
            kept.append((time.perf_counter() - start_s) * 1e3)
    difference = max(
        (a.grad - b.grad).abs().max().item()
        for a, b in zip(*(m.parameters() for m in models), strict=True)
    )
    return difference, {name: statistics.median(kept[2:]) for name, kept in times_ms.items()}


difference, medians_ms = ws.run(race, world_size=2, backend="gloo", echo=False).values[0]
times = ", ".join(f"{name} {time_ms:.1f} ms" for name, time_ms in medians_ms.items())
print(f"a step on 2 ranks: {times}; largest difference of a gradient {difference:.1e}")
