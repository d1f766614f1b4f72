# ReduceOp.AVG, other orders, hooks on the nodes that accumulate gradients, buckets by groupby.


# %% average_one_by_one
def average_one_by_one(module):
    for parameter in filter(lambda one: one.requires_grad, module.parameters()):
        gradient = (
            torch.zeros_like(parameter)
            if parameter.grad is None
            else parameter.grad.detach().clone()
        )
        dist.all_reduce(gradient, op=dist.ReduceOp.AVG)
        parameter.grad = gradient


# %% average_flat
def average_flat(module):
    from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

    trained = [one for one in module.parameters() if one.requires_grad]
    for dtype in sorted({one.dtype for one in trained}, key=str):
        alike = [one for one in trained if one.dtype is dtype][::-1]
        gradients = [torch.zeros_like(one) if one.grad is None else one.grad for one in alike]
        flat = _flatten_dense_tensors(gradients)
        dist.all_reduce(flat, op=dist.ReduceOp.AVG)
        for one, mean in zip(alike, _unflatten_dense_tensors(flat, gradients), strict=True):
            one.grad = mean.clone()


def flatten_gradients(parameters, out=None):
    with_zeros = [torch.zeros_like(one) if one.grad is None else one.grad for one in parameters]
    return torch.cat([gradient.flatten() for gradient in with_zeros], out=out)


def unflatten_gradients(flat, parameters):
    for parameter, total in zip(
        parameters, flat.split([one.numel() for one in parameters]), strict=True
    ):
        if parameter.grad is None:
            parameter.grad = torch.empty_like(parameter)
        torch.div(total.view_as(parameter), dist.get_world_size(), out=parameter.grad)


# %% make_buckets
def make_buckets(parameters, bucket_bytes):
    import itertools

    trained = [one for one in parameters[::-1] if one.requires_grad]
    numbers, number, full, last = [], -1, 0, None
    for one in trained:
        size = one.numel() * one.element_size()
        if last is not one.dtype or full + size > bucket_bytes:
            number, full = number + 1, 0
        full, last = full + size, one.dtype
        numbers.append(number)
    return [
        [one for _, one in group]
        for _, group in itertools.groupby(
            zip(numbers, trained, strict=True), key=lambda pair: pair[0]
        )
    ]


# %% DataParallel
class DataParallel:
    def __init__(self, module: nn.Module, bucket_bytes: int) -> None:
        broadcast_state(module)
        self.module, self.is_syncing = module, True
        self.buckets = make_buckets(list(module.parameters()), bucket_bytes)
        self.place_of = {
            parameter: place for place, bucket in enumerate(self.buckets) for parameter in bucket
        }
        self.flats = [
            torch.cat([one.detach().flatten() for one in bucket]) for bucket in self.buckets
        ]
        self.begin()
        for parameter in self.place_of:
            node = parameter.view_as(parameter).grad_fn.next_functions[0][0]
            self.nodes = getattr(self, "nodes", [])
            self.nodes.append(node)
            node.register_hook(lambda *_, parameter=parameter: self.on_gradient(parameter))

    def __call__(self, *inputs):
        return self.module(*inputs)

    def finish(self) -> None:
        while len(self.sent) < len(self.buckets):
            self.send_next()
        for bucket, flat, work in zip(self.buckets, self.flats, self.sent, strict=True):
            work.wait()
            unflatten_gradients(flat, bucket)
        self.begin()

    @contextmanager
    def no_sync(self):
        self.is_syncing = False
        try:
            yield
        finally:
            self.is_syncing = True

    def begin(self):
        self.missing = [len(bucket) for bucket in self.buckets]
        self.sent = []

    def on_gradient(self, parameter):
        if self.is_syncing:
            self.missing[self.place_of[parameter]] -= 1
            while len(self.sent) < len(self.buckets) and self.missing[len(self.sent)] == 0:
                self.send_next()

    def send_next(self):
        flat = flatten_gradients(self.buckets[len(self.sent)], out=self.flats[len(self.sent)])
        self.sent.append(dist.all_reduce(flat, async_op=True))
