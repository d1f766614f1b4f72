# %% [markdown]
# # Lab 3. Write DDP
#
# In lab 1 you averaged gradients after the backward pass; until then every link was idle. In this
# lab you write what torch's `DistributedDataParallel` does: collect gradients in buckets, and send
# each bucket as soon as it is full, while backward still works on the layers before it. Then you
# write the test that such a class must pass.
#
# ```text
# one call at the end    forward ▒▒▒▒ backward ▒▒▒▒▒▒▒▒                the link waits, then you wait
#                                                      ████████ all gradients
#
# buckets, overlapped    forward ▒▒▒▒ backward ▒▒▒▒▒▒▒▒
#                                              ██  ██  ██  ██      only the last bucket is exposed
# ```
#
# | Function | What it does | Points |
# |---|---|---|
# | `broadcast_state` | gives all ranks the state of rank 0 | 2 |
# | `average_one_by_one` | the mean of the gradients, one all-reduce for each parameter | 2 |
# | `average_flat` | the same in one all-reduce | 3 |
# | `make_buckets` | which gradients travel together | 3 |
# | `DataParallel` | buckets that leave during backward, and `no_sync` | 14 |
# | `test_data_parallel` | a test that passes right classes and fails wrong ones | 6 |
# | `bucket_size` | questions that you answer in words | 5 |
#
# Each docstring is a contract: everything that it promises is graded, and nothing else. The checks
# run your code on an emulated cluster. They look at the gradients **and at the wire**: how many
# collectives there were, how many bytes each had, and when it began.
#
# Of the operations of `torch.distributed`, `broadcast` and `all_reduce` are allowed, with or
# without `async_op`. Torch's own `DistributedDataParallel`, its `Reducer` and its other wrappers
# are refused.

# %% setup
from contextlib import contextmanager

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
    """A linear layer that takes 20 µs forward and 40 µs backward, in virtual time."""

    def forward(self, tensor):
        return Work.apply(super().forward(tensor), 20e-6)


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


def count(run, name):
    """The number of operations of this name that rank 0 took part in."""
    return sum(event.kind == "communication" and event.name == name for event in run.timeline.of(0))


ws.run(dist.get_rank, world_size=2, **RULES)  # the first run loads torch: the checks are then quick


# %% [markdown]
# ## 1. Start from the same state
#
# Gradients are averaged, weights never are. So weights that differ at the start stay different. And
# a model holds more than weights: the running mean of a `BatchNorm` is a **buffer**, and its count
# of batches an *integer* buffer.
#
# `dist.broadcast(tensor, src=0)` writes into `tensor` in place. A parameter that requires a
# gradient refuses to be written to in place; `parameter.data` is the same memory without that
# guard.


# %% broadcast_state tags=["solution"]
def broadcast_state(module: nn.Module) -> None:
    """Give every rank the parameters and buffers of rank 0's `module`, in place.

    - All of them, including frozen parameters and buffers of any dtype, integers too.
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


started = ws.run(start_alike, world_size=3, **RULES)
show(started, "The state of rank 0, on H100s")
for rank in (1, 2):
    for mine, wanted, name in zip(
        started.values[rank], started.values[0], Tangled().state_dict(), strict=True
    ):
        expect_close(
            mine, wanted, f"{name} on rank {rank}", "Parameters and buffers, also frozen ones."
        )
print(f"broadcast_state: 3 ranks start alike, after {count(started, 'broadcast')} broadcasts.")

# %% [markdown]
# ## 2. One call for each parameter
#
# The plain way, as in lab 1. `module.parameters()` lists a shared parameter once. Two things are
# new: a **frozen** parameter has no gradient and takes no part, and a parameter that this rank did
# **not use** in this step has `grad=None`. Another rank may have used it. If this rank then leaves
# it out, the calls of the two ranks no longer match.


# %% average_one_by_one tags=["solution"]
def average_one_by_one(module: nn.Module) -> None:
    """Average every gradient over all ranks, in place; all ranks get the same result.

    - One all-reduce for each parameter that requires a gradient, in the order of
      `module.parameters()`, with as many bytes as the gradient has.
    - A rank whose gradient is None counts as zeros. If all are None, the result may be zeros or
      None.
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
def average_with(average):
    model = on_each_rank(Tangled)
    if dist.get_rank() == 1:
        model.other.weight.grad = None
    average(model)
    return {
        name: parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def expect_means(run):
    for rank, gradients in enumerate(run.values):
        if any(name.startswith("frozen") for name in gradients):
            raise CheckFailed(
                "no gradient of the frozen layer", f"one on rank {rank}", "Leave it out."
            )
        for name in ("first.weight", "norm.bias", "one.weight", "other.weight"):
            mean = 0.5 if name == "other.weight" else 1.5
            hint = (
                "Rank 0 has ones and rank 1 twos; rank 1 has no gradient of other.weight, which"
                " counts as zeros."
            )
            expect_close(
                gradients.get(name, torch.zeros(())).flatten()[:1],
                torch.full((1,), mean),
                name,
                hint,
            )


one_by_one = ws.run(average_with, average_one_by_one, world_size=2, **RULES)
show(one_by_one, "One all-reduce for each parameter, on H100s")
expect_means(one_by_one)
if count(one_by_one, "all_reduce") != 9:
    raise CheckFailed(
        "9 all-reduces, one for each parameter that is not frozen",
        f"{count(one_by_one, 'all_reduce')}",
    )
print(f"average_one_by_one: 9 all-reduces in {one_by_one.timeline.end_s * 1e6:.0f} µs.")

# %% [markdown]
# ## 3. One call for all
#
# Nine small calls cost nine times the latency. Copy all gradients into one **flat** tensor, side by
# side, all-reduce that, and copy the means back. `torch.cat` joins tensors; `flat.split([3, 5, 2])`
# gives pieces of these lengths. A tensor has one dtype, so there is one flat tensor for each dtype.


# %% average_flat tags=["solution"]
def average_flat(module: nn.Module) -> None:
    """Average every gradient over all ranks, in place, in one all-reduce for each dtype.

    - One all-reduce for each dtype among the parameters that require a gradient, with as many bytes
      as all gradients of that dtype have together. A gradient has its parameter's dtype, and
      travels in it.
    - There is no call when there is nothing to send, as for a dtype that only frozen parameters
      have.
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
flat_run = ws.run(average_with, average_flat, world_size=2, **RULES)
show(flat_run, "One all-reduce for all, on H100s")
expect_means(flat_run)
if count(flat_run, "all_reduce") != 1:
    raise CheckFailed(
        "1 all-reduce: all parameters are float32", f"{count(flat_run, 'all_reduce')}"
    )
one_s, nine_s = flat_run.timeline.end_s, one_by_one.timeline.end_s
print(
    f"average_flat: 1 all-reduce in {one_s * 1e6:.0f} µs; one for each parameter took"
    f" {nine_s * 1e6:.0f} µs."
)

# %% [markdown]
# ## 4. Buckets
#
# A single call has the least latency, but cannot begin before backward is over. A call for each
# parameter can begin at once, but pays the latency each time. A **bucket** is between the two: as
# many gradients as fit into a given number of bytes.
#
# Which gradients belong together? Backward goes through the layers from the last to the first, so
# the first gradients to be complete are those of the *last* parameters. Buckets are filled in that
# order.
#
# ```text
# parameters     a 4 B    b 8 B    c 4 B    d 4 B        bucket_bytes=12
# buckets        [d, c]   [b, a]        d + c = 8, with b 16: too many. b + a = 12 fits.
# ```


# %% make_buckets tags=["solution"]
def make_buckets(parameters: list[nn.Parameter], bucket_bytes: int) -> list[list[nn.Parameter]]:
    """The parameters that require a gradient, last first, in buckets of at most `bucket_bytes`.

    - A bucket ends where the next parameter would bring it above `bucket_bytes`, or has another
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
        "the buckets [d, c] and [b, a] of the picture", f"{found}", "From the last to the first."
    )
alone = make_buckets(list(four.values()), bucket_bytes=4)
if [len(bucket) for bucket in alone] != [1, 1, 1, 1]:
    raise CheckFailed(
        "four buckets of one when only 4 bytes fit; b is larger, and alone", f"{alone}"
    )
draw_of = {f"bucket {place}": bucket for place, bucket in enumerate(found)}
print(f"make_buckets: {draw_of}; with 4 bytes every parameter has a bucket of its own.")

# %% [markdown]
# ## 5. Overlap
#
# Torch calls you when a gradient is complete: `parameter.register_post_accumulate_grad_hook(hook)`,
# and `hook(parameter)` runs during backward, right after the gradient was added to
# `parameter.grad`. For a shared parameter that is once, when all its uses have been added.
#
# When the last gradient of a bucket is complete, flatten the bucket and start the all-reduce: with
# `async_op=True` the call returns a handle at once, and backward goes on. After backward,
# `finish()` waits for the handles and copies the means back.
#
# Three traps:
#
# - **Order.** On a rank that took another branch, gradients may become complete in another order.
#   But collectives are matched in the order of the calls. So bucket 1 leaves after bucket 0, on
#   every rank, even if it is full first.
# - **Unused parameters.** Their hook is never called. `finish` has to send the buckets that have
#   not left yet.
# - **`no_sync`.** Inside it backward only adds to `grad`, and nothing is sent. The next backward
#   outside adds its own part, and the sum is averaged. (Here the backward pass decides. In torch's
#   DDP it is the forward pass that must be inside.)
#
# On the left a training step, on the right one with gradient accumulation:
#
# ```python
# parallel = DataParallel(module, bucket_bytes=25_000_000)
#
# loss(parallel(inputs)).backward()          with parallel.no_sync():
# parallel.finish()                              loss(parallel(first_half)).backward()
# optimizer.step()                           loss(parallel(second_half)).backward()
# optimizer.zero_grad()                      parallel.finish()
# ```


# %% DataParallel tags=["solution"]
class DataParallel:
    """A module whose gradients are, after `finish`, the means over all ranks."""

    def __init__(self, module: nn.Module, bucket_bytes: int) -> None:
        """Give all ranks the state of rank 0, like `broadcast_state`, and prepare the buckets.

        - From then on, the gradients of a backward outside `no_sync` travel in the buckets of
          `make_buckets(list(module.parameters()), bucket_bytes)`: one all-reduce for each bucket,
          in the order of that list on every rank, with as many bytes as its gradients have. Nothing
          else is sent.
        - A bucket leaves as soon as its last gradient is there and the buckets before it have left,
          while backward goes on. If all-reduce k takes c_k seconds and bucket k is full at r_k,
          that bucket is done at e_k = max(r_k, e_(k-1)) + c_k, and the step is done when both
          backward and the last bucket are.
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
          gradient is zeros or None. Frozen parameters have no gradient. Other ranks may have used
          other parameters, in another order.
        - Between two steps the object keeps no more bytes of its own than one copy of the
          gradients.
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

        The next backward outside and `finish` average everything that has been added up since,
        including the gradients of parameters that this last backward did not use.
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


# %% check_DataParallel points=14
def four_layers(bucket_bytes):
    torch.manual_seed(dist.get_rank())
    model = nn.Sequential(*[TimedLayer(256, 256) for _ in range(4)])
    parallel = DataParallel(model, bucket_bytes)
    inputs = torch.rand(8, 256, generator=torch.Generator().manual_seed(1))[dist.get_rank() * 4 :][
        :4
    ]
    parallel(inputs).square().mean().backward()
    parallel.finish()
    return next(model.parameters()).grad


steps = {size: ws.run(four_layers, size, world_size=2, **RULES) for size in (300_000, 10_000_000)}
show(steps[300_000], "A layer a bucket")
for size, num_buckets in {300_000: 4, 10_000_000: 1}.items():
    run = steps[size]
    expect_close(
        run.values[1],
        run.values[0],
        "the first layer's gradient on rank 1",
        "The same mean on all ranks.",
    )
    if count(run, "all_reduce") != num_buckets:
        expected = f"{num_buckets} all-reduces with buckets of {size:,} bytes"
        raise CheckFailed(expected, f"{count(run, 'all_reduce')}", "One for each bucket.")
torch.manual_seed(0)
whole = nn.Sequential(*[nn.Linear(256, 256) for _ in range(4)])
whole(torch.rand(8, 256, generator=torch.Generator().manual_seed(1))).square().mean().backward()
hint = (
    "One process with all 8 samples has this gradient. Is it the mean, and did all start from rank"
    " 0's weights?"
)
wanted = next(whole.parameters()).grad
expect_close(steps[300_000].values[0], wanted, "the first layer's gradient", hint, atol=1e-8)
overlapped, at_the_end = steps[300_000].timeline, steps[10_000_000].timeline
first_s = min(event.start_s for event in overlapped.of(0) if event.name == "all_reduce")
if first_s >= max(event.end_s for event in overlapped.of(0) if event.kind == "backward"):
    raise CheckFailed(
        "the first all-reduce during backward",
        "it began after",
        "Send from the hook, with async_op=True.",
    )
for name, one in {"four buckets": overlapped, "one bucket": at_the_end}.items():
    print(
        f"{name:<13} {one.end_s * 1e6:4.0f} µs, of which"
        f" {one.exposed_communication_s(0) * 1e6:3.0f} µs exposed"
    )

# %% [markdown]
# ## 6. Write the test
#
# How would you know that a class like yours is right? Here you write a test for it. Your test is
# graded by **mutation**: it is run on several right classes and on ten wrong ones. It has to let
# all right ones pass, and earns points for each wrong one that it catches.
#
# The test runs on the ranks, inside a process group. What would catch a class that sums instead of
# taking the mean? One that forgets the buffers? One whose `no_sync` averages nevertheless? Compare
# with what you can compute on this rank alone: every rank can make the batches of all ranks from a
# seed.


# %% test_data_parallel tags=["solution"]
def test_data_parallel(DataParallel: type) -> None:
    """Raise an error, such as AssertionError, if `DataParallel` breaks one of its promises.

    - It is called on every rank of a run of two ranks. It makes its own modules and inputs, and
      takes at most a second.
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

    is_mean = True

    def __init__(self, module, bucket_bytes):
        self.module = module
        broadcast_state(module)

    def __call__(self, *inputs):
        return self.module(*inputs)

    def finish(self):
        average_one_by_one(self.module)
        for parameter in self.module.parameters():
            if parameter.grad is not None and not self.is_mean:
                parameter.grad *= dist.get_world_size()

    @contextmanager
    def no_sync(self):
        yield


class Sums(SendsEachInFinish):
    """A wrong class whose gradients are sums."""

    is_mean = False


def caught(parallel_class):
    try:
        test_data_parallel(parallel_class)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


verdicts = {one: ws.run(caught, one, world_size=2, **RULES) for one in (SendsEachInFinish, Sums)}
show(verdicts[SendsEachInFinish], "What your test does on the ranks")
if error := next(filter(None, verdicts[SendsEachInFinish].values), ""):
    hint = "This class sends everything in finish, and keeps every promise."
    raise CheckFailed("the test to let a right class pass", error, hint)
if not any(verdicts[Sums].values):
    hint = "Compare with a number that you know, not only the ranks with each other."
    raise CheckFailed("the test to catch a class that sums", "the class passed", hint)
print(
    "test_data_parallel: lets a right class pass, and catches one that sums:"
    f" {max(verdicts[Sums].values)}"
)

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
#    times as large (and the same number of samples makes a quarter as many steps), which may need
#    another learning rate.
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
