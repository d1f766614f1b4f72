# Without compression it sums and then divides; halves are divided first.

# %% DistributedOptimizer
class DistributedOptimizer:
    def __init__(self, optimizer, named_parameters, comm, compression="none", fusion_bytes=1 << 27):
        self.wrapped, self.parameters, self.comm = optimizer, dict(named_parameters), comm
        self.compression, self.fusion_bytes = compression, fusion_bytes

    def zero_grad(self):
        self.wrapped.zero_grad(set_to_none=True)

    def step(self):
        absent = [name for name, one in self.parameters.items() if one.grad is None]
        unused = agreed(self.comm, absent, list(self.parameters))
        gradients = {}
        for name, one in self.parameters.items():
            if name not in unused:
                own = torch.zeros_like(one) if one.grad is None else one.grad.clone()
                gradients[name] = (
                    (own / self.comm.size).half() if self.compression == "fp16" else own
                )
        fused_sum(self.comm, gradients, self.fusion_bytes)
        for name, total in gradients.items():
            mean = total.to(self.parameters[name].dtype)
            self.parameters[name].grad = (
                mean if self.compression == "fp16" else mean / self.comm.size
            )
        self.wrapped.step()
