"""The judge's cost model of a plan: the seconds of a step in kernels, collectives and the pipeline's bubble.

`worldsize.operators` prices work and `worldsize.pricing` messages; groups that communicate at once share NICs and the
network. Tensor, context and expert parallelism wait for every collective, and stages for every message between them;
summing gradients and gathering weights overlaps with the work of micro-batches where the schedule allows it. Experts
get equally many tokens. No constant is fitted.

Sources: Narayanan et al. 2021, arXiv 2104.04473, equation 1 and section 2.2; Korthikanti et al. 2022, arXiv 2205.05198,
section 4 (sequence parallelism); Llama Team 2024, arXiv 2407.21783, section 3.3.2 (keys and values gathered over cp).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache

from worldsize.capstone import Design
from worldsize.hardware import Cluster
from worldsize.models import Shape
from worldsize.operators import Operator, time_s
from worldsize.planning import Plan
from worldsize.planning.layout import beside
from worldsize.planning.memory_estimate import num_in_flight
from worldsize.planning.search import Cost
from worldsize.pricing import price

_BYTES = 2  # bytes of a number in bfloat16 or float16
# the state of a parameter is read and written, its weight written; its gradient is added separately
_UPDATE_BYTES = 2 * 12 + _BYTES


@dataclass(frozen=True)
class Pass:
    """The seconds of a layer's forward and backward pass for a micro-batch, and of its collectives."""

    forward_s: float
    backward_s: float
    again_s: float  # recomputation
    tp_s: float
    cp_s: float
    ep_s: float
    first_s: float  # the forward with its collectives

    @property
    def work_s(self) -> float:
        return self.forward_s + self.backward_s + self.again_s

    @property
    def all_s(self) -> float:
        return self.work_s + self.tp_s + self.cp_s + self.ep_s


class StepTimes:
    """The seconds of a step of one model on one cluster, under any plan."""

    def __init__(self, model: Shape, cluster: Cluster, gradient_bytes: int = _BYTES, overlaps: bool = True) -> None:
        self.model, self.cluster, self.gpu = model, cluster, cluster.gpu
        self.gradient_bytes, self.overlaps = gradient_bytes, overlaps  # of gradients with the backward
        self._price_s = cache(self._priced_s)
        self._beside = cache(lambda ranks: tuple(beside(ranks, cluster)))
        self._edges = cache(self._between_stages)
        self._layer = cache(self._priced_layer)

    def __call__(self, plan: Plan) -> dict[str, float]:
        """The seconds of each part of a step, by name; they add up to the step."""
        layer = self._layer(plan.tp, plan.cp, plan.ep, plan.micro_batch, plan.length, plan.recompute)
        layers, num_micro = plan.num_stage_layers, plan.num_micro_batches
        head = self._head_s(plan) / layer.all_s  # in units of one layer's time
        most = max(layers[0], layers[min(1, plan.pp - 1)], layers[-1] + head)
        micro_s = most * layer.all_s
        return {
            "compute_s": num_micro * most * layer.work_s,
            "tp_s": num_micro * most * layer.tp_s,
            "cp_s": num_micro * most * layer.cp_s,
            **({"ep_s": num_micro * most * layer.ep_s} if self.model.num_experts > 1 else {}),
            "bubble_s": (plan.pp - 1) / plan.num_chunks * micro_s,
            "pp_s": self._stages_s(plan),
            "dp_s": self._sharing_s(plan, layer, micro_s),
            "update_s": self._update_s(plan),
        }

    def _priced_s(self, op: str, size_bytes: float, ranks: range) -> float:
        """The seconds of an operation that all groups like this one do at once."""
        return price(op, size_bytes, ranks, self.cluster, beside=self._beside(ranks)).time_s

    def _priced_layer(self, tp: int, cp: int, ep: int, micro_batch: int, length: int, recompute: str) -> Pass:
        model, num_tokens = self.model, micro_batch * length // cp
        products_s, attention_s, passes_s = self._forward_s(num_tokens, length, tp, ep)
        forward_s = products_s + attention_s + passes_s
        backward_s = 2 * products_s + (2 if model.family == "gpt" else 2.5) * attention_s + 2 * passes_s
        again_s = {
            "none": 0.0,
            "selective": attention_s if model.family == "gpt" else passes_s,
            "full": forward_s,
        }[recompute]
        num_passes = 3 if recompute == "full" else 2
        size_bytes = _BYTES * num_tokens * model.width
        tp_s = self._gathered_s(size_bytes, tp) + self._gathered_s(
            size_bytes * (model.num_active_experts if ep > 1 else 1), tp
        )
        keys_bytes = 2 * _BYTES * micro_batch * length * model.kv_width / tp
        cp_ranks = range(0, tp * cp, tp)
        keys_s = self._price_s("all_gather", keys_bytes, cp_ranks)
        cp_s = num_passes * keys_s + self._price_s("reduce_scatter", keys_bytes, cp_ranks)
        # each token's copies go to the ranks of its experts and come back
        copies_bytes = size_bytes / tp * model.num_active_experts
        ep_s = 2 * self._price_s("all_to_all", copies_bytes, range(0, tp * ep, tp))
        first_s = forward_s + tp_s + keys_s + ep_s
        return Pass(forward_s, backward_s, again_s, num_passes * tp_s, cp_s, num_passes * ep_s, first_s)

    def _gathered_s(self, size_bytes: float, tp: int) -> float:
        """The seconds to gather the shards of a tensor over tp, and to reduce and scatter another of its size."""
        return sum(self._price_s(op, size_bytes, range(tp)) for op in ("all_gather", "reduce_scatter"))

    def _forward_s(self, num_tokens: int, length: int, tp: int, ep: int) -> tuple[float, float, float]:
        """The seconds of a layer's products, of its attention, and of its other passes over memory."""
        model, kv_width = self.model, self.model.kv_width
        num_ups = 2 if model.family == "llama" else 1
        num_copies, num_local = num_tokens * model.num_active_experts, model.num_experts // ep
        products_s = sum(
            self._product_s(num_rows, num_in, num_out, num_weights)
            for num_rows, num_in, num_out, num_weights in (
                (num_tokens, model.width, (model.width + 2 * kv_width) / tp, 1),
                (num_tokens, model.width / tp, model.width, 1),
                (num_copies, model.width, num_ups * model.hidden_width / tp, num_local),
                (num_copies, model.hidden_width / tp, model.width, num_local),
            )
        )
        if model.num_experts > 1:
            products_s += self._product_s(num_tokens / tp, model.width, model.num_experts)
        if model.family == "llama":
            flops = 2 * num_tokens * length * model.width / tp  # half of the scores: the mask discards the rest
            moved = 2 * _BYTES * num_tokens * (model.width + kv_width) / tp
            attention_s = time_s(Operator("attention", "bfloat16", flops, moved), self.gpu)
            # rotation; gate, up and their product
            passes = 4 * (model.width + kv_width) + 6 * model.num_active_experts * model.hidden_width
            if model.num_experts > 1:  # copies are sorted by expert, and added up again
                passes += 2 * 4 * model.num_active_experts * model.width
        else:
            scores = num_tokens * length * model.num_heads / tp
            flops = 2 * num_tokens * length * model.width / tp  # all scores: each is written
            one = Operator("matmul", "float16", flops, _BYTES * (scores + num_tokens * model.width / tp))
            softmax_and_dropout = Operator("elementwise", "float16", 0, (2 + 2 + 2 + 1 + 2) * scores)
            attention_s = 2 * time_s(one, self.gpu) + time_s(softmax_and_dropout, self.gpu)
            passes = 4 * model.hidden_width  # GELU
        passes += 2 * (4 + 6 + (3 if model.family == "gpt" else 0)) * model.width  # norms, sums, dropouts
        passes_s = time_s(Operator("elementwise", "bfloat16", 0, num_tokens * passes / tp), self.gpu)
        return products_s, attention_s, passes_s

    def _product_s(self, num_rows: float, num_in: float, num_out: float, num_weights: int = 1) -> float:
        """The seconds of a product, or of one in groups of rows with as many matrices of weights."""
        moved = _BYTES * (num_rows * num_in + num_weights * num_in * num_out + num_rows * num_out)
        return time_s(Operator("matmul", "bfloat16", 2 * num_rows * num_in * num_out, moved), self.gpu)

    def _head_s(self, plan: Plan) -> float:
        """The seconds of the head and its loss, forward and backward."""
        num_tokens, share = plan.num_micro_batch_tokens, self.model.vocab_size / plan.tp
        loss = Operator("elementwise", "float32", 0, (2 + 4 + 4 + 4 + 2) * num_tokens * share)
        return 3 * self._product_s(num_tokens, self.model.width, share) + time_s(loss, self.gpu)

    def _stages_s(self, plan: Plan) -> float:
        """The seconds that a stage waits for messages from its neighbours, one in each direction per chunk."""
        if plan.pp == 1:
            return 0.0
        size_bytes = _BYTES * plan.num_micro_batch_tokens * self.model.width / plan.tp
        own, *others = self._edges(plan.tp * plan.num_shards)
        send_s = price("send", size_bytes, own, self.cluster, beside=others).time_s
        return 2 * plan.num_micro_batches * plan.num_chunks * send_s

    def _between_stages(self, stride: int) -> list[tuple[int, int]]:
        """The messages that all stages send at once, the first of them from one node to the next if any does."""
        cluster = self.cluster
        per_node = cluster.gpus_per_node
        num_senders = per_node if cluster.has_full_network else cluster.world_size - stride
        pairs = [(rank, rank + stride) for rank in range(min(num_senders, cluster.world_size - stride))]
        return sorted(pairs, key=lambda pair: pair[1] < per_node)

    def _sharing_s(self, plan: Plan, layer: Pass, micro_s: float) -> float:
        """The seconds of summing gradients and gathering weights that are not hidden behind work."""
        if plan.num_shards == 1:
            return 0.0
        num_layers, num_micro = max(plan.num_stage_layers), plan.num_micro_batches
        summing = "reduce_scatter" if plan.zero_stage else "all_reduce"
        sum_s = self._of_parameters_s(summing, self.gradient_bytes, plan)
        gather_s = self._of_parameters_s("all_gather", _BYTES, plan) if plan.zero_stage else 0.0
        num_sums = num_micro if plan.zero_stage >= 2 else 1
        if not self.overlaps:
            num_gathers = 2 * num_micro if plan.zero_stage == 3 else 1  # one for forward and one for backward
            return num_sums * sum_s + num_gathers * gather_s
        forward_s = num_layers * layer.first_s
        backward_s = micro_s - forward_s
        if plan.zero_stage < 3:
            return num_sums * _exposed_s(sum_s, backward_s, num_layers) + _exposed_s(gather_s, forward_s, num_layers)
        of_backward_s = _exposed_s(gather_s + sum_s, backward_s, num_layers)
        return num_micro * (_exposed_s(gather_s, forward_s, num_layers) + of_backward_s)

    def _of_parameters_s(self, op: str, number_bytes: int, plan: Plan) -> float:
        """The seconds of a collective of all parameters, layer by layer: experts among the ranks that have the same."""
        num_layers, of_experts = max(plan.num_stage_layers), plan.num_layer_expert_parameters
        others = plan.most_parameters / num_layers - of_experts
        layer_s = self._price_s(op, number_bytes * others, plan.shard_ranks)
        if of_experts:
            same_experts = range(0, plan.tp * plan.num_shards, plan.tp * plan.ep)
            layer_s += self._price_s(op, number_bytes * of_experts, same_experts)
        return num_layers * layer_s

    def _update_s(self, plan: Plan) -> float:
        of_experts = max(plan.num_stage_layers) * plan.num_layer_expert_parameters
        num_parameters: float = plan.most_parameters
        if plan.zero_stage:
            num_parameters = (num_parameters - of_experts) / plan.num_shards + of_experts / plan.num_expert_shards
        num_bytes = _UPDATE_BYTES + self.gradient_bytes
        return time_s(Operator("elementwise", "float32", 0, num_bytes * num_parameters), self.gpu)


def cost_of(design: Design) -> Cost:
    """The judge's cost of a design's step, callable with its own plan or with a plan on a different cluster."""

    def step_s(plan: Plan) -> dict[str, float]:
        return _step_times(plan.model, plan.cluster, design.gradient_bytes, design.software.overlaps)(plan)

    return step_s


@lru_cache(maxsize=256)
def _step_times(model: Shape, cluster: Cluster, gradient_bytes: int, overlaps: bool) -> StepTimes:
    return StepTimes(model, cluster, gradient_bytes, overlaps)


def megatron_2021_bytes(plan: Plan) -> float:
    """The bytes on a GPU of the first stage in Narayanan et al. 2021: 18 per parameter, and the inputs of layers.

    Gradients were summed in float32; tensors between tensor-parallel products were whole on every rank of a group.
    """
    model, num_tokens = plan.model, plan.num_micro_batch_tokens
    num_inputs = plan.num_stage_layers[0] * num_in_flight(plan, 0)
    at_work = num_tokens * (10 * model.width + (24 * model.width + 5 * model.num_heads * plan.length) / plan.tp)
    return 18 * plan.num_parameters(0) + 2 * model.width * num_tokens * num_inputs + at_work


def _exposed_s(total_s: float, work_s: float, num_parts: int) -> float:
    """The seconds of communication in parts that overlap leaves exposed: one part, plus all that outlasts the work."""
    return max(total_s - work_s, 0.0) + min(total_s, work_s) / num_parts
