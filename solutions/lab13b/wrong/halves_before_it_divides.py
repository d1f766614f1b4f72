# score: 24
# hint: then convert
# Converted to float16 before the division, so that sums overflow.

# %% DistributedOptimizer
class DistributedOptimizer:
    """An optimizer whose `step()` first averages the gradients over all ranks.

    - `named_parameters` are pairs of name and parameter, in the same order on all ranks, of any
      floating-point dtypes.
    - After `step()` each `.grad` is the **mean** over all ranks of the ranks' gradients, in the
      parameter's dtype, with the same bits on all ranks, and the wrapped optimizer has done one
      step. A gradient that is None on this rank counts as zeros. Where it is None on all ranks, it
      stays None.
    - Several backward passes may come before a step: their sum, in `.grad`, is the rank's gradient.
    - compression "none": gradients travel in their own dtype. "fp16": as float16, those of any
      dtype, and divided by the number of ranks before they are converted.
    - In a step all-reduces happen only in one call of `agreed`, with the names of all parameters,
      and one of `fused_sum`, both called by these names.
    - `zero_grad()` sets all gradients to None.
    """

    def __init__(self, optimizer, named_parameters, comm, compression="none", fusion_bytes=1 << 27):
        self.wrapped, self.parameters, self.comm = optimizer, dict(named_parameters), comm
        self.compression, self.fusion_bytes = compression, fusion_bytes

    def zero_grad(self):
        self.wrapped.zero_grad()

    def step(self):
        absent = [name for name, one in self.parameters.items() if one.grad is None]
        unused = agreed(self.comm, absent, list(self.parameters))
        gradients = {}
        for name, one in self.parameters.items():
            if name in unused:
                continue
            if one.grad is None:
                one.grad = torch.zeros_like(one)
            mine = one.grad.clone()
            gradients[name] = mine.to(torch.float16) if self.compression == "fp16" else mine
        fused_sum(self.comm, gradients, self.fusion_bytes)
        for name, mean in gradients.items():
            mean /= self.comm.size
            self.parameters[name].grad.copy_(mean)
        self.wrapped.step()
