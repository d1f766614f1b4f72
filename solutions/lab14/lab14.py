# %% [markdown]
# # Lab 14. Calibrate a machine, and predict it
#
# A performance model has a few numbers: what a product takes, what a pass over memory takes, what a
# message and a file take. In this lab you make these numbers from raw measurements, and predict
# training steps and checkpoints that were not measured. At the end your own machine runs some of
# the steps, and you see how far off you are.
#
# ```text
# raw probes                     fits                               prediction
# times of products by shape  -> seconds of any product     \
# times of passes by size     -> seconds of any pass         \
# times of small programs     -> overhead, slowdown           >  a training step, a checkpoint
# times of all-reduces        -> latency, bytes a second     /
# times of saves              -> floor, bytes a second      /
# ```
#
# | Function | What it does | Points | Time | Difficulty |
# |---|---|---|---|---|
# | `best_s`, `spread_fraction` | which of several times counts | 1 | 5 min | easy |
# | `line` | a floor and a rate, although some points are wrong | 5 | 20 min | hard |
# | `all_reduce_s`, `alpha_beta` | a link between ranks | 3 | 10 min | medium |
# | `product_s`, `pass_s` | operators between those that were measured | 5 | 20 min | medium |
# | `in_program` | what operators take longer in a program | 3 | 10 min | medium |
# | `step_s`, `save_s` | a training step, a checkpoint | 2 | 5 min | easy |
# | `left_out_error` | your own error bar | 2 | 10 min | medium |
# | `predict` | all of it together, on a machine that you have not seen | 3 | 10 min | medium |
# | your machine | your fits and predictions beside real runs | 0 | 5 min | easy |
#
# Work in this order. Each part has a check below it and folded hints above it: the first hint says
# where to look, the next one how to do it.
#
# Each docstring is a contract: everything that it promises is graded, and nothing else. The checks
# make up machines whose numbers they know, and compute how far off you are. Each part is graded
# with correct versions of the others, so that a mistake costs points only once. Only the last check
# takes all of your functions as they are: the judge measures **the machine on which it runs**,
# gives you the probes, and compares the steps that you predict with those of programs that it has
# timed in the same minute. All times in it are multiplied by a drawn factor, and those of programs
# by a second one: a machine on which operators take longer in a program.
#
# `product_s` and half of `predict` are graded by their error. Their docstrings say which error
# still gets all points and which gets none; between the two the points fall in proportion.
#
# Your functions only compute: they measure nothing and start no other process.
# `worldsize.calibrate`, which does the same work, is out of reach while they are graded.

# %% setup
import itertools
import math
from statistics import fmean, median
from typing import NamedTuple
from unittest.mock import patch

import torch
import torch.distributed as dist

import worldsize as ws
from worldsize.check import CheckFailed, expect_close

# %% [markdown]
# ## Probes
#
# A **probe** is a small piece of work that was timed several times. Here it is a dictionary, as
# `ws.calibrate()` makes them: its `times_s`, and what it did. Products have `flops` and
# `size_bytes`, passes over memory `name` and `size_bytes`, messages and files `size_bytes`.
#
# Never try a fit on measurements first: if it is off, you will not know whether the fit or the
# machine is to blame. The next cell is given. It makes up probes of which you know the truth: the
# shortest of three times is right.


# %% made_up
def probe(time_s, **what):
    """A probe whose shortest time is right; other work has made the others longer."""
    return {**what, "times_s": [1.5 * time_s, time_s, 2.2 * time_s]}


SIZES = [1 << one for one in (10, 13, 16, 18, 20, 22, 24)]


def made_up_machine():
    """Probes of a machine with 80 GFLOP/s, passes of 5 GB/s, and 10 us around each operator."""
    shapes = itertools.product((16, 64, 256), (64, 128, 256, 512), (64, 256, 512))
    products = [
        probe(
            true_product_s(2.0 * rows * width * columns, size),
            name="mm",
            flops=2.0 * rows * width * columns,
            size_bytes=size,
        )
        for rows, width, columns in shapes
        for size in [4.0 * (rows * width + width * columns + rows * columns)]
    ]
    passes = [
        probe(true_pass_s(name, size), name=name, flops=0, size_bytes=size)
        for name in ("add", "gelu")
        for size in SIZES
    ]
    phases = [
        probe(len(one) * 10e-6 + 1.3 * sum(true_alone_s(*each) for each in one), operators=one)
        for one in programs()
    ]
    links = [probe(2 * 80e-6 + size / 1e9, size_bytes=size) for size in SIZES]
    write = [probe(3e-3 + size / 4e8, size_bytes=size) for size in SIZES]
    return {
        "products": products,
        "passes": passes,
        "phases": phases,
        "links": links,
        "write": write,
    }


def true_product_s(flops, size_bytes):
    """Seconds of a product: a start, and the longer of its operations and its bytes."""
    return 4e-6 + max(flops / 80e9, size_bytes / 8e9)


def true_pass_s(name, size_bytes):
    """Seconds of a pass over memory; gelu computes more."""
    return 3e-6 + size_bytes / (5e9 if name == "add" else 2e9)


def true_alone_s(name, flops, size_bytes):
    """Seconds of an operator by itself."""
    return true_product_s(flops, size_bytes) if flops else true_pass_s(name, size_bytes)


def programs(scales=(1, 4, 16, 64, 256, 512)):
    """The operators of small programs: name, flops, bytes."""
    return [
        [["mm", 1e5 * one, 1e4 * one], ["add", 0, 3e3 * one], ["gelu", 0, 2e3 * one]] * 5
        for one in scales
    ]


def given_line(points):
    """The line through the smallest and the largest size: right where all points are."""
    (size, time_s), (larger, longer_s) = min(points), max(points)
    slope = (longer_s - time_s) / (larger - size)
    return time_s - slope * size, 1 / slope


def line_above_the_smallest(points):
    """The line of all points but the smallest, for where that one is wrong."""
    return given_line(sorted(points)[1:])


MADE_UP = made_up_machine()

# %% [markdown]
# ## 1. Which time counts?
#
# The same work was timed five times: 4.1, 4.0, 9.7, 4.0 and 6.3 ms. Other programs, interrupts and
# cold caches can only make it longer. So the shortest time is nearest to what the machine can do,
# and the mean says more about its neighbours. How far the median lies above the best says how
# disturbed the measurement was.
#
# This holds for time of the same work. Where each time is a draw of its own, as on a disk that is
# shared with others, the shortest is the luckiest.

# %% [markdown]
# <details><summary>Hint: where to look</summary>
#
# `min` and `statistics.median`.
#
# </details>


# %% which_time tags=["solution"]
def best_s(times_s: list[float]) -> float:
    """The time that stands for a probe: the shortest."""
    ### BEGIN SOLUTION
    return min(times_s)
    ### END SOLUTION


def spread_fraction(times_s: list[float]) -> float:
    """How much longer the median of the times is than the shortest, as a fraction of the shortest.

    Example: of [4.0, 5.0, 9.0] it is 0.25.
    """
    ### BEGIN SOLUTION
    return median(times_s) / min(times_s) - 1
    ### END SOLUTION


# %% check_which_time points=1
def check_which_time():
    times_s = [0.0041, 0.0040, 0.0097, 0.0040, 0.0063]
    hint = "Other work makes a time longer, never shorter."
    expect_close(1e3 * best_s(times_s), 4.0, "ms of the probe", hint)
    hint = "The median over the shortest, less 1."
    expect_close(spread_fraction(times_s), 0.025, "the spread", hint)
    expect_close(spread_fraction([4.0, 5.0, 9.0]), 0.25, "the spread of [4, 5, 9]", hint)
    expect_close(spread_fraction([2.0]), 0.0, "the spread of a single time", hint)
    print("best_s, spread_fraction: the shortest, and how far above it the median is.")


check_which_time()

# %% [markdown]
# ## 2. A floor and a rate
#
# A message, a file, an operator: each takes some time before the first byte, and then a time for
# each byte. Over four orders of magnitude of sizes both show, the floor on the left and the rate on
# the right:
#
# ```text
# seconds (log)            .  '     rate: twice the bytes, twice the time
#                      . '
#      _ . _ . _ . '               floor: half the bytes, the same time
#                                  bytes (log)
# ```
#
# Least squares of the times fails here twice. The largest size decides alone, because its time is
# the longest. And one wrong point, such as a file that came out of a cache, bends the whole line.
# Take **relative** distances, and a criterion that a few such outliers cannot move.
#
# <details><summary>Hint 1: where to look</summary>
#
# If most points are right, then some *pair* of points gives the right line. There are few pairs:
# try all of them.
#
# </details>
# <details><summary>Hint 2: which pair?</summary>
#
# For the line of a pair compute the distance of every point, `abs(log(line / time))`, and take the
# line with the least sum. Two other distances fail. `abs(line / time - 1)` is never above 1 where
# the line is too low, so low lines win. Squares grow so fast that one outlier decides.
#
# A floor below 0 is 0; a pair whose slope is not above 0 gives no line.
#
# </details>
# <details><summary>Hint 3: another way</summary>
#
# The median of the slopes of all pairs (Theil 1950, Sen 1968), then the median of what is left at
# each point. Nearly half of the pairs may be wrong, which is 29% of the points.
#
# </details>


# %% fitted_line tags=["solution"]
def line(points: list[tuple[float, float]]) -> tuple[float, float]:
    """The floor in seconds, and the bytes a second, of (bytes, seconds).

    - The time of a size is floor + size / rate. The points are in any order, at least seven, with
      different sizes, from those where the floor is nearly all to those where the rate is.
    - Of n points, up to (n - 1) // 5 are outliers: their times are wrong by a factor of 3 or more,
      too long or too short. The others are right within 0.3%.
    - At any size from the smallest to the largest, floor + size / rate is at most 5% off.
    - The floor is not below 0, not even by rounding. It may be 0; then there are no outliers.

    Example: of points on 0.002 + size / 1e9 it is (0.002, 1e9), to rounding, with an outlier or
    without.
    """
    ### BEGIN SOLUTION
    found = []
    for (size, time_s), (larger, longer_s) in itertools.combinations(sorted(points), 2):
        if longer_s > time_s:
            slope = (longer_s - time_s) / (larger - size)
            floor_s = max(0.0, time_s - slope * size)
            off = sum(abs(math.log((floor_s + slope * one) / its_s)) for one, its_s in points)
            found.append((off, floor_s, 1 / slope))
    return min(found)[1:]
    ### END SOLUTION


# %% check_fitted_line points=5
def points_of(floor_s, bytes_per_s, outliers=()):
    """Points of a line, of which some are wrong by a factor, by their place."""
    factors = dict(outliers)
    return [
        (size, (floor_s + size / bytes_per_s) * factors.get(place, 1.0))
        for place, size in enumerate(SIZES)
    ]


def expect_line(given, floor_s, bytes_per_s, what, hint):
    """Raise CheckFailed unless a line predicts the time of every size."""
    found_s, rate = given
    if found_s > rate:
        shown = f"{found_s:g}, {rate:g}"
        raise CheckFailed("the floor, then the rate", shown, "The floor in seconds comes first.")
    if not 0 <= found_s < math.inf or not 0 < rate < math.inf:
        shown, rounding = f"{found_s:g} s, {rate:g}", "Rounding, too, can bring a floor below 0."
        raise CheckFailed("a floor of 0 or more, and a rate above 0", shown, rounding)
    for size in (SIZES[0], 30_000, 200_000, 3_000_000, SIZES[-1]):
        wanted_s, mine_s = floor_s + size / bytes_per_s, found_s + size / rate
        if not abs(mine_s / wanted_s - 1) <= 0.05:
            expected = f"{1e3 * wanted_s:.3g} ms for {size:,} bytes, {what}"
            raise CheckFailed(expected, f"{1e3 * mine_s:.3g} ms", hint)


def check_fitted_line():
    for floor_s, rate in ((1e-3, 1e9), (2e-5, 2e10)):
        hint = "Both numbers count: the floor at small sizes, the rate at large ones."
        expect_line(line(points_of(floor_s, rate)), floor_s, rate, "all points right", hint)
        hint = "The same points were right in another order: sort them first."
        expect_line(line(points_of(floor_s, rate)[::-1]), floor_s, rate, "largest first", hint)
    expect_line(line(points_of(0.0, 1e9)), 0.0, 1e9, "without a floor", "The floor may be 0.")
    for place, factor in itertools.product(range(len(SIZES)), (0.2, 5)):
        what = f"where point {place + 1} of {len(SIZES)} is {factor:g} times what it should be"
        hint = "One point must not decide, and low lines must not win: see hint 2."
        expect_line(line(points_of(1e-3, 1e9, [(place, factor)])), 1e-3, 1e9, what, hint)
    print("line: the floor and the rate, whichever of seven points is wrong.")


check_fitted_line()

# %% [markdown]
# ## 3. A link
#
# In lab 2 a ring all-reduce of S bytes over n ranks took 2 (n - 1) messages of S / n bytes, one
# after the other. If one message takes alpha + bytes / beta, what is the floor of the all-reduce,
# and what its rate? The probes are times of all-reduces; wanted are alpha and beta of the link, for
# with these you can predict any other number of ranks.
#
# <details><summary>Hint 1: where to look</summary>
#
# Write the seconds of the whole all-reduce with alpha, beta, n and S. Which part of them does not
# depend on S, and what is S multiplied by in the other?
#
# </details>
# <details><summary>Hint 2: the equations</summary>
#
# The time is floor + S / rate, with floor = 2 (n - 1) alpha and rate = n beta / (2 (n - 1)).
#
# </details>
# <details><summary>Hint 3: how</summary>
#
# `line` of the points (size_bytes, best_s(times_s)), which are those of the shortest times. Then
# solve the two equations for alpha and beta.
#
# </details>


# %% ring_link tags=["solution"]
def all_reduce_s(size_bytes: float, num_ranks: int, latency_s: float, bytes_per_s: float) -> float:
    """Seconds of a ring all-reduce: 2 (n - 1) messages of a part of 1 / n each; 0 for one rank.

    Example: of 1e6 bytes on 4 ranks with 1e-4 s and 1e9 bytes a second it is 0.0021 s.
    """
    ### BEGIN SOLUTION
    message_s = latency_s + size_bytes / num_ranks / bytes_per_s
    return 2 * (num_ranks - 1) * message_s
    ### END SOLUTION


def alpha_beta(links: list[dict], num_ranks: int) -> tuple[float, float]:
    """A link's latency in seconds, and its bytes a second, of all-reduces among `num_ranks` ranks.

    - `links` are probes with `size_bytes` and `times_s`; of each, the shortest time counts. As in
      `line`, some are outliers. There are at least two ranks.
    - It calls your `best_s` and `line`. Both numbers are at most 5% off.
    """
    ### BEGIN SOLUTION
    floor_s, rate = line([(one["size_bytes"], best_s(one["times_s"])) for one in links])
    steps = 2 * (num_ranks - 1)
    return floor_s / steps, rate * steps / num_ranks
    ### END SOLUTION


# %% check_ring_link points=3
def check_ring_link():
    for num_ranks, wanted_ms in ((1, 0.0), (2, 1.2), (4, 2.1)):
        given_ms = 1e3 * all_reduce_s(1e6, num_ranks, 1e-4, 1e9)
        hint = "2 (n - 1) messages, each of S / n bytes and with its own latency."
        expect_close(given_ms, wanted_ms, f"ms of an all-reduce, world size {num_ranks}", hint)
    with patch.dict(globals(), best_s=min, line=line_above_the_smallest):
        for num_ranks in (2, 4, 8):
            steps = 2 * (num_ranks - 1)
            rows = [
                probe(steps * (5e-5 + size / num_ranks / 2e9), size_bytes=size) for size in SIZES
            ]
            rows[0] = probe(10 * min(rows[0]["times_s"]), size_bytes=SIZES[0])  # an outlier
            latency_s, rate = alpha_beta(rows, num_ranks)
            hint = (
                "Give `line` the shortest times of all sizes. All 2 (n - 1) messages have a"
                " latency, and each has 1 / n of the bytes."
            )
            expect_close(1e6 * latency_s, 50.0, f"us of latency, {num_ranks} ranks", hint, 0.05)
            expect_close(rate / 1e9, 2.0, f"GB/s of the link, {num_ranks} ranks", hint, 0.05)
    print("all_reduce_s, alpha_beta: on 2, 4 and 8 ranks.")


check_ring_link()

# %% [markdown]
# ## 4. Operators between the measured ones
#
# A **product** reaches its best rate only if it is large, and if it has many operations for each
# byte: a thin one waits for memory like any other pass. Where the knees lie depends on the machine
# and its library, so take the rate from the measured products that are most like the wanted one: in
# operations, and in operations a byte, both as logarithms. Or fit a law of your own.
#
# A **pass over memory** takes what lies between two measured sizes. Over orders of magnitude this
# is a straight line through the *logarithms* of size and time.
#
# <details><summary>Hint 1: the nearest product</summary>
#
# `math.dist` of two pairs (log flops, log(flops / size_bytes)). The rate of the nearest measured
# product, flops / best_s, is a first answer; a mean of the nearest few, weighted by 1 / distance²,
# is a better one. A product that was measured is at distance 0: divide by max(distance, 1e-6)², so
# that its own rate decides. Compute with rates, not with times.
#
# </details>
# <details><summary>Hint 2: between two sizes</summary>
#
# With the two probes around the size, share = log(size / smaller) / log(larger / smaller), and the
# time is t0 · (t1 / t0)^share.
#
# </details>
# <details><summary>Hint 3: beyond</summary>
#
# Below the smallest size the floor is all: its time. Above the largest the rate is all: its time,
# times size / largest.
#
# </details>


# %% alone tags=["solution"]
def product_s(products: list[dict], flops: float, size_bytes: float) -> float:
    """Seconds of a matrix product that need not have been measured.

    - `products` are probes with `flops`, `size_bytes` and `times_s`, in any order, of which the
      shortest time counts. Their names do not matter.
    - The wanted one is between the measured ones, in operations and in operations a byte, or is
      one of them.
    - Points by the mean error on made-up machines. All: at most that of the judge's own way (the
      four nearest) and two percentage points more. None: that of the highest rate that any
      measured product reaches, taken for all.
    """
    ### BEGIN SOLUTION
    wanted = math.log(flops), math.log(flops / size_bytes)
    near = []
    for one in products:
        place = math.log(one["flops"]), math.log(one["flops"] / one["size_bytes"])
        rate = one["flops"] / best_s(one["times_s"])
        near.append((math.dist(wanted, place), math.log(rate)))
    weights = [(1 / max(distance, 1e-6) ** 2, rate) for distance, rate in sorted(near)[:4]]
    mean = sum(one * rate for one, rate in weights) / sum(one for one, _ in weights)
    return flops / math.exp(mean)
    ### END SOLUTION


def pass_s(passes: list[dict], name: str, size_bytes: float) -> float:
    """Seconds of an operator that passes over memory.

    - `passes` are probes with `name`, `size_bytes` and `times_s`, in any order, of which the
      shortest time counts. Those of this name count: one or more.
    - Between two measured sizes: on a straight line through the logarithms of both.
    - Below the smallest: its time. Above the largest: its time, times size_bytes over its bytes.
    - A name that was not measured takes the median over all names that were.
    """
    ### BEGIN SOLUTION
    names = {one["name"] for one in passes}
    if name not in names:
        return median(pass_s(passes, one, size_bytes) for one in names)
    known = [(one["size_bytes"], best_s(one["times_s"])) for one in passes if one["name"] == name]
    known.sort()
    if size_bytes <= known[0][0]:
        return known[0][1]
    for (size, time_s), (larger, longer_s) in itertools.pairwise(known):
        if size_bytes <= larger:
            share = math.log(size_bytes / size) / math.log(larger / size)
            return time_s * (longer_s / time_s) ** share
    return known[-1][1] * size_bytes / known[-1][0]
    ### END SOLUTION


# %% check_alone points=5
WANTED = [(3e5, 4e4), (2e6, 9e4), (8e6, 2e5), (3e7, 6e5), (1e8, 1.2e6)]  # flops, bytes
WANTED += [(one["flops"], one["size_bytes"]) for one in MADE_UP["products"][:30:13]]  # measured


def seconds_of_product(flops, size):
    """What the student's function returns.

    Raises:
        CheckFailed: it divides by 0.
    """
    try:
        return product_s(MADE_UP["products"], flops, size)
    except ZeroDivisionError:
        hint = "A product that was measured is at distance 0 from itself: its own rate decides."
        expected = f"seconds of a product of {flops:g} operations"
        raise CheckFailed(expected, "ZeroDivisionError", hint) from None


def check_alone():
    with patch.dict(globals(), best_s=min):
        rates = [one["flops"] / min(one["times_s"]) for one in MADE_UP["products"]]
        mine, guess = [], []
        for flops, size in WANTED:
            time_s = seconds_of_product(flops, size)
            if not 0 < time_s < math.inf:
                raise CheckFailed(f"seconds of a product of {flops:g} operations", f"{time_s}")
            mine.append(abs(time_s / true_product_s(flops, size) - 1))
            guess.append(abs(flops / max(rates) / true_product_s(flops, size) - 1))
        if fmean(mine) > 0.1:
            hint = "Take the rate of the products most like it, in operations and in those a byte."
            expected = f"at most 10% off on average (one rate for all: {fmean(guess):.0%})"
            raise CheckFailed(expected, f"{fmean(mine):.0%}", hint)
        rows = [probe(time_s, name=name, size_bytes=size) for name, size, time_s in PASSES]
        for name, size, wanted_us, hint in WANTED_PASSES:
            given_us = 1e6 * pass_s(rows, name, size)
            expect_close(given_us, wanted_us, f"us of {name} of {size:,} bytes", hint, 0.01)
            given_us = 1e6 * pass_s(rows[::-1], name, size)
            hint = "It was right with the same probes in another order: sort them first."
            expect_close(given_us, wanted_us, f"us of {name}, largest first", hint, 0.01)
    print(f"product_s: {fmean(mine):.1%} off, one rate for all {fmean(guess):.0%}. pass_s: right.")


PASSES = [
    ("add", 1000, 1e-6),
    ("add", 100_000, 4e-6),
    ("add", 10_000_000, 4e-3),
    ("gelu", 1000, 3e-6),
    ("mul", 1000, 30e-6),
]
WANTED_PASSES = [
    ("gelu", 1000, 3.0, "Only the probes of this name count."),
    ("add", 1000, 1.0, "A size that was measured takes its own time."),
    ("add", 10_000, 2.0, "Half way between the logarithms of the sizes: that of the times."),
    ("add", 1_000_000, 126.49, "Half way between the logarithms of the sizes: that of the times."),
    ("add", 10, 1.0, "Below the smallest size the floor is all."),
    ("add", 20_000_000, 8000.0, "Above the largest size the rate is all."),
    ("gelu", 2000, 6.0, "Only the probes of this name count."),
    ("tanh", 1000, 3.0, "The median over the names that were measured."),
]
check_alone()

# %% [markdown]
# ## 5. In a program
#
# Repeated alone, an operator finds its code and often its tensors in a cache, and Python does
# nothing in between. In a program each operator takes `slowdown` times as long, and the program
# spends `overhead_s` around it:
#
# ```text
# seconds of a program = overhead_s · operators  +  slowdown · sum of their seconds alone
# ```
#
# Two unknowns, and some measured programs. Programs of small operators show the first, programs of
# large ones the second. Does that not look familiar?
#
# <details><summary>Hint: where to look</summary>
#
# Divide the shortest time by the number of operators: seconds per operator = overhead_s + slowdown
# · mean seconds alone. That is a `line`.
#
# </details>


# %% in_program tags=["solution"]
def in_program(phases: list[dict], alone_s) -> tuple[float, float]:
    """`overhead_s` around each operator, and the `slowdown` of operators in a program.

    - `phases` are probes of programs, with `operators` (name, flops, bytes of each) and `times_s`,
      of which the shortest counts. Programs have different numbers of operators.
    - As in `line`, some are outliers. It calls your `best_s` and `line`.
    - `alone_s(name, flops, size_bytes)` is the seconds of an operator by itself.
    - overhead_s · operators + slowdown · the sum of their seconds alone is at most 5% off, for all
      programs whose mean operator is between the smallest and the largest of the probes.
    """
    ### BEGIN SOLUTION
    points = []
    for one in phases:
        num = len(one["operators"])
        mean_s = sum(alone_s(*each) for each in one["operators"]) / num
        points.append((mean_s, best_s(one["times_s"]) / num))
    overhead_s, per_second = line(points)
    return overhead_s, 1 / per_second
    ### END SOLUTION


# %% check_in_program points=3
def check_in_program():
    longer = [one * (1 + place) for place, one in enumerate(programs())]
    phases = [
        probe(len(one) * 2e-5 + 1.5 * sum(true_alone_s(*each) for each in one), operators=one)
        for one in longer
    ]
    with patch.dict(globals(), best_s=min, line=given_line):
        overhead_s, slowdown = in_program(phases, true_alone_s)
    hint = "Divide the shortest time by the number of operators, which differs: then it is a line."
    expect_close(1e6 * overhead_s, 20.0, "us around each operator", hint, 0.05)
    hint = "Seconds in the program for each second alone: 1 over the rate of the line."
    expect_close(slowdown, 1.5, "the slowdown", hint, 0.05)
    phases[0] = probe(10 * min(phases[0]["times_s"]), operators=longer[0])  # an outlier
    with patch.dict(globals(), best_s=min, line=line_above_the_smallest):
        overhead_s, slowdown = in_program(phases, true_alone_s)
    hint = "Give `line` all programs as its points: it finds the right line beside a wrong one."
    expect_close(1e6 * overhead_s, 20.0, "us, the smallest program wrong", hint, 0.05)
    expect_close(slowdown, 1.5, "the slowdown, the smallest program wrong", hint, 0.05)
    print("in_program: 20 us around each operator, and 1.5 times as long.")


check_in_program()

# %% [markdown]
# ## 6. A step, and a checkpoint
#
# The next cell is given. A rank of a program has a list of operators; with several ranks their
# gradients are summed by one all-reduce. On CPU ranks little of it overlaps, because the cores are
# busy with both: leave overlap out. A checkpoint holds the float32 parameters and what the
# optimizer keeps for each of them: nothing (SGD), one number (momentum) or two (AdamW).


# %% given_machine
class Machine(NamedTuple):
    """What a calibration makes of a machine, beside the operators."""

    overhead_s: float  # around each operator of a program
    slowdown: float  # of operators in a program
    latency_s: float  # of a message between two ranks
    bytes_per_s: float  # of a link
    save_floor_s: float
    write_bytes_per_s: float


class Program(NamedTuple):
    """A training program as one of its ranks runs it."""

    operators: list  # of one step: name, flops, bytes of each
    num_ranks: int
    num_parameters: int  # in float32
    num_states: int  # numbers that the optimizer keeps for each parameter


# %% prediction tags=["solution"]
def step_s(program: Program, machine: Machine, alone_s) -> float:
    """Seconds of a training step: its operators in a program, then the gradients' all-reduce.

    - Each operator takes machine.overhead_s + machine.slowdown · alone_s(name, flops, size_bytes).
    - A gradient has 4 bytes for each parameter. It calls your `all_reduce_s`.
    """
    ### BEGIN SOLUTION
    alone = sum(alone_s(*one) for one in program.operators)
    work_s = machine.overhead_s * len(program.operators) + machine.slowdown * alone
    size_bytes = 4 * program.num_parameters
    link = machine.latency_s, machine.bytes_per_s
    return work_s + all_reduce_s(size_bytes, program.num_ranks, *link)
    ### END SOLUTION


def save_s(program: Program, machine: Machine) -> float:
    """Seconds of one rank's checkpoint of all parameters and all of the optimizer's states.

    Example: 1e6 parameters with AdamW are 12e6 bytes.
    """
    ### BEGIN SOLUTION
    size_bytes = 4 * program.num_parameters * (1 + program.num_states)
    return machine.save_floor_s + size_bytes / machine.write_bytes_per_s
    ### END SOLUTION


# %% check_prediction points=2
def check_prediction():
    machine = Machine(1e-5, 1.5, 1e-4, 1e9, 2e-3, 5e8)
    ring = {"all_reduce_s": lambda size, n, latency_s, rate: (n - 1) * (latency_s + size / rate)}
    with patch.dict(globals(), ring):
        for num_ranks, wanted_ms in ((1, 3.025), (2, 7.125), (3, 11.225)):
            program = Program([["mm", 1e6, 1e5], ["add", 0, 1e5]], num_ranks, 1_000_000, 2)
            given_ms = 1e3 * step_s(program, machine, lambda *one: 2e-3 if one[1] else 3.333e-6)
            hint = "Around each operator, 1.5 times each of them, and the gradients' all-reduce."
            expect_close(given_ms, wanted_ms, f"ms of a step, world size {num_ranks}", hint, 1e-3)
    for num_states, wanted_ms in ((0, 10.0), (1, 18.0), (2, 26.0)):
        program = Program([], 1, 1_000_000, num_states)
        hint = "4 bytes of each parameter, and 4 of each state of the optimizer."
        what = f"ms of a save, states of the optimizer: {num_states}"
        expect_close(1e3 * save_s(program, machine), wanted_ms, what, hint, 1e-3)
    print("step_s, save_s: on 1, 2 and 3 ranks; with SGD, momentum and AdamW.")


check_prediction()

# %% [markdown]
# ## 7. Your own error bar
#
# How far off will a fit be at a size that was not measured? Not as far as it is at those that it
# has seen: a fit that only looks up its probes is never off there. So leave a probe out, fit the
# others, predict the one that you left out, and do so with each of them.
#
# Probes of the same work leave together, or the fit has seen a twin of the one that it is asked
# for. So the rows that your function gets are already merged: of products, for example, there is
# one row for each pair of flops and bytes.
#
# <details><summary>Hint: how</summary>
#
# `rows[:place] + rows[place + 1:]` are the others.
#
# </details>


# %% left_out_error tags=["solution"]
def left_out_error(rows: list[dict], fit) -> float:
    """The median of the relative errors at probes that a fit has not seen.

    - `fit(rows)` gives a function from a probe to its predicted seconds.
    - Each probe in turn is predicted by a fit of all the others. Its error is |predicted / best_s -
      1|.
    - No two rows are of the same work. The rows stay as they are; the fit is not called with all of
      them.

    Example: of 3 probes of 1, 2 and 4 s, and a fit that always predicts the mean of those that it
    was given, the errors are 2, 0.25 and 0.625: it is 0.625.
    """
    ### BEGIN SOLUTION
    errors = []
    for place, one in enumerate(rows):
        predict_s = fit(rows[:place] + rows[place + 1 :])
        errors.append(abs(predict_s(one) / best_s(one["times_s"]) - 1))
    return median(errors)
    ### END SOLUTION


# %% check_left_out_error points=2
def check_left_out_error():
    def by_mean(rows):
        mean_s = fmean(min(one["times_s"]) for one in rows)
        return lambda one: mean_s

    def by_heart(rows):
        known = {one["size_bytes"]: min(one["times_s"]) for one in rows}
        return lambda one: known.get(one["size_bytes"], 9.0)

    with patch.dict(globals(), best_s=min):
        rows = [probe(time_s, size_bytes=time_s) for time_s in (1.0, 2.0, 4.0)]
        hint = "Fit all the others, and predict the one that you left out."
        given = left_out_error(rows, by_mean)
        expect_close(given, 0.625, "the error of a fit by the mean", hint, 1e-6)
        hint = "A fit must not have seen the probe that it is asked for."
        given = left_out_error(rows, by_heart)
        expect_close(given, 3.5, "the error of a fit that learns by heart", hint, 1e-6)
    print("left_out_error: each probe by a fit of the others.")


check_left_out_error()

# %% [markdown]
# ## 8. All of it together
#
# `measured` holds the probes of a machine, by kind, as `ws.calibrate(2).measured` does. Put your
# functions together: operators alone from "products" and "passes", what they take in a program from
# "phases", a link from "links" (all-reduces among **two** ranks), saves from "write". The program
# may have any number of ranks.
#
# <details><summary>Hint: how</summary>
#
# Define `alone_s(name, flops, size_bytes)` inside: a product if it has flops, otherwise a pass.
# Hand it to `in_program` and to `step_s`.
#
# </details>


# %% predict tags=["solution"]
def predict(measured: dict[str, list[dict]], program: Program) -> tuple[float, float]:
    """Seconds of a training step, and of a checkpoint, of a program on a machine of these probes.

    - `measured` has "products", "passes", "phases", "links" among two ranks, and "write": probes as
      in the parts above. It has other kinds, too. Of every probe the shortest time counts, also of
      saves, of which one may be an outlier, as in part 2.
    - An operator with flops is a product, whatever its name.
    - One and a half points: on a made-up machine, with correct versions of your other functions,
      both are at most 5% off the seconds that follow from the machine's numbers.
    - One and a half points: on the machine that judges, with your functions alone, the mean error
      of the steps of several programs on one rank, which the judge timed together with the probes.
      All: at most 1.25 times the error of the judge's own model in the same minute, and 10
      percentage points more. None: the error of a model with one rate for all operations and one
      for all bytes. The error of a program counts as 100% at most.
    - It takes at most 3 seconds of computing time for ten programs.
    """

    ### BEGIN SOLUTION
    def alone_s(name, flops, size_bytes):
        if flops:
            return product_s(measured["products"], flops, size_bytes)
        return pass_s(measured["passes"], name, size_bytes)

    write = [(one["size_bytes"], best_s(one["times_s"])) for one in measured["write"]]
    numbers = in_program(measured["phases"], alone_s), alpha_beta(measured["links"], 2), line(write)
    machine = Machine(*itertools.chain(*numbers))
    return step_s(program, machine, alone_s), save_s(program, machine)
    ### END SOLUTION


# %% check_predict points=3
def of_products(num, name="mm"):
    """Three of the products that were measured, several times each."""
    return [
        [name, one["flops"], one["size_bytes"]]
        for place in (0, 5, 17)
        for one in [MADE_UP["products"][place]] * num
    ]


def check_predict():
    mixed = programs([40])[0] + programs([200])[0]
    which = "Operators alone, in a program, then the link: which part is off?"
    for kind, operators, num_ranks, hint in (
        ("products", of_products(10), 1, "Is each priced by `product_s`, and in a program?"),
        ('products named "linear"', of_products(10, "linear"), 1, "With flops it is a product."),
        ("add", [["add", 0, 4e5]] * 30, 1, "Is each priced by `pass_s`, and in a program?"),
        ("gelu", [["gelu", 0, 4e5]] * 30, 1, "Is each pass priced by its own name?"),
        ("small passes", [["gelu", 0, 1024]] * 30, 1, "Each operator has its overhead."),
        *(("products and passes", mixed, num_ranks, which) for num_ranks in (1, 2, 4)),
    ):
        given = predict(MADE_UP, Program(operators, num_ranks, 2_000_000, 1))
        message_s = 80e-6 + 8e6 / num_ranks / 1e9
        alone = sum(true_alone_s(*one) for one in operators)
        wanted_s = len(operators) * 10e-6 + 1.3 * alone + 2 * (num_ranks - 1) * message_s
        what = f"ms of a step of the made-up machine ({kind}), world size {num_ranks}"
        expect_close(1e3 * given[0], 1e3 * wanted_s, what, hint, 0.12)
        hint = 'The floor and the rate of "write", by the shortest times.'
        expect_close(1e3 * given[1], 43.0, "ms of a save on the made-up machine", hint, 0.05)
    print("predict: steps of products and of passes, and saves, on 1, 2 and 4 ranks.")


check_predict()

# %% [markdown]
# ## Your machine
#
# Now the same on the machine that you have. `ws.calibrate` measures it for about 10 seconds; two
# ranks run at the same time. The picture shows **your** fits over its probes. Nothing here is
# graded.
#
# The first line below says how busy other programs keep the machine. If they do, messages and files
# take longer than they would on an idle one: close what you can, and run the cell again.
#
# Then look at the products: where your marks are not on the dots, your model does not know
# something. With files, look at how far the median time is above the best: on a disk that is
# shared with others no constant is right, which is why your machine predicts steps and no saves.

# %% my_machine
machine = ws.calibrate(2, budget_s=4)
print(machine.busy_in_words())


def one_row_each(rows):
    """One row for each work, with the times of all its probes: they leave together."""
    found = {}
    for one in rows:  # two digits of the bytes, because a bias adds few
        work = one.get("flops") or one.get("name"), f"{one['size_bytes']:.1e}"
        found.setdefault(work, {**one, "times_s": []})["times_s"].extend(one["times_s"])
    return list(found.values())


def fits_over_probes():
    """Your fits over the probes of this machine, and how far off they are at probes left out."""
    measured = machine.measured
    latency_s, bytes_per_s = alpha_beta(measured["links"], 2)

    def of_product(rows):
        return lambda one: product_s(rows, one["flops"], one["size_bytes"])

    def of_pass(rows):
        return lambda one: pass_s(rows, one["name"], one["size_bytes"])

    def of_link(rows):
        link = alpha_beta(rows, 2)
        return lambda one: all_reduce_s(one["size_bytes"], 2, *link)

    def of_save(rows):
        floor_s, rate = line([(one["size_bytes"], best_s(one["times_s"])) for one in rows])
        return lambda one: floor_s + one["size_bytes"] / rate

    kinds = {"products": of_product, "passes": of_pass, "links": of_link, "write": of_save}
    for kind, fit in kinds.items():
        rows = measured[kind]
        spread = median(spread_fraction(one["times_s"]) for one in rows)
        off = left_out_error(one_row_each(rows), fit)
        print(
            f"{kind}: half of them within {off:.0%} when left out; "
            f"the median time is {spread:.0%} above the best"
        )
    return machine.draw(
        product_s=lambda flops, size_bytes: product_s(measured["products"], flops, size_bytes),
        pass_s=lambda name, size_bytes: pass_s(measured["passes"], name, size_bytes),
        message_s=lambda size_bytes: all_reduce_s(size_bytes, 2, latency_s, bytes_per_s),
    )


fits_over_probes()

# %% [markdown]
# And programs that were not measured: networks on one rank and on two, with SGD and AdamW. The
# best of some steps stands for each.
#
# Then add a cell below, and call `beside_runs` with sizes of your own, such as
# `beside_runs((1, 1024, 2, 16, False))`. Find a program for which you are far off: what does it do
# that no probe did?


# %% held_out
def held_out(width, num_layers, batch, is_adamw, num_times):
    """The operators of one step on this rank, its parameters, and the seconds of every step."""
    import time

    from worldsize.calibrate.probes import operators_of

    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = [
        layer
        for _ in range(num_layers)
        for layer in (torch.nn.Linear(width, width), torch.nn.ReLU())
    ]
    model, x = torch.nn.Sequential(*layers), torch.randn(batch, width)
    kind = torch.optim.AdamW if is_adamw else torch.optim.SGD
    optimizer = kind(model.parameters(), lr=1e-3)

    def step(network):
        optimizer.zero_grad()
        network(x).square().mean().backward()
        optimizer.step()

    step(model)
    operators = operators_of(lambda: step(model))
    network = model
    if dist.get_world_size() > 1:
        network = torch.nn.parallel.DistributedDataParallel(model)
    times_s = []
    for _ in range(num_times):
        dist.barrier()
        start_s = time.perf_counter()
        step(network)
        times_s.append(time.perf_counter() - start_s)
    return operators, sum(one.numel() for one in model.parameters()), times_s[2:]


def beside_runs(*programs):
    """Your predictions beside runs of this machine: ranks, width, layers, batch, AdamW of each."""
    from worldsize import draw

    rows = []
    for num_ranks, *sizes, is_adamw in programs:
        options = {"world_size": num_ranks, "backend": "gloo", "echo": False}
        ranks = ws.run(held_out, *sizes, is_adamw, 14, **options).values
        operators, num_parameters, _ = ranks[0]
        measured_s = min(map(max, zip(*(times_s for _, _, times_s in ranks), strict=True)))
        program = Program(operators, num_ranks, num_parameters, 2 if is_adamw else 0)
        predicted_s, _ = predict(machine.measured, program)
        width, num_layers, batch = sizes
        rows.append({
            "run": f"{num_layers} layers {width} wide, batch {batch}",
            "ranks": num_ranks,
            "optimizer": "AdamW" if is_adamw else "SGD",
            "measured_s": measured_s,
            "yours_s": predicted_s,
            "off_fraction": predicted_s / measured_s - 1,
        })  # fmt: skip
    return draw.table(rows, title="Steps of this machine, measured and as you predict them")


beside_runs(
    (1, 256, 3, 64, False),
    (1, 384, 3, 128, True),
    (2, 384, 3, 64, False),
    (2, 768, 2, 128, False),
)
