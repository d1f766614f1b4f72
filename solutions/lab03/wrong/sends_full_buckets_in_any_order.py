# score: 28.5
# hint: send the buckets in the same order
# A bucket leaves as soon as it is full, also before the one before it: ranks that branch
# differently do not meet.


# %% DataParallel
class DataParallel:
    def __init__(self, module: nn.Module, bucket_bytes: int) -> None:
        broadcast_state(module)
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
        for place in range(len(self.buckets)):
            if place not in self.sent:
                self.send(place)
        for place, (flat, work) in self.sent.items():
            work.wait()
            unflatten_gradients(flat, self.buckets[place])
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
        self.sent = {}

    def on_gradient(self, parameter):
        if self.is_syncing:
            place = self.place_of[parameter]
            self.missing[place] -= 1
            if self.missing[place] == 0:
                self.send(place)

    def send(self, place):
        flat = flatten_gradients(self.buckets[place])
        self.sent[place] = (flat, dist.all_reduce(flat, async_op=True))
