"""Layouts chosen by published runs, to be compared with all plans, priced with the judge's cost model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import worldsize as ws
from autograder.capstone.step_times import StepTimes, megatron_2021_bytes
from worldsize import hardware
from worldsize.models import Shape, shape
from worldsize.planning import Plans


@dataclass(frozen=True)
class Chosen:
    """A run: its model, cluster and batch, the layout it chose, and what its software had to choose from."""

    name: str
    model: Shape
    cluster: str
    global_batch: int
    layout: Mapping[str, int]
    had: Mapping[str, Any]
    length: int | None = None
    is_megatron_2021: bool = False

    def plans(self, *, by_serial_time: bool = False, **choices: Any) -> Plans:
        """The plans that the run's software could choose from, or those of `choices`, by a judge or the serial time."""
        cluster = hardware.cluster(self.cluster)
        is_theirs = self.is_megatron_2021 and not choices
        cost = StepTimes(self.model, cluster, gradient_bytes=4, overlaps=False) if is_theirs else None
        return ws.plan(
            self.model,
            cluster,
            None if by_serial_time else cost or StepTimes(self.model, cluster),
            global_batch=self.global_batch,
            length=self.length,
            memory=megatron_2021_bytes if is_theirs else None,
            **(choices or self.had),
        )


def _narayanan(
    name: str, model: Shape, num_gpus: int, global_batch: int, tp: int, pp: int, num_chunks: int | None = None
) -> Chosen:
    """A row of Narayanan et al. 2021, arXiv 2104.04473: full recomputation, no ZeRO, no context parallelism.

    `num_chunks` is given where the row did not interleave.
    """
    had = {"recompute": "full", "zero_stage": 0, "cp": 1} | ({"num_chunks": num_chunks} if num_chunks else {})
    layout = {"tp": tp, "pp": pp, "cp": 1}
    return Chosen(name, model, f"a100-hdr-x{num_gpus // 8}", global_batch, layout, had, is_megatron_2021=True)


def _gpt(num_layers: int, width: int, num_heads: int) -> Shape:
    sizes = {"num_layers": num_layers, "width": width, "num_heads": num_heads, "num_kv_heads": num_heads}
    return replace(shape("gpt-1t"), name=f"gpt of {num_layers} layers", **sizes, hidden_width=4 * width)


_GPT_3 = replace(shape("gpt-3-175b"), vocab_size=51_200)  # padded, as they trained it
_LLAMA = {"layout": {"tp": 8, "pp": 16, "cp": 1}, "had": {"cp": 1}}  # Llama Team 2024, table 4; 8,192 tokens need no cp

TRILLION = _narayanan("1T, 3,072 A100", shape("gpt-1t"), 3072, 3072, 8, 64, num_chunks=1)
LLAMA_3 = Chosen("Llama 3 405B, 16,384 H100", shape("llama-3-405b"), "h100-pods-x2048", 2048, **_LLAMA)
CHOSEN = [
    _narayanan("1.7B, 32 A100", _gpt(24, 2304, 24), 32, 512, 1, 1),
    _narayanan("3.6B, 64 A100", _gpt(30, 3072, 32), 64, 512, 2, 1),
    _narayanan("7.5B, 128 A100", _gpt(36, 4096, 32), 128, 512, 4, 1),
    _narayanan("18B, 256 A100", _gpt(40, 6144, 48), 256, 1024, 8, 1),
    _narayanan("39B, 512 A100", _gpt(48, 8192, 64), 512, 1536, 8, 2),
    _narayanan("76B, 1,024 A100", _gpt(60, 10240, 80), 1024, 1792, 8, 4),
    _narayanan("145B, 1,536 A100", _gpt(80, 12288, 96), 1536, 2304, 8, 8),
    _narayanan("310B, 1,920 A100", _gpt(96, 16384, 128), 1920, 2160, 8, 16),
    _narayanan("530B, 2,520 A100", _gpt(105, 20480, 128), 2520, 2520, 8, 35),
    TRILLION,
    # table 2 of the same: model-parallel size 96, of which tp 8 is our reading; interleaving is not stated
    _narayanan("175B, 384 A100", _GPT_3, 384, 1536, 8, 12),
    _narayanan("175B, 768 A100", _GPT_3, 768, 1536, 8, 12),
    _narayanan("175B, 1,536 A100", _GPT_3, 1536, 1536, 8, 12),
    Chosen("Llama 3 405B, 8,192 H100", shape("llama-3-405b"), "h100-pods-x1024", 2048, **_LLAMA),
    LLAMA_3,
]
ANYTHING = {"zero_stage": (0, 1, 2, 3)}  # restricts nothing
