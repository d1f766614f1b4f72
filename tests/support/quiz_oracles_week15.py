"""The answers of week 15's templates by other ways: ranks one by one, triples counted, bytes of tensors added up."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

from quiz_oracles import oracle


@oracle("w15-sum-for-mean")
def _(ranks: int, thousandths: int) -> float:
    """The step of a weight with the sum, over the mean gradient."""
    gradients = [Fraction(rank + 1, 7) for rank in range(ranks)]
    step = sum(Fraction(thousandths, 1000) * one for one in gradients)
    return float(step / (sum(gradients) / ranks))


@oracle("w15-blind-loss")
def _(ranks: int, tenths: int) -> float:
    """A loss s² of the mean s of a_r = theta x_r: each rank's own term, averaged, against the true slope."""
    xs = [Fraction(rank + 2) for rank in range(ranks)]
    mean = sum(xs) / ranks
    own_terms = [2 * mean * x / ranks for x in xs]
    averaged, true = sum(own_terms) / ranks, 2 * mean * mean
    return float(averaged / true * tenths / 10)


@oracle("w15-noise")
def _(distinct: int, copies: int) -> float:
    """Roots of the sums of the squared weights that independent batches have in the average."""
    ranks = distinct * copies
    weights = [sum(1 / ranks for rank in range(ranks) if rank % distinct == batch) for batch in range(distinct)]
    return math.sqrt(sum(one**2 for one in weights) / sum((1 / ranks) ** 2 for _ in range(ranks)))


@oracle("w15-token-weight")
def _(short: int, long: int) -> float:
    """The slope of a mean of means in one token's loss, over that of the mean of all."""
    losses = [[Fraction(0)] * short, [Fraction(0)] * long]
    losses[0][0] = Fraction(1)
    mean_of_means = sum(sum(of_rank) / len(of_rank) for of_rank in losses) / 2
    together = [*losses[0], *losses[1]]
    return float(mean_of_means / (sum(together) / len(together)))


@oracle("w15-epsilon")
def _(tenths: int, factor: int) -> float:
    """Two AdamW updates after many steps of one gradient, with and without the factor."""

    def update(gradient: float, epsilon: float = 1e-8) -> float:
        first = second = 0.0
        for _ in range(20_000):
            first += 0.1 * (gradient - first)
            second += 0.001 * (gradient**2 - second)
        return first / (math.sqrt(second) + epsilon)

    return update(factor * tenths * 1e-9) / update(tenths * 1e-9)


@oracle("w15-seeds")
def _(epochs: int, ranks: int, workers: int) -> int:
    return len({e + r + w for e, r, w in product(range(epochs), range(ranks), range(workers))})


@oracle("w15-norms")
def _(first_tenths: int, second_tenths: int) -> float:
    """The norm of a vector with a shard of each norm, both spread over four elements."""
    shards = [[tenths / 20] * 4 for tenths in (first_tenths, second_tenths)]
    return math.dist([0.0] * 8, [*shards[0], *shards[1]])


@oracle("w15-digests")
def _(layers: int, ranks: int) -> float:
    """Every digest that arrives at rank 0, in kilobytes."""
    names = [f"layer {layer}.{tensor}" for layer in range(layers) for tensor in range(9)]
    names += ["embedding", "norm", "head"]
    received = [8 for rank in range(ranks) for _ in names if rank != 0]
    return sum(received) / 1000
