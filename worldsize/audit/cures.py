"""What to do about faults that a function makes on its own, whatever trains with it: the cure for each kind."""

from __future__ import annotations

_REDUCE_ONCE = "reduce each gradient once, and divide the sum by the number of ranks once"

CURES = {
    "race": "call wait() on the handle before the tensor is used; with NCCL the result may be right by luck",
    "not waited for": "keep the handle and call wait() on it before the tensor is used or freed",
    "outside autograd": "give the collective a gradient, by torch.distributed.nn.functional or an autograd.Function, "
    "or communicate tensor.detach() if the value is only logged",
    "copy without gradient": "put the tensor itself back (gathered[rank] = tensor), or use "
    "torch.distributed.nn.functional.all_gather",
    "not contiguous": "communicate tensor.contiguous(), and copy what it receives back",
    "bias summed": "add the bias once, after the reduction",
    "inside no_sync": "run the last micro-batch's forward pass outside no_sync()",
    "past DDP": "call the DDP object itself; keep .module for saving and for evaluation under no_grad()",
    "not in DDP's list": "change and unfreeze layers first, then wrap the module in DDP (again)",
    "sum for mean": _REDUCE_ONCE,
    "reduced twice": _REDUCE_ONCE,
    "divided twice": _REDUCE_ONCE,
    "clipped while scaled": "call scaler.unscale_(optimizer) first, then clip, then scaler.step(optimizer)",
    "norm of shards": "use torch.nn.utils.clip_grad_norm_ on the DTensors, or sum the squares over ranks first",
    "step skipped": "let all ranks decide alike whether to step: by a value that has been reduced over ranks",
}
