"""The answers of week 14's templates by other ways: bytes by shard, hours one by one, cables counted, chances added."""

from __future__ import annotations

from fractions import Fraction
from math import comb
from typing import Any

from quiz_oracles import oracle


@oracle("w14-zero-node")
def _(billions: int, nodes: int, micro: int) -> float:
    """A ring of nodes, a shard in each message, for each collective of each micro-batch."""
    shard = Fraction(2 * billions, nodes)
    sent = Fraction(0)
    for _ in range(micro):
        for _ in ("gather forward", "gather backward", "reduce-scatter"):
            for _ in range(nodes - 1):
                sent += shard
    return float(sent)


@oracle("w14-counted-alike")
def _(tflops: int, peak: int) -> float:
    """The passes of a step in units of a forward pass: what counts, of what was done."""
    passes = {"forward": (1, True), "again": (1, False), "backward": (2, True)}
    done = sum(work for work, _ in passes.values())
    own = sum(work for work, counts in passes.values() if counts)
    return float(Fraction(100 * tflops * own, peak * done))


@oracle("w14-all-there")
def _(nodes: int, up: int, away: int) -> float:
    """What is left when the chances of one, two and more nodes away are taken from 1."""
    gone = Fraction(away, up + away)
    some = sum(comb(nodes, num) * gone**num * (1 - gone) ** (nodes - num) for num in range(1, nodes + 1))
    return float(100 * (1 - some))


@oracle("w14-switches")
def _(units: int, ports: int) -> dict[str, Any]:
    """Switches added until every cable from below has a port."""
    cables, counts = units * ports, []
    for down in (ports // 2, ports // 2, ports):
        switches = 0
        while switches * down < cables:
            switches += 1
        counts.append(switches)
    return {"leaves": counts[0], "total": sum(counts)}


@oracle("w14-energy")
def _(hours: int, watts: int, pue: int, grams: int) -> dict[str, Any]:
    """Joules of the GPUs and of the building, and grams of each kilowatt-hour."""
    joules = hours * 10**6 * 3600 * watts
    joules += Fraction(joules * (pue - 100), 100)
    kwh = joules / 3_600_000
    return {"energy": float(kwh / 10**6), "tonnes": float(kwh * grams / 10**6)}


@oracle("w14-own-or-rent")
def _(thousands: int, years: int, yearly: int, cents: int) -> float:
    """The rent of busy hours over the whole life of the node, beside what its owner pays in that time."""
    owner = 1000 * thousands + 1000 * yearly * years
    tenant = Fraction(8 * 8760 * years * cents, 100)
    return float(100 * owner / tenant)


@oracle("w14-hundred-steps")
def _(billions: int, steps: int, step: int, rate: float) -> dict[str, Any]:
    """Ten saves, and the training before each."""
    write = Fraction(billions * (2 + 4 + 4 + 4)) / Fraction(str(rate))
    saving = training = Fraction(0)
    for _ in range(10):
        training += steps * step
        saving += write
    return {"write": float(write), "part": float(100 * saving / (saving + training))}


@oracle("w14-replicas")
def _(each: int, num: int, gone: int, batch: int) -> dict[str, Any]:
    """Replicas filled node by node; micro-batches dealt to them in turn."""
    healthy, replicas = num * each - gone, 0
    while healthy >= each:
        healthy, replicas = healthy - each, replicas + 1
    dealt = [0] * replicas
    for number in range(batch):
        dealt[number % replicas] += 1
    return {"used": replicas * each, "most": max(dealt)}


@oracle("w14-open-chunks")
def _(stages: int, times: int, chunks: int) -> float:
    """When the last stage ends: it begins after one pass through the chunks of all others."""

    def end(parts: int) -> Fraction:
        piece, begin = Fraction(1, parts), Fraction(0)
        for _ in range(stages - 1):
            begin += piece
        return begin + sum(piece for _ in range(stages * times * parts))

    return float(end(1) / end(chunks))


@oracle("exam-design-days")
def _(tokens: int, batch: int, step: int, goodput: int, gpus: int, cents: int) -> dict[str, Any]:
    """Hours of training, of all hours, and each GPU's dollars."""
    num_steps = Fraction(tokens * 10**12, batch * 10**6)
    hours = num_steps * step / 3600 * 100 / goodput
    return {"days": float(hours / 24), "usd": float(hours * gpus * cents / 100 / 10**6)}


@oracle("exam-smallest-group")
def _(billions: int, room: int) -> dict[str, Any]:
    """Groups doubled until the states fit; shards sent on by a ring of nodes."""
    nodes = 1
    while 16 * billions > 8 * nodes * room:
        nodes *= 2
    sent = Fraction(0)
    for _ in range(3 * (nodes - 1)):
        sent += Fraction(2 * billions, nodes)
    return {"group": nodes, "sent": float(sent)}


@oracle("exam-site-power")
def _(tenths: int, pue: int, watts: int, share: int, cents: int) -> dict[str, Any]:
    """Nodes switched on one by one while the site carries them."""
    nodes = 0
    while (nodes + 1) * (watts + share) * pue <= tenths * 10**5 * 100:
        nodes += 1
    kwh = tenths * 100 * 8760
    return {"nodes": nodes, "usd": float(Fraction(kwh * cents, 100 * 10**6))}
