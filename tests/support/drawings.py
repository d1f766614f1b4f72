"""One small drawing of every kind of picture: what the image tests compare and the export tests carry."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache

from nbformat import NotebookNode, v4

from worldsize import draw, hardware, units
from worldsize.audit.report import Audit
from worldsize.draw import Picture
from worldsize.ledger import Entry, PredictionTable
from worldsize.memory import Holding, MemoryUse
from worldsize.timeline import Event, Timeline


def bytes_by_axis() -> Picture:
    """Three ranks of a mesh, the last of which also sends in a group that is not along it."""
    along = {
        (0, "tp 3"): 60e6,
        (0, "dp 5"): 20e6,
        (1, "tp 3"): 60e6,
        (2, "tp 4"): 40e6,
        (2, "dp 5"): 30e6,
        (2, "0"): 9e6,
    }
    events = [
        Event(rank, "communication", "communication", "all_reduce", 0.0, 1.0, 0, size_bytes, (0, 1, 2), group)
        for (rank, group), size_bytes in along.items()
    ]
    return draw.bytes_by_axis(Timeline.of_events(events), "One step on a mesh")


def chunks() -> Picture:
    """Four ranks halve their tensor in pairs, and halve the halves."""
    start = [[{rank}] * 4 for rank in range(4)]
    halves = [[{0, 1}, {0, 1}, {0}, {0}], [{1}, {1}, {0, 1}, {0, 1}], [{2, 3}, {2, 3}, {2}, {2}]]
    halves.append([{3}, {3}, {2, 3}, {2, 3}])
    quarters = [[set(ranks) for ranks in row] for row in halves]
    for rank, chunk in enumerate((0, 2, 1, 3)):
        quarters[rank][chunk] = {0, 1, 2, 3}
    return draw.chunks({"start": start, "halves": halves, "quarters": quarters}, "A reduce-scatter of four chunks")


def circle() -> Picture:
    """A clock's hands at four, and the way from one to the other."""
    hours = {f"{hour}": math.radians(90 - 30 * hour) for hour in (12, 2, 4)}
    return draw.circle(hours, [("", "12"), ("", "4"), ("12", "4")], "Four o'clock")


def shares() -> Picture:
    """Where the time of a design goes, from most to least."""
    return draw.shares({"kernels": 0.62, "failures": 0.2, "bubble": 0.12, "messages": 0.06}, "Where the time goes")


def differences() -> Picture:
    """A bias that was unfrozen too late: its gradient differs from step 2 on, and so it does after that step."""
    weights = {"weight": {1: 0.0, 2: 1e-7, 3: 0.0}, "bias": {1: 0.0, 2: 0.0, 3: 0.3}}
    gradients = {"weight": {1: 0.0, 2: 0.0}, "bias": {2: 1.4}}
    return draw.differences(Audit((), 4, 2, differences={"weights": weights, "gradients": gradients}))


def memory() -> Picture:
    """Four ranks whose stages keep fewer activations the later they are; the first does not fit."""
    stay = {"weights": 14e9, "gradients": 14e9, "optimizer state": 28e9}
    parts = {f"rank {rank}": {**stay, "activations": (4 - rank) * 7e9} for rank in range(4)}
    return draw.memory(parts, 80e9, "Four stages, computed", "one H100")


def memory_over_time() -> Picture:
    """Two stages of a pipeline with four micro-batches, one forward before one backward."""
    stages = {"stage 0": [(0, 3), (1, 4), (5, 8), (7, 10)], "stage 1": [(1, 3), (3, 5), (5, 7), (7, 9)]}
    parts = {}
    for stage, lives in stages.items():
        changes = [change for start, end in lives for change in ((start, 6e9), (end, -6e9))]
        parts[stage] = {"weights": [(0, 14e9)], "activations": draw.live_bytes(changes)}
    return draw.memory_over_time(parts, 30e9, "A pipeline's activations", "one device")


def memory_use() -> Picture:
    """A training step near the limit of its GPU."""
    sizes = {
        "weights": [4, 4, 4, 4, 4, 4],
        "gradients": [0, 0, 0, 2, 4, 0],
        "optimizer state": [8, 8, 8, 8, 8, 8],
        "activations": [0, 6, 12, 6, 0, 0],
    }
    held = {kind: [10**9 * size for size in row] for kind, row in sizes.items()}
    holdings = [
        Holding("optimizer state", "", "line 8: optimizer.step()", 8 * 10**9, 24),
        Holding("activations", "Mlp layers.0.mlp", "model.py line 5: return self.down(F.silu(self.up(x)))", 6 * 10**9),
    ]
    return draw.memory_use({"rank 0": MemoryUse([1, 20, 40, 60, 80, 100], held, holdings, 30 * 10**9)}, "One step")


def scaling() -> Picture:
    """One series, measured, with spread."""
    times_s = {1: [1.0, 0.98, 1.04], 2: [0.56, 0.55, 0.62], 4: [0.34, 0.33, 0.4], 8: [0.24, 0.22, 0.27]}
    return draw.scaling(times_s, "A small network, measured")


def scaling_of_several() -> Picture:
    """Measured, emulated and predicted side by side, to many ranks."""
    counts = (1, 2, 4, 8, 16, 32, 64)
    measured = {n: [0.03 + 0.97 / n, 0.032 + 1.05 / n, 0.03 + 0.94 / n] for n in counts[:4]}
    emulated = {n: [0.02 + 0.98 / n + 0.001 * (n - 1) ** 0.5] for n in counts}
    predicted = {n: [0.02 + 0.98 / n] for n in counts}
    series = {"measured": measured, "emulated": emulated, "predicted": predicted}
    return draw.scaling(series, "Three ways to know")


def cost() -> Picture:
    """Two algorithms as formulas, one of them measured too."""
    latency_s, bytes_per_s, num_ranks = 5e-6, 25e9, 16

    def ring(size_bytes: float) -> float:
        return 2 * (num_ranks - 1) * (latency_s + size_bytes / num_ranks / bytes_per_s)

    def tree(size_bytes: float) -> float:
        return 2 * 4 * (latency_s + size_bytes / bytes_per_s)

    measured = {"ring": {10.0**e: [ring(10.0**e) * f for f in (1.02, 1.1, 1.3)] for e in range(3, 10)}}
    return draw.cost({"ring": ring, "tree": tree}, (units.KB, units.GB), measured, "All-reduce of 16 ranks")


def mesh() -> Picture:
    """Sixteen ranks on two nodes, the tensor-parallel groups coloured."""
    return draw.mesh({"dp": 2, "pp": 2, "tp": 4}, "tp", 8, title="Sixteen ranks")


def scatter() -> Picture:
    """Three families on a logarithmic axis; two of the points are so near each other that a name has a line."""
    points = {
        "sharded": {"ZeRO 1": (62e9, 0.43), "ZeRO 3": (31e9, 0.39), "ZeRO 3, recomputed": (17e9, 0.31)},
        "tensor parallel": {"TP 2": (58e9, 0.41), "TP 8": (17.3e9, 0.318), "TP 8, sequence parallel": (16.6e9, 0.305)},
        "pipeline": {"GPipe": (76e9, 0.35), "1F1B": (40e9, 0.35)},
    }
    labels = {"x_label": "held_bytes", "y_label": "mfu_fraction"}
    return draw.scatter(points, title="Plans, computed", log="x", **labels)


def node() -> Picture:
    """A switch of NVLink, NICs, a network, PCIe switches and storage, and the way to a GPU of another node."""
    cluster = replace(hardware.H100_NDR, name="two-h100", gpus_per_node=2, nics_per_node=2, local_storage=None)
    return draw.node(cluster, ("gpu1", "node1.gpu0"))


def node_with_links() -> Picture:
    """GPUs joined in pairs, and a way over one of the links."""
    return draw.node("v100-quad", ("gpu0", "gpu2"))


def ledger() -> Picture:
    """Near, far, very far, and what cannot be compared."""
    entries = {
        "GPT-3 on one A100": Entry(12, 32, "years"),
        "memory of a 7.5B model": Entry(120, 120, "GB"),
        "speed-up of 2 ranks": Entry(1.9, 1.6),
        "time of an all-reduce of 1 GB over 16 GPUs of two nodes": Entry(1, 0.0047, "s"),
        "bubble of four stages": Entry(None, 0.27),
        "steps lost in a failure": Entry(0, 3),
        "bytes on the wire": Entry(1e12, 2e6, "B"),
        "failures a day": Entry(5, None),
    }
    return draw.ledger(PredictionTable(entries))


def curves() -> Picture:
    """Two losses that agree but for a rounding error, and the difference."""
    one = [2.3 * 0.9**step for step in range(30)]
    two = [loss + 1e-7 * (step % 3) for step, loss in enumerate(one)]
    return draw.curves({"1 rank": one, "2 ranks": two}, title="The same curve", difference_from="1 rank")


def overlapped(talk_s: float = 1.5) -> Timeline:
    """Two ranks and three buckets: each is reduced behind the next one's backward pass, the last behind nothing."""
    events = []
    for rank, late_s in ((0, 0.0), (1, 0.4)):
        events.append(Event(rank, "compute", "forward", "forward", 0, 2 + late_s))
        for bucket, start_s in enumerate((2 + late_s, 4 + late_s, 6 + late_s)):
            called_s = 4.4 + 2 * bucket
            events += [
                Event(rank, "compute", "backward", f"bucket {bucket}", start_s, start_s + 2),
                Event(rank, "communication", "communication", "all_reduce", called_s, called_s + talk_s, peers=(0, 1)),
            ]
        events.append(Event(rank, "wait", "wait", "all_reduce", 8 + late_s, 8.4 + talk_s))
        events.append(Event(rank, "compute", "update", "step", 8.4 + talk_s, 9 + talk_s))
    return Timeline.of_events(events)


def timeline() -> Picture:
    """Communication half behind work, half exposed, on a lane of its own."""
    return draw.timeline(overlapped(), "Three buckets")


def timelines() -> Picture:
    """The same on a slower link."""
    return draw.timelines({"predicted": overlapped(), "emulated": overlapped(2.4)})


def messages() -> Picture:
    """Two steps of a ring of four, then a collective."""
    names = [(rank, name, (rank + way) % 4) for rank in range(4) for name, way in (("send", 1), ("recv", -1))]
    events = [
        Event(rank, "communication", "communication", name, step, step + 1, 16_000, peers=(peer,))
        for step in range(2)
        for rank, name, peer in names
    ]
    events += [Event(rank, "communication", "communication", "barrier", 2, 3, peers=(0, 1, 2, 3)) for rank in range(4)]
    return draw.messages(Timeline.of_events(events), "Half a ring")


DRAWINGS: dict[str, Callable[[], Picture]] = {
    function.__name__: function
    for function in (
        timeline,
        timelines,
        messages,
        bytes_by_axis,
        chunks,
        differences,
        memory,
        memory_over_time,
        memory_use,
        scaling,
        scaling_of_several,
        cost,
        mesh,
        scatter,
        node,
        node_with_links,
        ledger,
        curves,
        circle,
        shares,
    )
}


@cache
def gallery() -> NotebookNode:
    """A notebook with a cell for each drawing, in their order, as its file holds it."""
    cells = []
    for name, drawing in DRAWINGS.items():
        output = v4.new_output("execute_result", data=drawing()._repr_mimebundle_(), execution_count=1)
        cells.append(v4.new_code_cell(f"{name}()", outputs=[output], execution_count=1))
    return v4.new_notebook(cells=cells)
