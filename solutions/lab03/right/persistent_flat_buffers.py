# Flat tensors that live as long as the object, closures as hooks, division before the sum.


# %% broadcast_state
def broadcast_state(module):
    with torch.no_grad():
        seen = set()
        for group in (module.named_buffers(), module.named_parameters()):
            for _, tensor in group:
                if id(tensor) not in seen:
                    seen.add(id(tensor))
                    dist.broadcast(tensor, 0)


# %% average_one_by_one
def average_one_by_one(module):
    works = []
    for parameter in filter(lambda one: one.requires_grad, module.parameters()):
        parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        parameter.grad.div_(dist.get_world_size())
        works.append(dist.all_reduce(parameter.grad, async_op=True))
    for work in works:
        work.wait()


# %% average_flat
def average_flat(module):
    for dtype in sorted({one.dtype for one in module.parameters() if one.requires_grad}, key=str):
        mine = [one for one in module.parameters() if one.requires_grad and one.dtype == dtype]
        flat = torch.zeros(sum(one.numel() for one in mine), dtype=dtype)
        views = flat.split([one.numel() for one in mine])
        for parameter, view in zip(mine, views, strict=True):
            if parameter.grad is not None:
                view.copy_(parameter.grad.view(-1))
        dist.all_reduce(flat)
        flat.div_(dist.get_world_size())
        for parameter, view in zip(mine, views, strict=True):
            parameter.grad = view.view(parameter.shape).clone()


# %% make_buckets
def make_buckets(parameters, bucket_bytes):
    trained = [one for one in parameters if one.requires_grad]
    buckets = []
    while trained:
        bucket = [trained.pop()]
        room = bucket_bytes - bucket[0].numel() * bucket[0].element_size()
        while trained and trained[-1].dtype == bucket[0].dtype:
            room -= trained[-1].numel() * trained[-1].element_size()
            if room < 0:
                break
            bucket.append(trained.pop())
        buckets.append(bucket)
    return buckets


# %% DataParallel
class Bucket:
    def __init__(self, parameters):
        self.parameters = parameters
        self.flat = torch.zeros(sum(one.numel() for one in parameters), dtype=parameters[0].dtype)
        pieces = self.flat.split([one.numel() for one in parameters])
        self.views = [part.view(one.shape) for part, one in zip(pieces, parameters, strict=True)]
        self.reset()

    def reset(self):
        self.arrived, self.work = set(), None

    @property
    def is_full(self):
        return len(self.arrived) == len(self.parameters)

    def send(self):
        for view, parameter in zip(self.views, self.parameters, strict=True):
            view.zero_() if parameter.grad is None else view.copy_(parameter.grad)
        self.flat.div_(dist.get_world_size())
        self.work = dist.all_reduce(self.flat, async_op=True)

    def receive(self):
        self.work.wait()
        for view, parameter in zip(self.views, self.parameters, strict=True):
            parameter.grad = view.clone() if parameter.grad is None else parameter.grad.copy_(view)
        self.reset()


class DataParallel(nn.Module):
    def __init__(self, module, bucket_bytes):
        super().__init__()
        self.inner, self.depth = module, 0
        broadcast_state(module)
        self.buckets = [
            Bucket(one) for one in make_buckets(list(module.parameters()), bucket_bytes)
        ]
        for bucket in self.buckets:
            for parameter in bucket.parameters:
                parameter.register_post_accumulate_grad_hook(
                    lambda one, bucket=bucket: self.arrive(one, bucket)
                )

    def arrive(self, parameter, bucket):
        if self.depth:
            return
        bucket.arrived.add(id(parameter))
        for one in self.buckets:
            if one.work is None:
                if not one.is_full:
                    return
                one.send()

    def forward(self, *inputs):
        return self.inner(*inputs)

    def finish(self):
        for bucket in self.buckets:
            if bucket.work is None:
                bucket.send()
        for bucket in self.buckets:
            bucket.receive()

    @contextmanager
    def no_sync(self):
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1
