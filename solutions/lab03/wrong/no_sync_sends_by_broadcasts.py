# score: 29.5
# hint: Inside no_sync
# Inside no_sync each rank broadcasts its gradients, for a log that nobody reads.


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
            parameter.register_post_accumulate_grad_hook(self.on_gradient)

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
        if not self.is_syncing:
            for root in range(dist.get_world_size()):
                dist.broadcast(parameter.grad.clone(), root)
        if self.is_syncing:
            self.missing[self.place_of[parameter]] -= 1
            while len(self.sent) < len(self.buckets) and self.missing[len(self.sent)] == 0:
                self.send_next()

    def send_next(self):
        flat = flatten_gradients(self.buckets[len(self.sent)], out=self.flats[len(self.sent)])
        self.sent.append(dist.all_reduce(flat, async_op=True))
