"""An estimate of a plan's memory on the fullest GPU: 16 bytes per parameter, and the activations in flight.

Gradients in float32 make it 18 bytes.
Left out: buffers of the communication library, fragmentation, and temporaries other than the logits. The catalogue's
GPUs have a few percent more memory than their data sheets' gigabytes, which roughly compensates.

Sources: Rajbhandari et al. 2020 (ZeRO), section 3; Korthikanti et al. 2022, arXiv 2205.05198, sections 4 and 5.
"""

from __future__ import annotations

from dataclasses import dataclass

from worldsize.models.shapes import Shape
from worldsize.planning.layout import Plan

# torchtitan's peaks (2024) over their estimates: how many there are, the least and the greatest; tests compute them
NUM_PEAKS, LEAST_PEAK, GREATEST_PEAK = 4, 1.09, 1.73
FITS = (  # what `fits` means
    f'"perhaps" fits: {NUM_PEAKS} measured peaks were {LEAST_PEAK} to {GREATEST_PEAK} times their estimates; '
    '"hardly": not even by the least.'
)
WEIGHT_BYTES, GRADIENT_BYTES, OPTIMIZER_BYTES = 2, 2, 12  # per parameter; 12: float32 weight and Adam's two moments
_LOGIT_BYTES = 2 + 4  # in the model's precision, and in float32 for the loss


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes on the GPU of a plan that holds most."""

    weights_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    activations_bytes: float

    @property
    def states_bytes(self) -> float:
        """All bytes except activations."""
        return self.weights_bytes + self.gradients_bytes + self.optimizer_bytes

    @property
    def total_bytes(self) -> float:
        return self.states_bytes + self.activations_bytes


def fits(held_bytes: float, capacity_bytes: float) -> str:
    """Whether a plan fits if its peak is to its estimate as measured peaks were to theirs: "yes", "perhaps", "hardly".

    "perhaps": some of the measured peaks would not have fitted; "hardly": none of them would.
    """
    if held_bytes * GREATEST_PEAK <= capacity_bytes:
        return "yes"
    return "perhaps" if held_bytes * LEAST_PEAK <= capacity_bytes else "hardly"


def margin(held_bytes: float, capacity_bytes: float) -> str:
    """Say that a plan fits by the estimate alone, if the least of the measured peaks would not; otherwise nothing."""
    if held_bytes * LEAST_PEAK <= capacity_bytes:
        return ""
    peaks = f"{NUM_PEAKS} measured peaks were {LEAST_PEAK} to {GREATEST_PEAK} times theirs"
    return f"fits by the estimate alone, {held_bytes / capacity_bytes:.0%} of a GPU's memory; {peaks}"


def held(plan: Plan, gradient_bytes: int = GRADIENT_BYTES) -> MemoryEstimate:
    """The bytes on the GPU that holds most: one of the first two stages, or of the last."""
    stages = sorted({0, min(1, plan.pp - 1), plan.pp - 1})
    by_layer, at_work = _layer_bytes(plan)
    found = [_of_stage(plan, stage, by_layer, at_work, gradient_bytes) for stage in stages]
    return max(found, key=lambda one: one.total_bytes)


def _of_stage(plan: Plan, stage: int, layer_bytes: float, at_work_bytes: float, gradient_bytes: int) -> MemoryEstimate:
    experts = plan.num_expert_parameters(stage)
    dense = plan.num_parameters(stage) - experts

    def sharded(size_bytes: int, needed_stage: int) -> float:
        if plan.zero_stage < needed_stage:
            return size_bytes * (dense + experts)
        return size_bytes * (dense / plan.num_shards + experts / plan.num_expert_shards)

    weights, gradients, optimizer = sharded(WEIGHT_BYTES, 3), sharded(gradient_bytes, 2), sharded(OPTIMIZER_BYTES, 1)
    if plan.zero_stage >= 3:
        weights += 2 * WEIGHT_BYTES * plan.num_layer_parameters  # the gathered layer, and the prefetched next one
    if plan.zero_stage >= 2:
        gradients += gradient_bytes * plan.num_layer_parameters  # of the layer whose gradients are being reduced
    num_kept = plan.num_stage_layers[stage] * num_in_flight(plan, stage)
    activations = num_kept * layer_bytes + at_work_bytes
    if stage == plan.pp - 1:
        activations += plan.num_micro_batch_tokens * plan.model.vocab_size * _LOGIT_BYTES / plan.tp
    return MemoryEstimate(weights, gradients, optimizer, activations)


def num_in_flight(plan: Plan, stage: int) -> float:
    """Return the micro-batches in flight on a stage, in 1F1B or, with several chunks, in interleaved 1F1B.

    Source: Narayanan et al. 2021, arXiv 2104.04473, section 2.2; warm-up as in Megatron-LM (2024), schedules.py.
    """
    if plan.num_chunks == 1:
        return min(plan.num_micro_batches, plan.pp - stage)
    num_chunks_kept = 2 * (plan.pp - stage - 1) + (plan.num_chunks - 1) * plan.pp + 1
    return min(plan.num_micro_batches, num_chunks_kept / plan.num_chunks)


def _layer_bytes(plan: Plan) -> tuple[float, float]:
    """Return the bytes that a layer keeps per micro-batch, and those of the layer that is being recomputed."""
    model, num_tokens = plan.model, plan.num_micro_batch_tokens
    whole = model.layer_activation_bytes(plan.micro_batch, plan.length) / (plan.cp * plan.tp)
    if plan.recompute == "none":
        return whole, 0.0
    if plan.recompute == "full":
        return 2 * model.width * num_tokens / plan.tp, whole
    dropped = _selective_bytes(model, plan.length) * num_tokens / plan.tp
    return whole - dropped, dropped


def _selective_bytes(model: Shape, length: int) -> int:
    """Return the bytes per token and layer that selective recomputation does not keep."""
    if model.family == "gpt":
        return (2 + 1 + 2) * model.num_heads * length  # softmax's output, the dropout's mask and its output
    norms = 2 * 2 * model.width
    activation = 2 * 2 * model.num_active_experts * model.hidden_width  # SiLU of the gate, and the product
    return norms + activation
