"""Hidden checks of lab 4: a server among scripted workers, and optimizer steps by formula."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
import torch.distributed as dist
from PIL import Image

from autograder.checks import entries, entry, integer, points, shown, tensor_like
from worldsize import emulate
from worldsize.check import CheckFailed, Drawn, expect_close
from worldsize.event import COMMUNICATION, Event
from worldsize.launch import Run
from worldsize.memory.meter import MemoryMeter
from worldsize.timeline import Timeline

MESSAGES = {"send", "recv"}
SERVER, WORKER = (0,), (1,)  # the ranks of student code; the others play a script, without it
TOLERANCE = 1.03  # of a time: messages take microseconds beside steps of milliseconds
Tensors = list[torch.Tensor]


# What runs on the ranks. Nothing here knows an answer: workers and servers play what the judge
# wrote down for them.


def work_on_rank(
    student: Any, script: list[Any], parameters: torch.Tensor, num_steps: int, slope: float
) -> Any:
    if script:  # this rank is the server
        return play(script, lambda tensor: tensor)
    pulled: list[torch.Tensor] = []

    def gradient_of(tensor: torch.Tensor) -> torch.Tensor:
        pulled.append(tensor.clone())
        return slope * tensor + 1

    student.run_worker(parameters, gradient_of, num_steps)
    return {"pulled": pulled, "parameters": parameters}


def serve_on_rank(
    student: Any,
    parameters: torch.Tensor,
    num_steps: int,
    bound: int,
    keep: float,
    rate: float,
    script: list[Any],
    matrix: torch.Tensor,
    target: torch.Tensor,
) -> Any:
    if script:  # this rank is a worker
        return play(script, lambda tensor: (matrix @ tensor.flatten() - target).view(tensor.shape))
    num_updates = [0]

    def update(weights: torch.Tensor, gradient: torch.Tensor) -> None:
        weights.mul_(keep).sub_(gradient, alpha=rate)  # makes no tensor
        num_updates[0] += 1

    with MemoryMeter([parameters], counts_read=False) as meter:
        student.run_server(parameters, update, num_steps, bound)
    return {"parameters": parameters, "num_updates": num_updates[0], "most_bytes": meter.most_bytes}


def play(script: list[Any], react: Callable[[torch.Tensor], torch.Tensor]) -> Tensors:
    """The tensors that a script of (name, peer, tensor, seconds of work before) receives."""
    received: list[torch.Tensor] = []
    for call, peer, tensor, work_s in script:
        emulate.spend(work_s)
        if call == "recv":
            dist.recv(tensor, peer)
            received.append(tensor.clone())
        else:
            dist.send(react(received[-1]) if tensor is None else tensor, peer)
    return received


def lars_on_rank(
    student: Any, steps: list[Any], layers: Tensors, velocities: Tensors, settings: dict[str, Any]
) -> Any:
    return optimizer_on_rank(
        student.lars_step, steps, layers, [velocities], settings, is_counting=False
    )


def lamb_on_rank(
    student: Any, steps: list[Any], layers: Tensors, moments: list[Tensors], settings: Any
) -> Any:
    return optimizer_on_rank(student.lamb_step, steps, layers, moments, settings, is_counting=True)


def optimizer_on_rank(
    step: Any,
    steps: list[Any],
    layers: Tensors,
    states: list[Tensors],
    settings: dict[str, Any],
    is_counting: bool,
) -> Any:
    held = (
        [*layers],
        [[*state] for state in states],
    )  # what the caller keeps, whatever happens to the lists
    ratios, gradients = [], []
    for number, (given, rate) in enumerate(steps, start=1):
        gradients.append(given)
        count = [number] if is_counting else []
        ratios.append(
            [float(one) for one in step(layers, given, *states, *count, rate, **settings)]
        )
    return {
        "ratios": ratios,
        "layers": [one.detach() for one in held[0]],
        "states": [[one.detach() for one in state] for state in held[1]],
        "gradients": gradients,
        "is_recorded": any(not one.is_leaf for one in held[0]),
    }


# What the judge draws, computes and compares.


def whole(rng: torch.Generator, low: int, high: int) -> int:
    """A whole number from low to high, both included."""
    return int(torch.randint(low, high + 1, (), generator=rng))


def between(rng: torch.Generator, low: float, high: float) -> float:
    return low + (high - low) * float(torch.rand((), generator=rng, dtype=torch.float64))


def drawn(rng: torch.Generator, *shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, generator=rng, dtype=torch.float64).to(dtype)


class InFewColours:
    """A picture in a quarter of its bytes: a page may hold many."""

    def __init__(self, picture: Drawn) -> None:
        self._picture, self.alt = picture, picture.alt

    def png(self) -> bytes:
        """The bytes of a PNG file of 32 colours."""
        file = io.BytesIO()
        image = Image.open(io.BytesIO(self._picture.png())).convert("RGB")
        image.quantize(32).save(file, "png", optimize=True)
        return file.getvalue()


def draw_work(timeline: Timeline) -> Drawn:
    """Who worked when."""
    from worldsize.draw import timeline as draw_timeline

    return InFewColours(
        draw_timeline(timeline, "When your ranks worked and waited", streams=["compute", "wait"])
    )


def draw_messages(timeline: Timeline) -> Drawn:
    """Each message's sender and receiver, step by step."""
    from worldsize.draw import _messages

    return InFewColours(_messages(timeline, "What your ranks sent"))


def messages_of(timeline: Timeline, rank: int, name: str) -> list[Event]:
    return [one for one in timeline.of(rank) if one.kind == COMMUNICATION and one.name == name]


def expect_messages(timeline: Timeline, num_workers: int, num_steps: int, size_bytes: int) -> None:
    """Raise CheckFailed unless each worker got and sent one message a step, server only."""
    picture = partial(draw_messages, timeline)
    for worker in range(1, num_workers + 1):
        messages = {
            f"from the server to worker {worker}": [
                one for one in messages_of(timeline, 0, "send") if one.peers == (worker,)
            ],
            f"from worker {worker} to the server": [
                one for one in messages_of(timeline, worker, "send") if one.peers == (0,)
            ],
        }
        for which, found in messages.items():
            if len(found) != num_steps:
                hint = "Each step has one pull and one push; the last push is not answered."
                raise CheckFailed(f"{num_steps} messages {which}", f"{len(found)}", hint, picture)
            if off := [one.size_bytes for one in found if one.size_bytes != size_bytes]:
                hint = "A push carries the gradient, a pull the parameters, and nothing else."
                raise CheckFailed(
                    f"messages of {size_bytes:,} bytes {which}", f"{off[0]:,} bytes", hint, picture
                )
        if len(messages_of(timeline, worker, "send")) != num_steps:
            raise CheckFailed(
                "workers to communicate with the server alone",
                "messages between workers",
                "",
                picture,
            )


@dataclass(frozen=True)
class Training:
    """A server and workers w that compute `matrix[w] @ parameters - target[w]` in `step_s[w]`."""

    parameters: torch.Tensor
    num_steps: int
    bound: int
    keep: float
    rate: float
    step_s: list[list[float]]  # of each worker, of each step
    matrix: Tensors
    target: Tensors

    @property
    def num_workers(self) -> int:
        return len(self.step_s)

    def each(self) -> list[tuple[Any, ...]]:
        """What every rank is given."""
        shared = (self.parameters, self.num_steps, self.bound, self.keep, self.rate)
        nothing = torch.zeros(0)
        empty = torch.zeros_like(self.parameters)
        scripts = [
            [
                call
                for step in range(self.num_steps)
                for call in (("recv", 0, empty, 0.0), ("send", 0, None, self.step_s[worker][step]))
            ]
            for worker in range(self.num_workers)
        ]
        workers = zip(scripts, self.matrix, self.target, strict=True)
        return [(*shared, [], nothing, nothing), *((*shared, *of_worker) for of_worker in workers)]

    def emulated(self, student: Any) -> Run:
        each, world_size = self.each(), self.num_workers + 1
        return student.emulated(
            serve_on_rank, world_size=world_size, each=each, allow=MESSAGES, student_ranks=SERVER
        )

    def gradient(self, worker: int, at: torch.Tensor) -> torch.Tensor:
        """The gradient of a worker, counted from 1."""
        return (self.matrix[worker - 1] @ at.flatten() - self.target[worker - 1]).view(at.shape)

    def ends_s(self) -> list[float]:
        """When each worker is done, if it waits for the bound alone and messages take no time."""
        done_s: list[list[float]] = [[] for _ in self.step_s]
        for step in range(self.num_steps):
            slowest = step - self.bound  # steps that everybody must have done
            held_s = max(times[slowest - 1] for times in done_s) if slowest > 0 else 0.0
            for worker, times in enumerate(done_s):
                start_s = max(times[-1] if times else 0.0, held_s)
                times.append(start_s + self.step_s[worker][step])
        return [times[-1] for times in done_s]


def drawn_training(
    rng: torch.Generator,
    num_workers: int,
    num_steps: int,
    bound: int,
    slow_factor: float = 5.0,
    keep: float = 0.9,
    shape: tuple[int, ...] = (7,),
    dtype: torch.dtype = torch.float64,
) -> Training:
    """A training in which one worker is slower; the others differ by a few per cent."""
    num = torch.Size(shape).numel()
    slow = whole(rng, 0, num_workers - 1)
    grid_s = 4e-4
    step_s = [
        [
            grid_s * whole(rng, 25, 27) * (slow_factor if worker == slow else 1)
            for _ in range(num_steps)
        ]
        for worker in range(num_workers)
    ]
    # Pushes of workers that do not wait are apart by more than the microseconds of a message:
    # otherwise a server with several receives posted could answer one push after another has
    # arrived that it has not applied yet.
    for worker, of_worker in enumerate(step_s):
        of_worker[0] += grid_s * worker / num_workers
    return Training(
        drawn(rng, *shape, dtype=dtype),
        num_steps,
        bound,
        keep,
        0.25,
        step_s,
        [(drawn(rng, num, num) / (2 * num)).to(dtype) for _ in range(num_workers)],
        [drawn(rng, num, dtype=dtype) for _ in range(num_workers)],
    )


def pulls_and_pushes(timeline: Timeline) -> Iterator[tuple[str, int]]:
    """The server's ("pull" or "push", worker) in order; a push counts when it is complete."""
    pulls = [(one.start_s, 1, "pull", one.peers[0]) for one in messages_of(timeline, 0, "send")]
    pushes = [(one.end_s, 0, "push", one.peers[0]) for one in messages_of(timeline, 0, "recv")]
    return ((name, worker) for _, _, name, worker in sorted(pulls + pushes))


def expect_replay(training: Training, run: Run, **close: float) -> None:
    """Raise CheckFailed unless pulls and the end follow from the pushes, each applied once."""
    now, pulled = (
        training.parameters.clone(),
        {worker: [] for worker in range(1, training.num_workers + 1)},
    )
    num_pushed = dict.fromkeys(pulled, 0)
    num_updates, num_pushes = (
        integer(entry(run.values, 0, "num_updates")),
        len(messages_of(run.timeline, 0, "recv")),
    )
    if num_updates != num_pushes:
        hint = "Every push is applied once, however old its gradient is, including the last one."
        raise CheckFailed(
            f"{num_pushes} calls of update for {num_pushes} pushes", shown(num_updates), hint
        )
    hint = (
        "Each push is applied once, unchanged, in the order of arrival, and a pull sends the"
        " parameters as they are then."
    )
    for name, worker in pulls_and_pushes(run.timeline):
        if name == "pull":
            number = len(pulled[worker])
            given = entry(run.values, worker, number)
            expect_close(given, now, f"pull {number + 1} of worker {worker}", hint, **close)
            pulled[worker].append(now.clone())
        else:
            gradient = training.gradient(worker, pulled[worker][num_pushed[worker]])
            num_pushed[worker] += 1
            now.mul_(training.keep).sub_(training.rate * gradient)
    hint = "The last pushes are applied too."
    picture = partial(draw_messages, run.timeline)
    expect_close(
        entry(run.values[0], "parameters"),
        now,
        "the final parameters",
        hint,
        picture=picture,
        **close,
    )


def expect_bound(training: Training, run: Run) -> None:
    """Raise CheckFailed where a worker was allowed to begin a step too early."""
    num_pulled = dict.fromkeys(range(1, training.num_workers + 1), 0)
    num_pushed = num_pulled.copy()
    for name, worker in pulls_and_pushes(run.timeline):
        if name == "push":
            num_pushed[worker] += 1
            continue
        ahead = num_pulled[worker] - min(num_pushed.values())
        num_pulled[worker] += 1
        if ahead > training.bound:
            raise CheckFailed(
                f"no worker to begin a step more than {training.bound} ahead of the slowest",
                f"worker {worker} began step {num_pulled[worker]}, {ahead} ahead, when the steps"
                f" done were {list(num_pushed.values())}",
                "Before each answer, call may_start; a worker that may not go on waits for the push"
                " of a slower worker.",
                partial(draw_work, run.timeline),
            )


def expect_unheld(training: Training, run: Run, why: str) -> None:
    """Raise CheckFailed where a worker was done later than the bound requires."""
    for worker, wanted_s in enumerate(training.ends_s(), start=1):
        end_s = max((one.end_s for one in messages_of(run.timeline, worker, "send")), default=0.0)
        if end_s > TOLERANCE * wanted_s:
            raise CheckFailed(
                f"worker {worker} of {training.num_workers} to be done after {wanted_s * 1e3:.0f}"
                f" ms: {why}",
                f"{end_s * 1e3:.0f} ms",
                "Receive the next push from any worker (dist.recv without src), apply it, then"
                " immediately answer every worker that may start. A push of one worker may allow"
                " others to go on.",
                partial(draw_work, run.timeline),
            )


# work


@points(1.5, cell="check_run_worker")
def check_work_pulls_computes_and_pushes(student, rng):
    """Each step computes the gradient once, from the parameters that the server has just sent, and
    sends it back.
    """
    for shape, dtype in (((5,), torch.float64), ((2, 3), torch.float32)):
        num_steps, slope = whole(rng, 3, 5), between(rng, 0.5, 2)
        sent = [drawn(rng, *shape, dtype=dtype) for _ in range(num_steps)]
        empty = torch.zeros(shape, dtype=dtype)
        script = [call for one in sent for call in (("send", 1, one, 0.0), ("recv", 1, empty, 0.0))]
        each = [(script, empty), ([], torch.full(shape, 7.0, dtype=dtype))]
        each = [(*of_rank, num_steps, slope) for of_rank in each]
        run = student.emulated(
            work_on_rank, world_size=2, each=each, allow=MESSAGES, student_ranks=WORKER
        )
        expect_messages(run.timeline, 1, num_steps, sent[0].nbytes)
        pulled, pushed = entry(run.values, 1, "pulled"), run.values[0]
        if not isinstance(pulled, list) or len(pulled) != num_steps:
            hint, num = "One gradient a step.", len(pulled) if isinstance(pulled, list) else 0
            raise CheckFailed(
                f"{num_steps} calls of gradient_of in {num_steps} steps", f"{num}", hint
            )
        for step, one in enumerate(sent):
            what = f"the parameters at which gradient {step + 1} is computed"
            expect_close(pulled[step], one, what, "Receive first, then compute, in every step.")
            expect_close(
                entry(pushed, step),
                slope * one + 1,
                f"push {step + 1}",
                "Send what gradient_of returned.",
            )


@points(0.5, cell="check_run_worker")
def check_work_receives_in_place(student, rng):
    """The caller's tensor holds the last parameters received."""
    sent = drawn(rng, 4)
    script = [("send", 1, sent, 0.0), ("recv", 1, torch.zeros(4, dtype=torch.float64), 0.0)]
    each = [(script, sent, 1, 1.0), ([], torch.zeros(4, dtype=torch.float64), 1, 1.0)]
    run = student.emulated(
        work_on_rank, world_size=2, each=each, allow=MESSAGES, student_ranks=WORKER
    )
    hint = "Receive into the tensor that you were given."
    expect_close(entry(run.values[1], "parameters"), sent, "parameters after one step", hint)


# may_start


def ask_on_rank(student: Any, asked: list[Any]) -> list[Any]:
    answers = [
        student.may_start(dict(steps_done), worker, bound) for steps_done, worker, bound in asked
    ]
    return [bool(one) if one is not None else None for one in answers]


@points(1, cell="check_may_start")
def check_may_start_keeps_the_bound(student, rng):
    """A worker may begin while it is at most the bound ahead of the slowest; the slowest may always
    begin.
    """
    asked, wanted = [], []
    for bound, ahead in product(range(4), range(6)):
        least, num_workers = whole(rng, 0, 9), whole(rng, 2, 5)
        steps_done = {worker: least + whole(rng, 0, 7) for worker in range(1, num_workers + 1)}
        worker, slowest = torch.randperm(num_workers, generator=rng).add(1)[:2].tolist()
        steps_done |= {slowest: least, worker: least + ahead}
        asked.append((list(steps_done.items()), worker, bound))
        wanted.append(ahead <= bound)
    (given,) = student.run(ask_on_rank, asked, world_size=1)
    given = entries(given, len(asked))
    for (steps_done, worker, bound), right, answer in zip(asked, wanted, given, strict=True):
        if answer is not right:
            counts = dict(steps_done)
            ahead = counts[worker] - min(counts.values())
            raise CheckFailed(
                f"{right} for worker {worker} with steps done {counts} and a bound of {bound}",
                shown(answer),
                f"It is {ahead} ahead of the slowest; {bound} is the most that is allowed.",
            )


# serve


@points(1.5, cell="check_run_server")
def check_serve_applies_every_push_once(student, rng):
    """Every push is applied once, in the order of arrival; pulls and the final parameters contain
    all pushes applied so far.
    """
    training = drawn_training(rng, whole(rng, 3, 4), 6, 40)
    expect_replay(training, training.emulated(student))


@points(1.5, cell="check_run_server")
def check_serve_never_exceeds_the_bound(student, rng):
    """No worker gets the parameters for a step that is more than the bound ahead of the slowest
    worker's.
    """
    for bound in (1, whole(rng, 2, 3)):
        training = drawn_training(rng, 3, 8, bound)
        expect_bound(training, training.emulated(student))


@points(1, cell="check_run_server")
def check_serve_with_bound_0_is_synchronous(student, rng):
    """With a bound of 0 all workers compute every step from the same parameters: those after all
    pushes before it.
    """
    training = drawn_training(rng, whole(rng, 3, 4), 4, 0, keep=1.0)
    run = training.emulated(student)
    now = training.parameters.clone()
    workers = range(1, training.num_workers + 1)
    for step in range(training.num_steps):
        for worker in workers:
            pulled = entry(run.values, worker, step)
            hint = "With a bound of 0, answer no worker until all have pushed, then answer all."
            picture = partial(draw_work, run.timeline)
            expect_close(pulled, now, f"pull {step + 1} of worker {worker}", hint, picture=picture)
        gradients = [training.gradient(worker, now) for worker in workers]
        now -= training.rate * torch.stack(gradients).sum(dim=0)
    hint = "The sum of all gradients of a step, taken at the same parameters."
    expect_close(entry(run.values[0], "parameters"), now, "the final parameters", hint)


@points(1.5, cell="check_run_server")
def check_serve_lets_fast_workers_go_on(student, rng):
    """With a bound that is large enough, a worker that is five times slower does not hold up the
    others.
    """
    training = drawn_training(rng, whole(rng, 3, 4), 8, 40)
    why = "its own work, with a bound that never holds it"
    expect_unheld(training, training.emulated(student), why)


@points(1, cell="check_run_server", needs=["check_serve_lets_fast_workers_go_on"])
def check_serve_holds_no_longer_than_the_bound_asks(student, rng):
    """With a small bound, a held worker goes on as soon as a push of the slowest allows it."""
    for bound in (0, whole(rng, 1, 3)):
        training = drawn_training(rng, 3, 8, bound)
        why = f"its own work, and what a bound of {bound} makes it wait"
        expect_unheld(training, training.emulated(student), why)


@points(1, cell="check_run_server")
def check_serve_sends_the_parameters_once_a_step(student, rng):
    """Each worker has one pull and one push for each step, each with one tensor, and there are no
    other messages.
    """
    training = drawn_training(rng, 3, whole(rng, 3, 5), 40, shape=(whole(rng, 20, 40),))
    run = training.emulated(student)
    expect_messages(
        run.timeline, training.num_workers, training.num_steps, training.parameters.nbytes
    )


@points(0.5, cell="check_run_server", needs=["check_serve_applies_every_push_once"])
def check_serve_holds_no_history(student, rng):
    """However many steps there are, the server holds its parameters, two tensors of their size, and
    one for each worker.
    """
    num_workers, num_steps = whole(rng, 2, 3), 8
    training = drawn_training(
        rng, num_workers, num_steps, whole(rng, 2, 4), shape=(whole(rng, 40, 60),)
    )
    most_bytes = integer(entry(training.emulated(student).values, 0, "most_bytes"))
    size_bytes = training.parameters.nbytes
    limit_bytes = (num_workers + 3) * size_bytes
    if most_bytes is None or most_bytes > limit_bytes:
        actual = (
            "none"
            if most_bytes is None
            else f"{most_bytes:,} bytes, {most_bytes / size_bytes:.0f} times"
        )
        raise CheckFailed(
            f"at most {limit_bytes:,} bytes of tensors at once on the server, {num_workers + 3}"
            f" times the parameters' {size_bytes:,}, with {num_workers} workers",
            f"{actual}, after {num_workers * num_steps} pushes",
            "A gradient that is applied is no longer needed, and only the current version of the"
            " parameters is: receive each push into the same tensor, and keep no list of pushes or"
            " of old versions.",
            partial(draw_held, limit_bytes, most_bytes),
        )


def draw_held(limit_bytes: int, most_bytes: int | None) -> Drawn:
    """The bytes that the server may hold at once and those that it held."""
    from worldsize.draw.contrast import bars

    actual = {} if most_bytes is None else {"server": most_bytes / 1e3}
    return bars({"server": limit_bytes / 1e3}, actual, "Most bytes of tensors at once", "kB")


@points(0.5, cell="check_run_server", needs=["check_serve_applies_every_push_once"])
def check_serve_takes_any_number_of_workers_and_any_tensor(student, rng):
    """One worker or five, one step, and parameters of several dimensions and of another type."""
    for num_workers, num_steps, shape, dtype in (
        (1, 3, (2, 3), torch.float32),
        (5, 1, (2, 1, 2), torch.float64),
    ):
        training = drawn_training(rng, num_workers, num_steps, 1, shape=shape, dtype=dtype)
        expect_replay(training, training.emulated(student), rtol=1e-4, atol=1e-5)


@points(0.5, cell="check_run_server", needs=["check_serve_applies_every_push_once"])
def check_serve_learns_over_real_sockets(student, rng):
    """Over real sockets, with Gloo and a slow worker, it ends, and reduces a least-squares loss to
    under 1%.
    """
    num, num_workers, num_steps = 6, 3, 25
    solution = drawn(rng, num) + 2
    # 1 ms a step and 20 ms: also where a busy machine stretches every step, somebody has to be held
    training = drawn_training(
        rng, num_workers, num_steps, 3, slow_factor=20.0, keep=1.0, shape=(num,)
    )
    rows = [drawn(rng, 40, num) for _ in range(num_workers)]
    matrices = [one.T @ one / 40 for one in rows]
    targets = [matrix @ solution for matrix in matrices]
    step_s = [[0.1 * time_s for time_s in of_worker] for of_worker in training.step_s]
    training = Training(
        torch.zeros_like(solution), num_steps, 3, 1.0, 0.1, step_s, matrices, targets
    )
    values = student.run(
        serve_on_rank, world_size=num_workers + 1, each=training.each(), student_ranks=SERVER
    )
    given = entry(values, 0, "parameters")
    end = tensor_like(given, solution)
    if end is None:
        raise CheckFailed(
            "the final parameters", shown(given), "`run_server` changes its argument in place."
        )
    losses = [
        sum(float((x @ (at.double() - solution)).square().mean()) for x in rows)
        for at in (0 * solution, end)
    ]
    if not losses[1] < 0.01 * losses[0]:
        hint = (
            "Is every gradient applied once, even on real sockets? Wait until a send is complete"
            " before you update."
        )
        raise CheckFailed(
            "a loss of under 1% of the first", f"{100 * losses[1] / losses[0]:.1f}%", hint
        )


# lars_step and lamb_step


LARS_SLIPS = {
    "is_global": "Each tensor has norms of its own; these are the norms of all tensors together.",
    "is_inverted": "The norm of the weights is the numerator.",
    "without_decay_below": "The weight decay is also part of the denominator.",
    "without_decay": "The weight decay is missing in what is added to the velocity.",
    "rate_outside": (
        "The learning rate and the ratio belong inside the velocity: old steps keep theirs."
    ),
    "without_coefficient": "The trust coefficient is missing.",
}
SHOWN_LATER = ("rate_outside", "keeps_corrected", "without_correction", "counts_from_0")
LAMB_SLIPS = {
    "is_global": "Each tensor has norms of its own; these are the norms of all tensors together.",
    "is_inverted": "The norm of the weights is the numerator.",
    "without_correction": (
        "The moments are not corrected for their start at 0: divide by 1 - beta ** step."
    ),
    "keeps_corrected": "Keep m and v for the next step, not the corrected ones.",
    "eps_in_root": "`eps` is added to the root, not under it.",
    "decay_in_gradient": "The weight decay is added to r, not to the gradient.",
    "without_decay": "The weight decay is missing in the direction.",
    "norm_without_decay": "The norm below is that of r + weight_decay * w, with the weight decay.",
    "counts_from_0": "`step` counts from 1.",
}


def norms(of: Tensors, is_global: bool) -> list[float]:
    every = [one.norm().item() for one in of]
    return [sum(one**2 for one in every) ** 0.5] * len(of) if is_global else every


def ratio_of(above: float, below: float, is_inverted: bool) -> float:
    return below / above if is_inverted else above / below


def lars_reference(
    layers: Tensors, steps: list[Any], velocities: Tensors, settings: Any, slip: str = ""
) -> Any:
    """The result of LARS in float64, or of LARS with a known mistake."""
    weights, states = (
        [one.double().clone() for one in layers],
        [one.double().clone() for one in velocities],
    )
    momentum, decay, coefficient = (
        settings[name] for name in ("momentum", "weight_decay", "trust_coefficient")
    )
    ratios = []
    for gradients, rate in steps:
        of_weights, of_gradients = (norms(one, slip == "is_global") for one in (weights, gradients))
        ratios.append([])
        for w, g, v, norm, gradient_norm in zip(
            weights, gradients, states, of_weights, of_gradients, strict=True
        ):
            ratio = 1.0
            if norm and gradient_norm:
                below = gradient_norm + (0 if slip == "without_decay_below" else decay * norm)
                ratio = ratio_of(norm, below, slip == "is_inverted")
                ratio *= 1 if slip == "without_coefficient" else coefficient
            change = g.double() + (0 if slip == "without_decay" else decay) * w
            scale = rate * ratio
            v.mul_(momentum).add_(change * (1 if slip == "rate_outside" else scale))
            w.sub_(v * (scale if slip == "rate_outside" else 1))
            ratios[-1].append(ratio)
    return {"ratios": ratios, "layers": weights, "states": [states]}


def lamb_reference(
    layers: Tensors, steps: list[Any], moments: list[Tensors], settings: Any, slip: str = ""
) -> Any:
    """The result of LAMB in float64, or of LAMB with a known mistake."""
    weights = [one.double().clone() for one in layers]
    firsts, seconds = ([one.double().clone() for one in state] for state in moments)
    (beta_1, beta_2), eps, decay = (settings[name] for name in ("betas", "eps", "weight_decay"))
    ratios = []
    for number, (gradients, rate) in enumerate(steps, start=1):
        directions, bare = [], []
        for w, given, m, v in zip(weights, gradients, firsts, seconds, strict=True):
            g = given.double() + (decay * w if slip == "decay_in_gradient" else 0)
            m.mul_(beta_1).add_((1 - beta_1) * g)
            v.mul_(beta_2).add_((1 - beta_2) * g * g)
            power = number + (slip == "counts_from_0")
            corrections = (
                [1.0, 1.0]
                if slip == "without_correction"
                else [1 - beta_1**power, 1 - beta_2**power]
            )
            m_hat, v_hat = m / corrections[0], v / corrections[1]
            if slip == "keeps_corrected":
                m.copy_(m_hat)
                v.copy_(v_hat)
            bare.append(
                m_hat / ((v_hat + eps).sqrt() if slip == "eps_in_root" else v_hat.sqrt() + eps)
            )
            has_decay = slip not in ("decay_in_gradient", "without_decay")
            directions.append(bare[-1] + (decay * w if has_decay else 0))
        of_weights = norms(weights, slip == "is_global")
        below = norms(bare if slip == "norm_without_decay" else directions, slip == "is_global")
        ratios.append([])
        for w, direction, norm, direction_norm in zip(
            weights, directions, of_weights, below, strict=True
        ):
            ratio = (
                ratio_of(norm, direction_norm, slip == "is_inverted")
                if norm and direction_norm
                else 1.0
            )
            w.sub_(rate * ratio * direction)
            ratios[-1].append(ratio)
    return {"ratios": ratios, "layers": weights, "states": [firsts, seconds]}


def differs(given: Any, wanted: Any, has_states: bool = True) -> str:
    """A sentence on where a result is wrong; empty if it is right."""
    ratios = entry(given, "ratios")
    try:
        ratios = torch.tensor(ratios if isinstance(ratios, list) else None, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return "ratios that are not a list with one float per tensor"
    right = torch.tensor(wanted["ratios"], dtype=torch.float64)
    if ratios.shape != right.shape:
        return f"{ratios.shape[-1] if ratios.ndim else 0} ratios for {right.shape[-1]} tensors"
    off = ~torch.isclose(ratios, right, rtol=1e-6, atol=1e-12)
    if off.any():
        step, place = off.nonzero()[0].tolist()
        return (
            f"a ratio of {ratios[step, place]:.6g} instead of {right[step, place]:.6g} in step"
            f" {step + 1}"
        )
    names = (
        ["parameters"],
        ["velocities"] if len(wanted["states"]) == 1 else ["first moments", "second moments"],
    )
    parts = [(names[0][0], entry(given, "layers"), wanted["layers"])]
    if has_states:
        states = entries(entry(given, "states"), len(wanted["states"]))
        parts += zip(names[1], states, wanted["states"], strict=True)
    for name, found, expected in parts:
        for place, other in enumerate(expected):
            one = entry(found, place)
            if not isinstance(one, torch.Tensor) or one.shape != other.shape:
                return f"{name}[{place}] of another shape"
            # of the norm: a ratio rounded to float32 is right, and elements at which subtraction
            # cancels show it
            if not (one.double() - other).norm() <= 1e-10 + 1e-5 * other.norm():
                worst = int((one.double() - other).abs().nan_to_num(nan=torch.inf).argmax())
                got, right = one.flatten()[worst], other.flatten()[worst]
                return f"{got:.6g} instead of {right:.6g} in {name}[{place}]"
    return ""


def expect_steps(
    given: Any,
    reference: Callable[..., Any],
    slips: dict[str, str],
    what: str,
    has_states: bool = True,
) -> None:
    """Raise CheckFailed, with a known mistake's hint, unless the steps follow the formulas."""
    if not (difference := differs(given, reference(), has_states)):
        return
    hint = "Compute the example of the text by hand beside your function."
    explained = (
        text for slip, text in slips.items() if not differs(given, reference(slip=slip), has_states)
    )
    raise CheckFailed(f"{what} by the formulas", difference, next(explained, hint))


LARS = {"momentum": 0.9, "weight_decay": 0.05, "trust_coefficient": 0.02}
LAMB = {"betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1}
SHAPES = [(4, 3), (5,), (2, 1, 3)]


def drawn_layers(rng: torch.Generator) -> Tensors:
    """Layers of very different scales."""
    return [
        scale * drawn(rng, *shape) for scale, shape in zip((1.0, 0.05, 7.0), SHAPES, strict=True)
    ]


def drawn_steps(rng: torch.Generator, num_steps: int) -> list[Any]:
    """Gradients and a learning rate that changes, for every step."""
    return [
        ([drawn(rng, *shape) for shape in SHAPES], between(rng, 0.05, 0.5))
        for _ in range(num_steps)
    ]


def zeros_like(layers: Tensors) -> Tensors:
    return [torch.zeros_like(one) for one in layers]


def lars_run(
    student: Any, layers: Tensors, steps: list[Any], settings: Any
) -> tuple[Any, Callable[..., Any]]:
    """The result of the student's LARS, and a function for the right one."""
    (value,) = student.run(lars_on_rank, steps, layers, zeros_like(layers), settings, world_size=1)
    return value, partial(lars_reference, layers, steps, zeros_like(layers), settings)


def lamb_run(
    student: Any, layers: Tensors, steps: list[Any], settings: Any
) -> tuple[Any, Callable[..., Any]]:
    """The result of the student's LAMB, and a function for the right one."""
    moments = [zeros_like(layers), zeros_like(layers)]
    (value,) = student.run(lamb_on_rank, steps, layers, moments, settings, world_size=1)
    return value, partial(lamb_reference, layers, steps, moments, settings)


def expect_in_place(
    given: Any,
    reference: Callable[..., Any],
    slips: dict[str, str],
    steps: list[Any],
    before: list[Tensors],
) -> None:
    """Raise CheckFailed unless parameters changed in place, and gradients did not change."""
    if entry(given, "is_recorded") is not False:
        raise CheckFailed(
            "nothing recorded by autograd",
            "a parameter with a history",
            "Work under torch.no_grad().",
        )
    hint = "Change the tensors in place; those in the lists are the caller's."
    for place, old in enumerate(before[0]):
        found = tensor_like(entry(given, "layers", place), old)
        if found is not None and torch.equal(found, old):
            raise CheckFailed(f"parameters[{place}] to change", "the same numbers as before", hint)
    for step, (wanted, _) in enumerate(steps):
        for place, other in enumerate(wanted):
            expect_close(
                entry(given, "gradients", step, place),
                other,
                f"gradients[{place}]",
                "The gradients are the caller's: leave them as they are.",
            )
    rest = {name: entry(given, name) for name in ("layers", "states")}
    if differs({**rest, "ratios": reference()["ratios"]}, reference()):
        for slip in slips:
            if not differs(
                {**rest, "ratios": reference(slip=slip)["ratios"]}, reference(slip=slip)
            ):
                return  # in place as it should be; the formulas are for other checks
        raise CheckFailed("parameters and states one step further, in place", "other numbers", hint)


def expect_later_steps(
    given: Any, reference: Callable[..., Any], slips: dict[str, str], what: str
) -> None:
    """Like `expect_steps`, but a mistake that the first step shows does not count twice."""
    known = [slip for slip in slips if slip not in SHOWN_LATER]
    if differs(given, reference()) and any(
        not differs(given, reference(slip=slip)) for slip in known
    ):
        return
    expect_steps(given, reference, slips, what)


def drawn_with_zero_norms(rng: torch.Generator) -> tuple[Any, Any]:
    """Layers of which the first is zero, and one step in which the gradient of the second is."""
    layers, steps = drawn_layers(rng), drawn_steps(rng, 1)
    layers[0].zero_()
    steps[0][0][1].zero_()
    return layers, steps


@points(1.5, cell="check_lars_step")
def check_lars_ratios_and_first_step(student, rng):
    """Each tensor has its own ratio, with weight decay, and the parameters move by it in the first
    step.
    """
    layers, steps = drawn_layers(rng), drawn_steps(rng, 1)
    given, reference = lars_run(student, layers, steps, LARS)
    expect_steps(
        given, reference, LARS_SLIPS, "ratios and parameters after one step", has_states=False
    )


@points(1, cell="check_lars_step")
def check_lars_velocities_over_several_steps(student, rng):
    """Over several steps, the velocity keeps old steps with the learning rates and ratios that they
    had.
    """
    layers, steps = drawn_layers(rng), drawn_steps(rng, 4)
    given, reference = lars_run(student, layers, steps, LARS)
    expect_later_steps(given, reference, LARS_SLIPS, "four steps with changing learning rates")


@points(1, cell="check_lars_step")
def check_lars_ratio_of_zero_norms_is_1(student, rng):
    """Where the norm of the weights or of the gradient is 0, the ratio is 1, and all numbers stay
    finite.
    """
    layers, steps = drawn_with_zero_norms(rng)
    given, reference = lars_run(student, layers, steps, {**LARS, "weight_decay": 0.0})
    expect_zero_norms(given, reference, LARS_SLIPS)


@points(0.5, cell="check_lars_step")
def check_lars_changes_tensors_in_place(student, rng):
    """Parameters that require gradients are changed in place, unseen by autograd; gradients do not
    change.
    """
    layers, steps = drawn_layers(rng), drawn_steps(rng, 1)
    leaves = [one.clone().requires_grad_() for one in layers]
    given, reference = lars_run(student, leaves, steps, LARS)
    expect_in_place(
        given, partial(lars_reference, layers, *reference.args[1:]), LARS_SLIPS, steps, [layers]
    )


def expect_zero_norms(given: Any, reference: Callable[..., Any], slips: dict[str, str]) -> None:
    """Raise CheckFailed unless the ratios of the first two tensors, with norm 0, are 1."""
    first = entries(entry(given, "ratios", 0), 2)
    if first != [1.0, 1.0]:
        hint = (
            "Check for a norm of 0 before you divide: a layer that starts at zero, or that the loss"
            " does not reach, has one."
        )
        raise CheckFailed("ratios of 1 where a norm is 0", shown(first), hint)
    layers = entries(entry(given, "layers"), len(SHAPES))
    for found in layers:
        if not isinstance(found, torch.Tensor) or not found.isfinite().all():
            raise CheckFailed(
                "finite parameters", "nan or infinity", "0 / 0 is nan, and it spreads."
            )
    hint = "With a ratio of 1 the step is that of the formula without the ratio."
    if not any(not differs(given, reference(slip=slip)) for slip in slips):
        expect_close(layers[0], reference()["layers"][0], "a tensor of zeros after one step", hint)


@points(1.5, cell="check_lamb_step")
def check_lamb_ratios_and_first_step(student, rng):
    """Each tensor has its own ratio, of the norms of w and r + weight_decay * w, and the parameters
    move by it.
    """
    layers, steps = drawn_layers(rng), drawn_steps(rng, 1)
    given, reference = lamb_run(student, layers, steps, LAMB)
    expect_steps(
        given, reference, LAMB_SLIPS, "ratios and parameters after one step", has_states=False
    )


@points(1.5, cell="check_lamb_step")
def check_lamb_moments_over_several_steps(student, rng):
    """Over several steps, moments are kept uncorrected, and corrected by the number of the step,
    counted from 1.
    """
    layers, steps = drawn_layers(rng), drawn_steps(rng, 4)
    given, reference = lamb_run(student, layers, steps, LAMB)
    expect_later_steps(given, reference, LAMB_SLIPS, "four steps")


@points(0.5, cell="check_lamb_step")
def check_lamb_ratio_of_zero_norms_is_1(student, rng):
    """Where the norm of the weights or of r + weight_decay * w is 0, the ratio is 1, and all
    numbers stay finite.
    """
    layers, steps = drawn_with_zero_norms(rng)
    given, reference = lamb_run(student, layers, steps, {**LAMB, "weight_decay": 0.0})
    expect_zero_norms(given, reference, LAMB_SLIPS)


@points(0.5, cell="check_lamb_step")
def check_lamb_changes_tensors_in_place(student, rng):
    """Parameters that require gradients are changed in place, unseen by autograd; gradients do not
    change.
    """
    layers, steps = drawn_layers(rng), drawn_steps(rng, 1)
    leaves = [one.clone().requires_grad_() for one in layers]
    given, reference = lamb_run(student, leaves, steps, LAMB)
    expect_in_place(
        given, partial(lamb_reference, layers, *reference.args[1:]), LAMB_SLIPS, steps, [layers]
    )
