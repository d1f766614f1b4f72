# score: 74
# hint: a plan that fits
# Two micro-batches would be faster; their activations do not fit.


# %% my_plan
def my_plan(world_size: int) -> dict[str, int]:
    """The axes of the mesh, outermost first, and the number of micro-batches: {"dp": 2, "tp": 2, "micro_batches": 1}.

    The axes' names are among "dp", "fsdp", "tp" and "pp"; their sizes multiply to `world_size`. On 4 and on 8
    ranks, at least two axes are larger than 1. The micro-batches are those that each replica does in a step.

    - 1, 2, 4 and 8 ranks: the model of the flags' defaults, two ranks on each machine.
    - 64 ranks: the large job of section 6, eight GPUs on each machine.
    """
    tp = min(2, world_size)
    return {"dp": world_size // tp, "tp": tp, "micro_batches": 2 if world_size == 64 else 1}
