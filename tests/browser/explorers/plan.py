"""Which parallel plan fits on these GPUs? Memory and time are the reader's own estimates."""

from worldsize import draw, hardware
from worldsize.explore import explore

num_layers, d_model, num_tokens, num_parameters = 80, 8192, 4096, 70e9


def memory_bytes(dp, pp, tp, num_pieces):
    mine = num_parameters / (tp * pp)
    activations = 34 * num_tokens * d_model * num_layers / pp / tp * min(pp, num_pieces)
    return {"weights and gradients": 4 * mine, "optimizer state": 12 * mine / dp, "activations": activations}


def plan(tp=8, pp=4, num_gpus=256, num_pieces=32):
    if num_gpus % (tp * pp):
        raise ValueError(f"{num_gpus} GPUs are no multiple of tp x pp = {tp * pp}: some would be left over.")
    if num_layers % pp:
        raise ValueError(f"{num_layers} layers cannot be cut into {pp} equal stages.")
    dp = num_gpus // (tp * pp)
    sizes = memory_bytes(dp, pp, tp, num_pieces)
    fits = "fits" if sum(sizes.values()) <= hardware.H100.memory_bytes else "does not fit"
    where = "inside a node" if tp <= 8 else "across nodes, which is slow"
    return (
        f"This plan {fits} on an H100; tensor parallelism talks {where}.",
        {"size_bytes": {**sizes, "bubble_fraction": (pp - 1) / (num_pieces + pp - 1)}},
        draw.mesh({"pp": pp, "tp": tp}, "tp", ranks_per_node=8, title=f"One of {dp} copies of the model"),
    )


explore(plan, tp=(1, 16, "x2"), pp=[1, 2, 3, 4, 5, 8], num_gpus=(8, 4096, "x2"), num_pieces=(1, 128, "x2"))
