"""What an audit costs: the CPU time of a training step with it over that without, in one run of each."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from figures import Figure, scaled
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import worldsize as ws

_WIDTH, _NUM_LAYERS, _VOCABULARY = 512, 8, 1000  # 26.2 million parameters
_STEPS, _EVERY = 6, 20
_MOST, _MOST_EVERY = 2.0, 1.1


def auditing(scale: float) -> Iterator[Figure]:
    """Steps of a Transformer under DDP on one rank, with AdamW: without an audit, with one, and with one at times."""
    num_layers = scaled(_NUM_LAYERS, scale)
    step_s = {}
    for name, audit, num_steps in (("none", False, _STEPS), ("all", True, _STEPS), ("some", _EVERY, 2 * _EVERY + 1)):
        run = ws.run(_train, num_layers, num_steps, world_size=1, audit=audit, echo=False, timeout_s=600)
        step_s[name] = _mean_s(run.values[0], _EVERY if name == "some" else 1)
        assert run.audit is None or not run.audit.findings
    how = f"CPU time of a step over that without an audit, {num_layers} layers of {_WIDTH}, 4 x 128 tokens"
    ratio = step_s["all"] / step_s["none"]
    yield Figure("audit of every step", ratio, "x", f"{_MOST} x", ratio <= _MOST, how)
    ratio = step_s["some"] / step_s["none"]
    yield Figure(f"audit of every {_EVERY}th step", ratio, "x", f"{_MOST_EVERY} x", ratio <= _MOST_EVERY, how)


def _mean_s(times_s: list[float], every: int) -> float:
    """The mean step, of the median of those with an audit and the median of the others."""
    audited = statistics.median(times_s[every::every])  # without the first, which allocates
    if every == 1:
        return audited
    others = [time_s for number, time_s in enumerate(times_s[1:], start=1) if number % every]
    return (audited + (every - 1) * statistics.median(others)) / every


def _train(num_layers: int, num_steps: int) -> list[float]:
    """The CPU seconds of each step."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = [nn.TransformerEncoderLayer(_WIDTH, 8, 4 * _WIDTH, 0.0, batch_first=True) for _ in range(num_layers)]
    model = nn.Sequential(nn.Embedding(_VOCABULARY, _WIDTH), *layers, nn.Linear(_WIDTH, _VOCABULARY))
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-4)
    times_s = []
    for _ in range(num_steps):
        tokens = torch.randint(_VOCABULARY, (4, 128))
        start_s = time.process_time()
        optimizer.zero_grad()
        F.cross_entropy(ddp(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
        times_s.append(time.process_time() - start_s)
    return times_s
