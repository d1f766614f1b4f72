"""Hidden checks of lab 4: a server among scripted workers, and optimizer steps by formula."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count, pairwise, product
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from autograder.checks import (
    Outcome,
    PartlyHeld,
    StudentFailed,
    between,
    draw_messages,
    draw_timeline,
    entries,
    entry,
    expect_body,
    expect_grown,
    expect_work,
    hinted,
    integer,
    points,
    shown,
    shuffled,
    tensor_like,
    whole,
)
from worldsize import emulate
from worldsize.check import CheckFailed, expect_close
from worldsize.emulate.launcher.exchanges import Exchange
from worldsize.launch import Run

MESSAGES = {"send", "recv"}
SERVER, WORKER = (0,), (1,)  # the ranks of student code; the others play a script, without it
TOLERANCE = 1.03  # of a time: messages take microseconds beside steps of milliseconds
EXACT = 1e-12  # relative, of numbers that were only passed on
WHOLE, COUNTED = -1, -2  # in place of a last push: the run is never ended, or after all pushes
UNBOUNDED = 40  # a bound that never holds anybody
KEEP, RATE = 0.95, 0.25  # an update is `weights = KEEP * weights - RATE * gradient`
MARK, SEEN = 4000.0, 20.0  # what a push takes away in a place of its own, and what shows there
MIB, SPARE_MIB = 2**20, 30  # the latter for what cells import, and for messages on their way
Tensors = list[torch.Tensor]

OWED = (
    "Send every worker its first copy before you receive, and another one after each of its pushes"
    " but the last. Return after the last push of all."
)
UNANSWERED = (
    f"{OWED} After every push ask for all workers that wait whether they may start: the push of one"
    " may allow others to go on."
)


# What runs on the ranks. Workers and servers play what the judge wrote down for them.


class Served(Exception):
    """The slowest worker's last push was applied: what comes later is no part of a check."""


def work_on_rank(student: Any, parameters: torch.Tensor, sent: Tensors, slope: float) -> Any:
    if student is None:  # this rank is the server
        for tensor in sent:
            dist.send(tensor, 1)
            dist.recv(torch.empty_like(tensor), 1)
        return None
    num_calls = [0]

    def gradient_of(tensor: torch.Tensor) -> torch.Tensor:
        num_calls[0] += 1
        gradient = slope * tensor + 1
        tensor.add_(slope)  # shows at the end whether this is the caller's own tensor
        return gradient

    student.run_worker(parameters, gradient_of, len(sent))
    return {"parameters": parameters, "num_calls": num_calls[0]}


def serve_unbounded_on_rank(student: Any, *args: Any) -> Any:
    if student is None:
        return push_on_rank(*args)
    return served(lambda bound, *rest: student.run_unbounded_server(*rest), *args)


def serve_on_rank(student: Any, *args: Any) -> Any:
    if student is None:
        return push_on_rank(*args)
    student.may_start = lambda done, one, bound: done[one] <= min(done.values()) + bound
    return served(lambda bound, *rest: student.run_server(*rest, bound), *args)


def served(serve: Any, parameters: torch.Tensor, num_steps: int, bound: int, last: int) -> Any:
    """The parameters at the end, or when all pushes, or that with the mark `last`, are applied."""
    left = [(dist.get_world_size() - 1) * num_steps]

    def update(weights: torch.Tensor, gradient: torch.Tensor) -> None:
        weights.mul_(KEEP).sub_(gradient, alpha=RATE)  # makes no tensor
        left[0] -= 1
        is_last = last >= 0 and bool(gradient.flatten()[last].abs() > SEEN)
        if last != WHOLE and (is_last or not left[0]):
            raise Served

    with suppress(Served):
        serve(bound, parameters, update, num_steps)
    over, workers = torch.full_like(parameters, math.nan), range(1, dist.get_world_size())
    for worker in workers:  # takes a push that is on its way; then the worker is sent home
        dist.irecv(torch.empty_like(parameters), worker)
    for sent in [dist.isend(over, worker) for worker in workers]:
        sent.wait()
    return parameters


def push_on_rank(
    pulled: torch.Tensor, num_steps: int, step_s: list[float], pushes: torch.Tensor
) -> list[torch.Tensor]:
    """Push in each step what is given, or else the last pull; receive until sent home.

    What comes back is where each pull shows a mark, if pushes are given.
    """
    marks: list[torch.Tensor] = []
    for step in count():
        dist.recv(pulled, 0)
        if pulled.flatten()[0].isnan():
            break
        if len(pushes):
            marks.append(pulled.flatten() > SEEN)
        if step < num_steps:
            emulate.spend(step_s[step])
            dist.send(pushes[step] if len(pushes) else pulled, 0)
    return marks


def ask_on_rank(student: Any, asked: list[Any]) -> list[Any]:
    answers = []
    for done, worker, bound in asked:
        with suppress(ValueError if len(done) == 1 else ()):  # the smallest of no numbers
            answers.append(bool(student.may_start(dict(done), worker, bound)))
    return answers


def lars_on_rank(student: Any, cases: list[Any]) -> list[Any]:
    return [optimized(student.lars_step, False, *case) for case in cases]


def lamb_on_rank(student: Any, cases: list[Any]) -> list[Any]:
    return [optimized(student.lamb_step, True, *case) for case in cases]


def optimized(step: Any, counts: bool, layers: Tensors, states: Any, steps: Any, given: Any) -> Any:
    """What the lists hold afterwards, and what the tensors do that the caller had put there."""
    layers = [one.clone().requires_grad_() for one in layers]
    own, ratios = [*layers], []
    for gradients, rate, number in steps:
        numbers = [number] if counts else []
        found = step(layers, gradients, *states, *numbers, rate, **given)
        ratios.append([float(one) for one in found])
    return {
        "ratios": torch.tensor(ratios, dtype=torch.float64),
        "layers": [one.detach() for one in layers],
        "states": [[one.detach() for one in state] for state in states],
        "own": [one.detach() for one in own],
        "gradients": steps[0][0],
        "is_recorded": any(not one.is_leaf or one.grad is not None for one in own),
    }


# What the judge draws, computes and compares.


def drawn(rng: torch.Generator, *shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, generator=rng, dtype=torch.float64).to(dtype)


class Push(NamedTuple):
    """Whose push it is, workers counted from 1, and of which step, counted from 0."""

    worker: int
    step: int


class Pull(NamedTuple):
    """A pull, the pushes that had reached the server when it left, and those whose marks it has."""

    worker: int
    step: int
    came: list[Push]
    held: set[Push]
    exchange: Exchange


@dataclass(frozen=True)
class Training:
    """A server and scripted workers, one of them slower; what each pushes does not depend on pulls.

    Each push has a place of its own in the parameters, where it takes MARK away.
    """

    parameters: torch.Tensor
    bound: int
    step_s: list[list[float]]  # of each worker, of each step
    pushes: Tensors  # of each worker, one below the other

    @property
    def num_steps(self) -> int:
        return len(self.step_s[0])

    @property
    def workers(self) -> range:
        return range(1, len(self.step_s) + 1)

    def run(self, run: Any, on_rank: Any, last: int, **options: Any) -> Any:
        """A run that ends as `served` says."""
        empty = torch.empty_like(self.parameters)
        each: list[Any] = [(self.parameters, self.num_steps, self.bound, last)]
        for script in zip(self.step_s, self.pushes, strict=True):
            each.append((empty, self.num_steps, *script))
        options |= {"each": each, "allow": MESSAGES, "student_ranks": SERVER}
        with hinted(UNANSWERED if on_rank is serve_on_rank else OWED):
            return run(on_rank, world_size=len(each), **options)

    def recorded(self, student: Any, on_rank: Any, is_whole: bool = False) -> Record:
        """The record of a run until the slow worker's last push is applied, or of the whole run."""
        slow = max(self.workers, key=lambda worker: sum(self.step_s[worker - 1]))
        last = WHOLE if is_whole else slow * self.num_steps - 1
        return Record(self, self.run(student.emulated, on_rank, last, keeps_exchanges=True))

    def ends_s(self) -> list[list[float]]:
        """When each worker is done with each step, if it waits for the bound alone."""
        done_s: list[list[float]] = [[] for _ in self.step_s]
        for step in range(self.num_steps):
            slowest = step - self.bound  # steps that everybody must have done
            held_s = max(times[slowest - 1] for times in done_s) if slowest > 0 else 0.0
            for of_worker, times in zip(self.step_s, done_s, strict=True):
                times.append(max(times[-1] if times else 0.0, held_s) + of_worker[step])
        return done_s

    def marked(self, given: torch.Tensor) -> set[Push]:
        """The pushes whose marks these parameters have."""
        places = product(self.workers, range(self.num_steps))
        marks = zip(places, (given.flatten() > SEEN).tolist(), strict=False)
        return {Push(*place) for place, is_marked in marks if is_marked}


def drawn_training(
    rng: torch.Generator, num_workers: int, num_steps: int, bound: int, dtype: Any = torch.float64
) -> Training:
    """A training with one worker five times slower, whose pushes come at clearly different times.

    So which of two pushes came first does not depend on the microseconds that a message takes.
    """
    shape, places = (num_workers, 1, num_steps), num_workers * num_steps
    slow, is_clear = whole(rng, 0, num_workers - 1), False
    while not is_clear:
        step_s = [
            [between(rng, 0.01, 0.0125) * (5 if worker == slow else 1) for _ in range(num_steps)]
            for worker in range(num_workers)
        ]
        training = Training(drawn(rng, *shape, dtype=dtype), bound, step_s, [])
        times_s = sorted(time_s for of_worker in training.ends_s() for time_s in of_worker)
        is_clear = all(after - before > 2e-4 for before, after in pairwise(times_s))
    marks = torch.eye(places).mul(-MARK).view(num_workers, num_steps, *shape)
    pushes = [drawn(rng, *one.shape, dtype=dtype) + one.to(dtype) for one in marks]
    return Training(training.parameters, bound, step_s, pushes)


def is_nan(one: Exchange) -> bool:
    return bool(one.tensor().isnan().all())


class Record:
    """The messages of a run, without those by which it was ended, and what must hold of them."""

    def __init__(self, training: Training, run: Run) -> None:
        self.training, self.run = training, run
        ends = [one.numbers[0] for one in run.exchanges if one.ranks[0] == 0 and is_nan(one)]
        self.pushes: dict[Push, Exchange] = {}
        sent, numbers = [], Counter()
        for one in sorted(run.exchanges, key=lambda one: one.posted_s[one.ranks[0]]):
            place = Push(max(one.ranks), numbers[one.ranks])
            if 0 in one.ranks and one.numbers[0] < min(ends, default=math.inf):
                numbers[one.ranks] += 1
                if one.ranks[0] == 0:
                    sent.append((place, one))
                else:
                    self.pushes[place] = one
        self.pulls = [
            Pull(*place, self.came(one.posted_s[0]), training.marked(one.tensor()), one)
            for place, one in sent
        ]

    def came(self, by_s: float = math.inf) -> list[Push]:
        """The pushes that had reached the server by then, in that order."""
        times_s = {push: one.done_s[0] for push, one in self.pushes.items()}
        return sorted((one for one in times_s if times_s[one] <= by_s), key=times_s.__getitem__)

    def end_s(self, worker: int) -> float:
        """When a worker was done with its last step; infinity if it never was."""
        push = self.pushes.get(Push(worker, self.training.num_steps - 1))
        return push.posted_s[worker] if push else math.inf

    def demand(self, holds: bool, expected: str, actual: str, hint: str) -> None:
        """Raise CheckFailed, with a picture of who worked when, unless this holds."""
        if not holds:
            title = "When your ranks worked and waited"
            picture = partial(draw_timeline, self.run.timeline, title, ["compute", "wait"])
            raise CheckFailed(expected, actual, hint, picture)

    def expect_messages(self) -> None:
        """Raise CheckFailed unless each worker got and sent one message a step."""
        if num := sum(one.startswith("rank 0: isend") for one in self.run.unawaited):
            hint = "Use send, or keep the handle of isend and wait: real sockets hang otherwise."
            raise CheckFailed("every isend of the server to be waited for", f"{num} were not", hint)
        num_steps, picture = self.training.num_steps, partial(draw_messages, self.run.timeline)
        for worker in self.training.workers:
            hint = "Each step has one pull and one push; nobody is answered after its last push."
            for way, found in (("to", self.pulls), ("from", self.pushes)):
                if (num := sum(one.worker == worker for one in found)) != num_steps:
                    expected = f"{num_steps} messages {way} worker {worker}"
                    raise CheckFailed(expected, f"{num}", hint, picture)

    def expect_replay(self, rtol: float = EXACT) -> None:
        """Raise CheckFailed unless pulls and the end follow from the pushes as they came."""
        for before, after in pairwise(self.came()):
            first, then = (self.pushes[one].posted_s[one.worker] for one in (before, after))
            self.demand(
                first < then + 1e-4,
                "every push to be received as soon as it is there",
                f"a push of worker {after.worker} that waited for a later one of worker"
                f" {before.worker}",
                "Receive without `src`: `dist.recv(tensor)` takes the next message from any rank.",
            )
        hint = (
            "Each push is applied once, unchanged, in the order of arrival and before it is"
            " answered; a pull sends the parameters as they are then."
        )
        self.demand(bool(self.pulls), "pulls and pushes", "none", hint)
        states = [self.training.parameters]
        for push in self.came():
            gradient = self.training.pushes[push.worker - 1][push.step]
            states.append(states[-1].mul(KEEP).sub_(gradient, alpha=RATE))
        for pull in self.pulls:
            what = (
                f"pull {pull.step + 1} of worker {pull.worker}, with {len(pull.came)} pushes in it,"
            )
            expect_body(pull.exchange, states[len(pull.came)], what, hint, rtol=rtol)
        given = entry(self.run.values, 0)
        expect_close(given, states[-1], "the final parameters", "The last push is applied too.")

    def expect_true_clock(self) -> None:
        """Raise CheckFailed where an answer left before the server had what it depends on.

        The server's clock is its own word; its bytes, and when the workers sent theirs, are not.
        """
        done = [worker for worker in self.training.workers if self.end_s(worker) < math.inf]
        expect_work(self.run, {worker: sum(self.training.step_s[worker - 1]) for worker in done})
        for pull in self.pulls:
            needed = pull.held | ({Push(pull.worker, pull.step - 1)} if pull.step else set())
            is_early = not needed <= set(pull.came)
            self.demand(
                not is_early and 2 * len(pull.held) >= len(pull.came) - 1,
                f"pull {pull.step + 1} of worker {pull.worker} to leave after its push, and to"
                " contain the pushes that were there",
                "one that left earlier" if is_early else f"{len(pull.held)} of {len(pull.came)}",
                "Apply each push when it arrives, then answer with the parameters as they are, and"
                " leave the emulator's clock alone.",
            )

    def expect_unheld(self) -> None:
        """Raise CheckFailed where a worker was done later than the bound asks, or none waited."""
        due_s = [times_s[-1] for times_s in self.training.ends_s()]
        ends_s = [self.end_s(worker) for worker in self.training.workers]
        for worker, (end_s, one_s) in enumerate(zip(ends_s, due_s, strict=True), start=1):
            self.demand(
                end_s <= TOLERANCE * one_s,
                f"worker {worker} to be done after {one_s * 1e3:.0f} ms: its own work, and what the"
                " bound makes it wait",
                "never" if end_s == math.inf else f"{end_s * 1e3:.0f} ms",
                "Receive the next push from any worker (dist.recv without src), apply it, then"
                " immediately answer every worker that may start. A push of one worker may allow"
                " others to go on.",
            )
        works_s = [TOLERANCE * sum(of_worker) for of_worker in self.training.step_s]
        self.demand(
            any(map(float.__gt__, ends_s, works_s)) or self.training.bound == UNBOUNDED,
            f"a fast worker to wait for the slow one, with a bound of {self.training.bound}",
            "no worker that waited",
            "Before each answer, call may_start; a worker that may not go on is answered later.",
        )

    def expect_bound(self) -> None:
        """Raise CheckFailed where a worker began a step too early, or none ever ran ahead."""
        bound, most = self.training.bound, 0
        for pull in self.pulls:
            done = [sum(push.worker == one for push in pull.came) for one in self.training.workers]
            ahead = pull.step - min(done)
            most = max(most, ahead)
            self.demand(
                ahead <= bound,
                f"no worker to begin a step more than {bound} ahead of the slowest",
                f"worker {pull.worker} began step {pull.step + 1}, {ahead} ahead, when the steps"
                f" done were {done}",
                "Before each answer, call may_start; a worker that may not go on waits for the push"
                " of a slower worker.",
            )
        self.demand(
            most > 0 or not bound,
            f"fast workers to run ahead of the slow one, up to the bound of {bound}",
            "workers that all begin each step together",
            "Answer a worker as soon as may_start is True for it, and do not wait for a round.",
        )


# run_worker


def worked(student: Any, sent: Tensors, slope: float) -> Run:
    """A run of the student's worker with a server that sends these parameters."""
    each = [(torch.full_like(sent[0], 7), sent, slope)] * 2
    options = {"allow": MESSAGES, "student_ranks": WORKER, "keeps_exchanges": True}
    with hinted(
        "A step first receives from rank 0, then sends to rank 0 what gradient_of returns; the"
        " server does the reverse."
    ):
        return student.emulated(work_on_rank, world_size=2, each=each, **options)


@points(1, cell="check_run_worker")
def check_work_pulls_computes_and_pushes(student, rng):
    """Each step computes one gradient, from the parameters just received, and sends it back."""
    for shape, dtype in (((5,), torch.float64), ((2, 3), torch.bfloat16)):
        sent, slope = [drawn(rng, *shape, dtype=dtype) for _ in range(4)], between(rng, 0.5, 2)
        run = worked(student, sent, slope)
        pushes = [one for one in run.exchanges if one.ranks[0] == 1]
        if (num_calls := integer(entry(run.values, 1, "num_calls"))) != 4 or len(pushes) != 4:
            actual = f"{shown(num_calls)} and {len(pushes)}"
            raise CheckFailed("4 calls of gradient_of and 4 pushes in 4 steps", actual)
        for step, (push, pulled) in enumerate(zip(pushes, sent, strict=True), start=1):
            hint = "In every step receive first, then compute; send what gradient_of returned."
            expect_body(push, slope * pulled + 1, f"the gradient of step {step}", hint)


@points(0.5, cell="check_run_worker")
def check_work_receives_in_place(student, rng):
    """The parameters come into the caller's tensor, and gradient_of gets that tensor itself."""
    sent, slope = [drawn(rng, 4)], between(rng, 1, 2)
    given = entry(worked(student, sent, slope).values, 1, "parameters")
    hint = (
        "Receive into the tensor that you were given, and call gradient_of(parameters) with no copy"
        " of it: the one of this check adds a number to the tensor that it gets."
    )
    expect_close(given, sent[0] + slope, "the caller's tensor after one step", hint)


# may_start


@points(1, cell="check_may_start")
def check_may_start_keeps_the_bound(student, rng):
    """A worker may begin while it is at most the bound ahead of the slowest, which always may."""
    asked = []
    for bound, ahead in product(range(4), range(6)):
        least, num_workers = whole(rng, 0, 9), whole(rng, 2, 5)
        done = {worker: least + whole(rng, 0, 7) for worker in range(1, num_workers + 1)}
        worker, slowest = shuffled(rng, [*done])[:2]
        asked.append(
            (list((done | {slowest: least, worker: least + ahead}).items()), worker, bound)
        )
    asked.append(([(1, whole(rng, 1, 9))], 1, 0))  # without others, it is the slowest itself
    hint = "Compare one count of steps_done, which is a dict, with the smallest count."
    with hinted(hint, Outcome.CRASHED):
        (given,) = student.run(ask_on_rank, asked, world_size=1)
    if isinstance(given, list) and len(given) == len(asked) - 1:
        hint = "The slowest may be the worker that asks: its own count belongs among the others."
        actual = "ValueError: the smallest of no numbers"
        raise PartlyHeld(0.5, "an answer for a worker without others", actual, hint)
    for (items, worker, bound), answer in zip(asked, entries(given, len(asked)), strict=True):
        done = dict(items)
        ahead = done[worker] - min(done.values())
        if answer is not (ahead <= bound):
            raise CheckFailed(
                f"{ahead <= bound} for worker {worker}, steps done {done} and a bound of {bound}",
                shown(answer),
                f"It is {ahead} ahead of the slowest; {bound} is the most that is allowed.",
            )


# run_unbounded_server


@points(2.5, cell="check_run_unbounded_server")
def check_serve_holds_nobody_up(student, rng):
    """Each worker needs the time of its own steps: a slow worker holds nobody up."""
    record = drawn_training(rng, whole(rng, 3, 4), 6, UNBOUNDED).recorded(
        student, serve_unbounded_on_rank
    )
    record.expect_unheld()
    record.expect_true_clock()


@points(0.5, cell="check_run_unbounded_server")
def check_serve_applies_every_push_once(student, rng):
    """Every push is applied once, as it arrives; a pull contains all that came before."""
    drawn_training(rng, 3, 6, UNBOUNDED).recorded(student, serve_unbounded_on_rank).expect_replay()


@points(0.5, cell="check_run_unbounded_server")
def check_serve_sends_the_parameters_once_a_step(student, rng):
    """Each worker has one pull and one push a step; the server returns after the last push."""
    training = drawn_training(rng, 3, whole(rng, 3, 5), UNBOUNDED)
    training.recorded(student, serve_unbounded_on_rank, is_whole=True).expect_messages()


@points(0.5, cell="check_run_unbounded_server")
def check_serve_holds_no_history(student, rng):
    """The server holds its parameters, two tensors of their size, and one for each worker."""
    expect_no_history(student, rng, serve_unbounded_on_rank, UNBOUNDED)


def expect_no_history(student: Any, rng: torch.Generator, serve_on_rank: Any, bound: int) -> None:
    """Raise CheckFailed if the server's memory grows with the number of steps."""
    num_workers, num_steps, size_mib = 2, 6, 5
    # alike, so that no bound holds a worker and only memory can fail
    step_s = [[1e-3 * between(rng, 1, 1.1)] * num_steps for _ in range(num_workers)]
    nothing = [torch.zeros(0)] * num_workers
    training = Training(torch.ones(size_mib * MIB // 4), bound, step_s, nothing)
    run = training.run(student.emulated, serve_on_rank, COUNTED, memory=True)
    num_bytes = num_workers * num_steps * size_mib * MIB
    if (sent_bytes := run.timeline.bytes_sent(0)) < num_bytes:
        raise CheckFailed(f"{num_bytes} bytes of pulls", f"{sent_bytes} bytes", "Answer each push.")
    expect_grown(
        run,
        ((num_workers + 3) * size_mib + SPARE_MIB) * MIB,
        f"{num_workers * num_steps} pushes of {size_mib} MiB each",
        "Only the current version of the parameters is needed, and no gradient that was applied:"
        " receive each push into the same tensor, and keep no list of pushes or of old versions.",
    )


# run_server


@points(2, cell="check_run_server")
def check_serve_holds_no_longer_than_the_bound_asks(student, rng):
    """A worker is held by the bound alone, and goes on as soon as the bound allows it."""
    record = drawn_training(rng, 3, 7, whole(rng, 1, 3)).recorded(student, serve_on_rank)
    record.expect_unheld()
    record.expect_true_clock()


@points(1.5, cell="check_run_server")
def check_serve_never_exceeds_the_bound(student, rng):
    """Fast workers run ahead of the slowest, but never by more than the bound."""
    record = drawn_training(rng, 3, 6, whole(rng, 2, 3)).recorded(student, serve_on_rank)
    record.expect_bound()
    record.expect_true_clock()


@points(0.5, cell="check_run_server")
def check_serve_with_bound_0_is_synchronous(student, rng):
    """With a bound of 0 all workers compute every step from the same parameters."""
    record = drawn_training(rng, whole(rng, 3, 4), 4, 0).recorded(student, serve_on_rank)
    record.expect_bound()
    record.expect_replay()


@points(0.5, cell="check_run_server")
def check_serve_takes_any_number_of_workers_and_any_tensor(student, rng):
    """With any number of workers, dtype and bound, pushes are applied before they are answered."""
    for num_workers, bound, dtype in ((1, 0, torch.float32), (4, 2, torch.bfloat16)):
        training = drawn_training(rng, num_workers, 4, bound, dtype)
        training.recorded(student, serve_on_rank).expect_replay(rtol=1e-5)


@points(0.5, cell="check_run_server")
def check_serve_with_a_bound_answers_no_last_push(student, rng):
    """With a bound, too, a worker has as many pulls as steps; the last push ends the server, which
    holds no more in memory.
    """
    training = drawn_training(rng, 3, whole(rng, 3, 5), UNBOUNDED)
    training.recorded(student, serve_on_rank, is_whole=True).expect_messages()
    expect_no_history(student, rng, serve_on_rank, bound=whole(rng, 1, 2))


@points(0.5, cell="check_run_server")
def check_serve_over_real_sockets(student, rng):
    """Over real sockets, with Gloo and a slow worker, the server ends, and applies every push."""
    training = drawn_training(rng, 3, 6, 2)
    values = training.run(student.run, serve_on_rank, COUNTED)
    given, num_pushes = tensor_like(entry(values, 0), training.parameters), 3 * 6
    num_found = 0 if given is None else len(training.marked(given))
    if num_found != num_pushes:
        hint = "Wait until a send is complete before you update, and return after the last push."
        raise CheckFailed(f"{num_pushes} pushes in the parameters", f"{num_found}", hint)
    for worker in training.workers:  # which run no code of the student's
        for step in range(training.num_steps):
            pulled = tensor_like(entry(values, worker, step), training.parameters.flatten() > 0)
            own = [] if pulled is None else pulled[(worker - 1) * training.num_steps :].tolist()
            if not own or not all(own[: max(0, step - 1)]):  # the latest push is for other checks
                raise CheckFailed(
                    f"pull {step + 1} of worker {worker} to contain what it had pushed before",
                    "none" if pulled is None else "parameters without some of that",
                    "Each push is applied, and each pull sends the parameters as they are then.",
                )


# lars_step and lamb_step


class Case(NamedTuple):
    """What an optimizer step is given in several calls: each has gradients, a rate and a number."""

    layers: Tensors
    states: list[Tensors]
    steps: list[tuple[Tensors, float, int]]
    settings: dict[str, Any]


def norms(of: Tensors, slip: str) -> list[float]:
    every = [one.norm().item() for one in of]
    return [math.hypot(*every)] * len(of) if slip == "is_global" else every


def trust(above: list[float], below: list[float]) -> list[float]:
    """The ratios of norms, or 1 where one of them is 0."""
    return [a / b if a and b else 1.0 for a, b in zip(above, below, strict=True)]


def lars(
    layers: Tensors, grads: Tensors, states: Any, rate: float, _: int, slip: str, **given: Any
):
    """Take a step of LARS, or of LARS with a known mistake, and return the ratios."""
    settings = {"momentum": 0.9, "weight_decay": 0.0, "trust_coefficient": 0.001} | given
    momentum, decay, coefficient = settings.values()
    above = norms(layers, slip)
    pairs = zip(norms(grads, slip), above, strict=True)
    ratios = trust(above, [g and (g + decay * w) / coefficient for g, w in pairs])
    for w, g, v, ratio in zip(layers, grads, states[0], ratios, strict=True):
        inside, outside = (1, rate * ratio) if slip == "rate_outside" else (rate * ratio, 1)
        v.mul_(momentum).add_(inside * (g + (0 if slip == "without_decay" else decay) * w))
        w.sub_(outside * v)
    return ratios


def lamb(
    layers: Tensors, grads: Tensors, states: Any, rate: float, step: int, slip: str, **given: Any
):
    """Take a step of LAMB, or of LAMB with a known mistake, and return the ratios."""
    settings = {"betas": (0.9, 0.999), "eps": 1e-6, "weight_decay": 0.01} | given
    (beta_1, beta_2), eps, decay = settings.values()
    power = math.inf if slip == "without_correction" else step
    in_gradient, in_direction = (decay, 0) if slip == "decay_in_gradient" else (0, decay)
    bare, directions = [], []
    for w, grad, m, v in zip(layers, grads, *states, strict=True):
        g = grad + in_gradient * w
        m.mul_(beta_1).add_((1 - beta_1) * g)
        v.mul_(beta_2).add_((1 - beta_2) * g * g)
        m_hat, v_hat = m / (1 - beta_1**power), v / (1 - beta_2**power)
        if slip == "keeps_corrected":
            m.copy_(m_hat)
            v.copy_(v_hat)
        is_inside = slip == "eps_inside"
        bare.append(m_hat / ((v_hat + eps).sqrt() if is_inside else v_hat.sqrt() + eps))
        directions.append(bare[-1] + in_direction * w)
    below = bare if slip == "norm_without_decay" else directions
    ratios = trust(norms(layers, slip), norms(below, slip))
    for w, direction, ratio in zip(layers, directions, ratios, strict=True):
        w.sub_(rate * ratio * direction)
    return ratios


def is_at(given: Any, places: tuple[Any, ...], wanted: torch.Tensor) -> bool:
    """True if this tensor is at these places of a result."""
    one = tensor_like(entry(given, *places), wanted)
    # of the norm: a ratio rounded to float32 is right, and elements at which subtraction cancels
    # show it
    return one is not None and bool((one - wanted).norm() <= 1e-10 + 1e-5 * wanted.norm())


class Rule(NamedTuple):
    """An optimizer: one right step, its states, and the settings and known mistakes of checks."""

    step: Callable[..., list[float]]
    on_rank: Callable[..., Any]
    states: tuple[str, ...]
    settings: dict[str, Any]
    slips: dict[str, str]

    def run(self, student: Any, *cases: Case) -> list[tuple[Any, Case]]:
        """What the student's step makes of each case, and the case."""
        hint = (
            "Loop over the lists with zip, one tensor of each; first call it as the example does."
        )
        with hinted(hint, Outcome.CRASHED):
            (value,) = student.run(self.on_rank, [tuple(one) for one in cases], world_size=1)
        return [*zip(entries(value, len(cases)), cases, strict=True)]

    def right(self, case: Case, slip: str = "") -> Any:
        """What it should be, or would be with a known mistake."""
        layers = [one.clone() for one in case.layers]
        states = [[one.clone() for one in state] for state in case.states]
        ratios = []
        for call, (grads, rate, number) in enumerate(case.steps, start=1):
            step = call if slip == "counts_calls" else number
            ratios.append(self.step(layers, grads, states, rate, step, slip, **case.settings))
        wide = torch.tensor(ratios, dtype=torch.float64)
        return {"ratios": wide, "layers": layers, "states": states}

    def drawn(
        self, rng: torch.Generator, num_steps: int = 1, first: int = 1, **changed: Any
    ) -> Case:
        """Layers of very different scales, a rate that changes, and states of 0 before step 1."""
        shapes, past = ((4, 3), (5,), (2, 1, 3)), float(first > 1)
        layers = [scale * drawn(rng, *of) for scale, of in zip((1, 0.05, 7), shapes, strict=True)]
        steps = [
            ([drawn(rng, *of) for of in shapes], between(rng, 0.05, 0.5), first + number)
            for number in range(num_steps)
        ]
        states = [[past * drawn(rng, *of).abs() for of in shapes] for _ in self.states]
        return Case(layers, states, steps, self.settings | changed)

    def differs(self, given: Any, right: Any, num_states: int) -> str:
        """Where a result is wrong; empty if it is right."""
        due = {("ratios",): right["ratios"]}
        due |= {("layers", place): one for place, one in enumerate(right["layers"])}
        for number, state in enumerate(right["states"][:num_states]):
            due |= {("states", number, place): one for place, one in enumerate(state)}
        for places, wanted in due.items():
            if not is_at(given, places, wanted):
                return "other numbers in the " + " ".join(map(str, places))
        return ""

    def expect(self, student: Any, what: str, counted: Any, *cases: Case) -> None:
        """Raise CheckFailed, with a known mistake's hint, unless the steps follow the formulas.

        A known mistake that is not `counted` here costs its points elsewhere.
        """
        num_states = len(self.states) if counted is SHOWN_LATER else 0
        for given, case in self.run(student, *cases):
            if actual := self.differs(given, self.right(case), num_states):
                self.expect_written_into(given, case)
                results = {slip: self.right(case, slip) for slip in self.slips}
                same = [x for x in results if not self.differs(given, results[x], num_states)]
                if not same or same[0] in counted:
                    hint = "Compute the example of the text by hand beside your function."
                    hint = self.slips[same[0]] if same else hint
                    raise CheckFailed(f"{what} by the formulas", actual, hint)

    def expect_written_into(self, given: Any, case: Case) -> None:
        """Raise CheckFailed where the tensors of a list have their old numbers."""
        lists = dict(zip(self.states, case.states, strict=True)) | {"parameters": case.layers}
        found = dict(
            zip(self.states, entries(entry(given, "states"), len(self.states)), strict=True)
        )
        found["parameters"] = entry(given, "layers")
        for name, before in lists.items():
            after = [tensor_like(entry(found[name], n), one) for n, one in enumerate(before)]
            if all(a is not None and torch.equal(a, b) for a, b in zip(after, before, strict=True)):
                hint = (
                    "`v = ...` makes a new tensor, and the one in the list stays as it was: write"
                    " into it, with mul_, add_, sub_ or copy_."
                )
                raise CheckFailed(f"the tensors of {name} to change", "none that did", hint)

    def expect_defaults(self, student: Any, rng: torch.Generator) -> None:
        """Raise CheckFailed unless what is left out has the contract's defaults."""
        case = self.drawn(rng, first=7)
        steps = [([1e-5 * one for one in grads], *rest) for grads, *rest in case.steps]
        states = [
            [1e-10 * one for one in state] for state in case.states
        ]  # so small that eps shows
        case = case._replace(settings={}, steps=steps, states=states)
        self.expect(student, "a step with the contract's defaults", (), case)

    def expect_zero_norms(self, student: Any, rng: torch.Generator) -> None:
        """Raise CheckFailed unless ratios are 1 where a norm is 0, and nowhere else, and tensors
        move by them, from states of 0 or others.
        """
        cases = [
            self.drawn(rng, first=first, weight_decay=decay)
            for first, decay in product((1, 7), (0.0, 0.1))
        ]
        for case in cases:
            case.layers[0].zero_()
            case.steps[0][0][1].zero_()
        for given, case in self.run(student, *cases):
            wanted = self.right(case)
            right = wanted["ratios"]
            found = tensor_like(entry(given, "ratios"), right)
            is_1 = (right[0] == 1).tolist()
            if found is None or (found[0] == 1).tolist() != is_1:
                are = ["1" if one else "another one" for one in is_1]
                raise CheckFailed(
                    f"the ratios for weights of 0, a gradient of 0, and others, with weight decay"
                    f" {case.settings['weight_decay']}, to be {', '.join(are)}",
                    "others" if found is None else shown(found[0].tolist()),
                    "Before you divide, check the two norms that the contract names: a layer that"
                    " starts at zero, or that the loss does not reach, has one of 0.",
                )
            is_moved = [self.is_moved(given, wanted, place) for place in range(3)]
            # a wrong formula costs its points elsewhere; a wrong factor shows only in the ratio,
            # which moves tensor 2 as it should
            if is_at([found[0][2]], (0,), right[0][2]) and is_moved[2] and not all(is_moved):
                raise CheckFailed(
                    f"tensor {is_moved.index(False)}, whose weights or gradient are 0, and its"
                    " states to follow the formulas with their ratio",
                    "other numbers",
                    "A ratio of 1 is no reason to leave a tensor out: its states and weights still"
                    " change.",
                )

    def is_moved(self, given: Any, right: Any, place: int) -> bool:
        """True if the weights and the states at this place are right."""
        states = enumerate(right["states"])
        due = {("states", number, place): state[place] for number, state in states}
        due[("layers", place)] = right["layers"][place]
        return all(is_at(given, places, wanted) for places, wanted in due.items())

    def expect_in_place(self, student: Any, rng: torch.Generator) -> None:
        """Raise CheckFailed unless parameters changed in place, in their dtype, and gradients did
        not change.
        """
        case, still = self.drawn(rng), self.drawn(rng)
        still.steps[0] = (still.steps[0][0], 0.0, still.steps[0][2])  # with a rate of 0
        (given, case), (unmoved, still) = self.run(student, case, still)
        if entry(given, "is_recorded") is not False:
            hint = "Work inside `with torch.no_grad():`."
            raise CheckFailed("nothing recorded by autograd", "a parameter with a history", hint)
        for place, (old, grad) in enumerate(zip(case.layers, case.steps[0][0], strict=True)):
            found = tensor_like(entry(given, "own", place), old)
            if found is None or not ((old - found) * grad).sum() > 0:
                hint = "Change the tensors in place; those in the lists are the caller's."
                actual = "the same numbers, or others that do not go down the gradient"
                raise CheckFailed(f"parameters[{place}] to change", actual, hint)
            hint = "The gradients are the caller's: leave them as they are."
            expect_close(entry(given, "gradients", place), grad, f"gradients[{place}]", hint)
        for place, old in enumerate(still.layers):
            hint = "Compute in the dtype of the parameters: float64 does not go through float32."
            what = f"parameters[{place}], in float64, after a step with a rate of 0"
            expect_close(entry(unmoved, "own", place), old, what, hint, rtol=1e-12, atol=1e-12)


SHOWN_LATER = ("rate_outside", "keeps_corrected", "counts_calls")
GLOBAL = "Each tensor has norms of its own; these are the norms of all tensors together."
LARS = Rule(
    lars,
    lars_on_rank,
    ("velocities",),
    {"momentum": 0.9, "weight_decay": 0.05, "trust_coefficient": 0.02},
    {
        "is_global": GLOBAL,
        "without_decay": "The weight decay is missing in what is added to the velocity.",
        "rate_outside": "The learning rate and the ratio belong inside v: old steps keep theirs.",
    },
)
LAMB = Rule(
    lamb,
    lamb_on_rank,
    ("first_moments", "second_moments"),
    {"betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1},
    {
        "is_global": GLOBAL,
        "without_correction": "The moments are not corrected for their start at 0.",
        "keeps_corrected": "Keep m and v for the next step, not the corrected ones.",
        "decay_in_gradient": "The weight decay is added to r, not to the gradient.",
        "norm_without_decay": "The norm below is that of r + weight_decay * w, with the decay.",
        "counts_calls": "Take t from `step`: training may go on from a checkpoint.",
        "eps_inside": "In r, eps is added to the square root of v, not to v inside it.",
    },
)


@points(1.5, cell="check_lars_step")
def check_lars_ratios_and_first_step(student, rng):
    """Each tensor has its own ratio, with weight decay, and moves by it in the first step."""
    LARS.expect(student, "ratios and parameters after a step", LARS.slips, LARS.drawn(rng))


@points(1, cell="check_lars_step")
def check_lars_velocities_over_several_steps(student, rng):
    """The velocity keeps old steps with the learning rates and ratios that they had."""
    cases = (LARS.drawn(rng, 4, first=7), LARS.drawn(rng, 4))
    LARS.expect(student, "steps 1 to 4, or 7 to 10,", SHOWN_LATER, *cases)


@points(0.5, cell="check_lars_step")
def check_lars_ratio_of_zero_norms_is_1(student, rng):
    """Where the norm of the weights or of the gradient is 0, the ratio is 1."""
    LARS.expect_zero_norms(student, rng)


@points(0.5, cell="check_lars_step")
def check_lars_has_the_defaults_of_its_contract(student, rng):
    """Arguments that are left out have the defaults of the signature that was given."""
    LARS.expect_defaults(student, rng)


@points(0.5, cell="check_lars_step")
def check_lars_changes_tensors_in_place(student, rng):
    """Parameters change in place, unseen by autograd; gradients do not change."""
    LARS.expect_in_place(student, rng)


@points(1.5, cell="check_lamb_step")
def check_lamb_ratios_and_first_step(student, rng):
    """Each tensor moves by its own ratio, of the norms of w and r + weight_decay * w."""
    LAMB.expect(student, "ratios and parameters after a step", LAMB.slips, LAMB.drawn(rng))


@points(1, cell="check_lamb_step")
def check_lamb_moments_over_several_steps(student, rng):
    """Moments are kept uncorrected, and corrected by `step`, from a checkpoint on, too."""
    cases = (LAMB.drawn(rng, 4, first=7), LAMB.drawn(rng, 4))
    LAMB.expect(student, "steps 1 to 4, or 7 to 10,", SHOWN_LATER, *cases)


@points(0.5, cell="check_lamb_step")
def check_lamb_ratio_of_zero_norms_is_1(student, rng):
    """Where the norm of w or of r + weight_decay * w is 0, and only there, the ratio is 1."""
    LAMB.expect_zero_norms(student, rng)


@points(0.5, cell="check_lamb_step")
def check_lamb_has_the_defaults_of_its_contract(student, rng):
    """Arguments that are left out have the defaults of the signature that was given."""
    LAMB.expect_defaults(student, rng)


@points(0.5, cell="check_lamb_step")
def check_lamb_changes_tensors_in_place(student, rng):
    """Parameters change in place, unseen by autograd; gradients do not change."""
    LAMB.expect_in_place(student, rng)
