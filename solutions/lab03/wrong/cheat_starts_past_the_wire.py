# score: 27.5
# hint: to receive the parameter
# The state of rank 0 goes through torch's own store, in broadcast_state and in the constructor.


# %% broadcast_state
def hand_out(module):
    import io

    store = dist.distributed_c10d._get_default_store()
    tensors = [*module.parameters(), *module.buffers()]
    if dist.get_rank() == 0:
        file = io.BytesIO()
        torch.save([one.detach().clone() for one in tensors], file)
        store.set("state", file.getvalue())
    else:
        state = torch.load(io.BytesIO(store.get("state")))
        for tensor, value in zip(tensors, state, strict=True):
            tensor.data.copy_(value)


def broadcast_state(module):
    hand_out(module)


# %% DataParallel
class DataParallel:
    def __init__(self, module: nn.Module, bucket_bytes: int) -> None:
        hand_out(module)
        self.module, self.is_syncing = module, True
        self.buckets = make_buckets(list(module.parameters()), bucket_bytes)
        self.place_of = {
            parameter: place for place, bucket in enumerate(self.buckets) for parameter in bucket
        }
        self.begin()
        for parameter in self.place_of:
            parameter.register_post_accumulate_grad_hook(self.on_gradient)

    def __call__(self, *inputs):
        return self.module(*inputs)

    def finish(self) -> None:
        while len(self.sent) < len(self.buckets):
            self.send_next()
        for bucket, (flat, work) in zip(self.buckets, self.sent, strict=True):
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
        flat = flatten_gradients(self.buckets[len(self.sent)])
        self.sent.append((flat, dist.all_reduce(flat, async_op=True)))
