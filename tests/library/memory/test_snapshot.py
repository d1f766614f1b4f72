"""Snapshots of a GPU's memory, written by hand to torch's format, made by torch on the CPU and, on a GPU, for real."""

import os
import pickle
import re

import pytest
import torch
from torch.cuda import _memory_viz

from worldsize import draw
from worldsize.memory import of_snapshot, read_snapshot
from worldsize.memory.use import MAX_POINTS

LIBRARY = {"filename": "/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py", "line": 134, "name": "forward"}
NATIVE = {"filename": "??", "line": 0, "name": "at::native::empty_cuda(c10::IntArrayRef)"}
ENGINE = {"filename": "??", "line": 0, "name": "torch::autograd::Engine::thread_main(...)"}


def at(number, filename="/course/train.py"):
    """The frames of an allocation, innermost first, by a line of the program."""
    outer = {"filename": "/course/main.py", "line": 1, "name": "<module>"}
    return [NATIVE, LIBRARY, {"filename": filename, "line": number, "name": "step"}, outer]


def entry(action, addr, size, frames=(), **more):
    return {"action": action, "addr": addr, "size": size, "stream": 0, "frames": list(frames), "time_us": 1, **more}


def alloc(addr, size, frames=(), **more):
    return entry("alloc", addr, size, frames, **more)


def free(addr, size):
    return [entry("free_requested", addr, size), entry("free_completed", addr, size)]


def block(size, requested_size, state="active_allocated", frames=()):
    return {"size": size, "requested_size": requested_size, "state": state, "frames": list(frames)}


def segment(address, *blocks, device=0):
    sizes = {"total_size": sum(one["size"] for one in blocks), "stream": 0}
    return {"device": device, "address": address, "segment_type": "large", "blocks": list(blocks), **sizes}


def snapshot(*traces, segments=()):
    return {"segments": list(segments), "device_traces": [list(trace) for trace in traces]}


STEP = snapshot(
    [
        entry("segment_alloc", 0, 4096),
        alloc(0, 1000, at(10)),
        alloc(1024, 300, at(20)),
        alloc(1536, 300, at(20)),
        *free(1024, 300),
        alloc(1024, 500, [NATIVE, ENGINE]),
        entry("free_requested", 1536, 300),
        *free(3072, 700),  # it was there before the recording
    ],
    segments=[
        segment(
            0,
            block(1024, 1000, frames=at(10)),
            block(512, 500, frames=[ENGINE]),
            block(512, 300, "active_pending_free", at(20)),
            block(1024, 0, "inactive"),
            block(512, 0, "inactive"),
            block(512, 400, frames=at(5)),  # this too
        )
    ],
)


def test_bytes_are_told_apart_by_the_program_s_lines_over_the_allocator_s_operations():
    use = of_snapshot(STEP)
    assert use.operations == [0, 1, 2, 3, 4, 5, 6]
    assert use.sizes == {
        "train.py:10": [0, 1000, 1000, 1000, 1000, 1000, 1000],
        "before the recording": [700, 700, 700, 700, 700, 700, 0],
        "train.py:20": [0, 0, 300, 600, 300, 300, 300],
        "train.py:5": [400] * 7,
        "the backward pass": [0, 0, 0, 0, 0, 500, 500],
        "all others": [0] * 7,
    }
    assert use.most_bytes == 2900


def test_the_peak_is_explained_by_what_made_it():
    first, second, *_ = of_snapshot(STEP).holdings
    assert str(first) == "1.00 kB (train.py line 10)"
    assert (second.line, second.size_bytes, second.num_storages) == ("before the recording", 700, 1)
    assert (
        of_snapshot(STEP).explain().startswith("The peak is 2.90 kB: train.py:10 1.00 kB, before the recording 700 B")
    )


def test_what_is_held_at_the_end_is_what_torch_s_own_reader_counts():
    in_use = sum(of_snapshot(STEP).held.values())
    pending = 300  # released, and in use by another stream: torch's reader calls it free
    (counted,) = re.findall(r"total_allocated: (.*)B\n", _memory_viz.segsum(STEP))
    assert float(counted.removesuffix("Ki")) == pytest.approx((in_use - pending) / 1024, abs=0.05)
    sizes = [one["requested_size"] for one in STEP["segments"][0]["blocks"] if one["state"] != "inactive"]
    assert in_use == sum(sizes)


def test_a_line_of_this_machine_is_quoted():
    own = at(3, __file__)
    assert str(of_snapshot(snapshot([alloc(0, 8, own)])).holdings[0]) == "8 B (test_snapshot.py line 3: import os)"
    in_cell = of_snapshot(snapshot([alloc(0, 8, at(3, "/tmp/ipykernel_7/123.py"))]))
    assert (list(in_cell.sizes), in_cell.holdings[0].line) == (["cell:3", "all others"], "line 3")


def test_the_snapshot_s_own_words_come_before_lines():
    trace = [
        alloc(0, 10, at(1), category="parameter"),
        alloc(16, 20, at(2), user_metadata="key-value cache"),
        alloc(48, 30, at(3), category="unknown", user_metadata=""),
        *[alloc(100 * number, 40 + number, at(number)) for number in range(4, 8)],
    ]
    use = of_snapshot(snapshot(trace))
    assert list(use.sizes) == ["key-value cache", "weights", "train.py:7", "train.py:6", "train.py:5", "all others"]
    assert use.held == dict(zip(use.sizes, [20, 10, 47, 46, 45, 30 + 44], strict=True))
    assert [str(one) for one in use.holdings if one.kind] == [
        "key-value cache 20 B (train.py line 2)",
        "weights 10 B (train.py line 1)",
    ]


def test_one_device_is_read_and_of_several_the_one_that_is_named():
    used, unused = [alloc(0, 8)], []
    assert of_snapshot(snapshot(unused, used)).most_bytes == 8
    assert of_snapshot(snapshot(used, [alloc(0, 9)]), device=1).most_bytes == 9
    state = snapshot([], [], segments=[segment(0, block(512, 7), device=1)])
    assert of_snapshot(state).held == {"no line of the program": 7, "all others": 0}, "without a recorded history"
    with pytest.raises(ValueError, match="this snapshot has devices 0, 1: choose one"):
        of_snapshot(snapshot(used, used))
    with pytest.raises(ValueError, match="there is no device 2 in this snapshot; its devices are 0 to 1"):
        of_snapshot(snapshot(used, used), device=2)


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ({}, "Object missing required field `device_traces`"),
        (snapshot([]), "nothing was recorded on device 0: call torch.cuda.memory._record_memory_history"),
        (
            snapshot([{"action": "alloc", "addr": 0, "size": "8"}]),
            r"Expected `int`, got `str` - at `\$.device_traces\[0\]\[0\].size`",
        ),
        (snapshot([7]), "Expected `object`, got `int`"),
        (snapshot([alloc(0, 8, [7])]), "Expected `object`, got `int`"),
    ],
)
def test_what_is_not_a_snapshot_is_refused(broken, words):
    with pytest.raises(ValueError, match=words):
        of_snapshot(broken)


def test_of_a_long_recording_the_peak_and_the_end_are_kept():
    trace = [one for number in range(20_000) for one in (alloc(number, 8, at(1)), *free(number, 8))]
    trace[30_000:30_000] = [alloc(-1, 1000, at(2)), *free(-1, 1000)]
    use = of_snapshot(snapshot(trace))
    assert len(use.operations) <= MAX_POINTS and use.most_bytes == 1000
    assert (use.operations[-1], sum(use.held.values())) == (40_002, 0)


def test_a_snapshot_is_drawn_like_what_a_rank_s_tensors_held():
    picture = draw.memory_use({"GPU 0": of_snapshot(STEP)})
    assert "GPU 0 peaks at 2.90 kB, at operation 5" in picture.alt


def test_a_file_is_read_and_nothing_in_it_is_executed(tmp_path):
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(STEP))
    assert read_snapshot(path) == STEP

    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "executed"),)

    for data, words in [
        (pickle.dumps({"segments": [Evil()]}), "it asks for posix.mkdir, which a snapshot never holds"),
        (pickle.dumps([1]), "expected named fields, got a list"),
        (b"\x80\x04broken", "is not a snapshot of torch.cuda.memory: "),
        (b"", "is not a snapshot of torch.cuda.memory: "),
    ]:
        path.write_bytes(data)
        with pytest.raises(ValueError, match=words):
            read_snapshot(path)
    assert not (tmp_path / "executed").exists()
    with pytest.raises(FileNotFoundError):
        read_snapshot(tmp_path / "none")


def train(device):
    """Two steps of a small network; the bytes of its weights."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 8)).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        model(torch.randn(256, 64, device=device)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return sum(one.nbytes for one in model.parameters())


def test_what_torch_s_profiler_has_found_on_the_cpu_is_read():
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True, record_shapes=True, with_stack=True
    ) as profiler:
        size_bytes = train("cpu")
    use = of_snapshot(_memory_viz._profile_to_snapshot(profiler))
    assert use.peak["weights"] == max(use.sizes["gradients"]) == size_bytes
    assert max(use.sizes["optimizer state"]) == 2 * size_bytes + 4 * 4, "two moments, and a count for each parameter"
    assert max(use.sizes["activations"]) >= 256 * 512 * 4


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, whose allocator takes the snapshot")
def test_a_real_snapshot_has_the_allocator_s_own_peak():
    torch.cuda.memory._record_memory_history()
    try:
        torch.cuda.reset_peak_memory_stats()
        train("cuda")
        taken, counted = torch.cuda.memory._snapshot(), torch.cuda.memory_stats()
    finally:
        torch.cuda.memory._record_memory_history(None)
    use = of_snapshot(taken)
    assert use.most_bytes == counted["requested_bytes.all.peak"]
    assert sum(use.held.values()) == counted["requested_bytes.all.current"]
    assert any("optimizer.step()" in holding.line for holding in use.holdings)
