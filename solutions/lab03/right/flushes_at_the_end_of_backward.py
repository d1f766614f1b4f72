# What is not sent leaves in a callback at the end of backward; the average is taken by the
# reduction itself.


# %% DataParallel
class DataParallel:
    def __init__(self, module, bucket_bytes):
        broadcast_state(module)
        self.module, self.quiet, self.under_way = module, False, None
        self.buckets = make_buckets([*module.parameters()], bucket_bytes)
        for bucket in self.buckets:
            for parameter in bucket:
                parameter.register_post_accumulate_grad_hook(self.hook)

    def __call__(self, *inputs):
        return self.module(*inputs)

    def hook(self, parameter):
        if self.quiet:
            return
        if self.under_way is None:
            self.under_way, self.arrived = [], set()
            torch.autograd.Variable._execution_engine.queue_callback(self.flush)
        self.arrived.add(parameter)
        while len(self.under_way) < len(self.buckets) and self.arrived.issuperset(
            self.buckets[len(self.under_way)]
        ):
            self.send()

    def flush(self):
        while len(self.under_way) < len(self.buckets):
            self.send()

    def send(self):
        bucket = self.buckets[len(self.under_way)]
        for parameter in bucket:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        flat = torch.cat([parameter.grad.reshape(-1) for parameter in bucket])
        self.under_way.append((flat, dist.all_reduce(flat, op=dist.ReduceOp.AVG, async_op=True)))

    def finish(self):
        if self.under_way is None:  # this rank used no parameter at all
            self.under_way = []
            self.flush()
        for bucket, (flat, work) in zip(self.buckets, self.under_way, strict=True):
            work.wait()
            start = 0
            for parameter in bucket:
                parameter.grad = (
                    flat[start : start + parameter.numel()].view(parameter.shape).clone()
                )
                start += parameter.numel()
        self.under_way = None

    @contextmanager
    def no_sync(self):
        before, self.quiet = self.quiet, True
        try:
            yield
        finally:
            self.quiet = before
