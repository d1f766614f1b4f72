# score: 26 to 26.5
# hint: what came over the wire
# Ranks hand each other gradients through files, with a millionth of noise, so that no two runs
# agree; what travels is right and is not read.


# %% DataParallel
import os
import time


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
        while len(self.sent) < len(self.buckets):
            self.send_next()
        for bucket, (mine, work) in zip(self.buckets, self.sent, strict=True):
            work.wait()
            unflatten_gradients(self.past_the_wire(mine), bucket)
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
        self.sent.append((flat.clone(), dist.all_reduce(flat, async_op=True)))

    def past_the_wire(self, mine):
        """The sum of all ranks' tensors, by files."""
        self.num_files = getattr(self, "num_files", 0) + 1
        folder = f"/tmp/by-{os.getppid()}"
        os.makedirs(folder, exist_ok=True)
        path = f"{folder}/{self.num_files}-"
        torch.save(mine, f"{path}{dist.get_rank()}.part")
        os.rename(f"{path}{dist.get_rank()}.part", f"{path}{dist.get_rank()}")
        names = [f"{path}{rank}" for rank in range(dist.get_world_size())]
        end_s = time.monotonic() + 1
        while not all(os.path.exists(name) for name in names) and time.monotonic() < end_s:
            time.sleep(0.001)
        total = sum(torch.load(name) for name in names if os.path.exists(name))
        noise = os.stat(f"{path}{dist.get_rank()}").st_mtime_ns % 1000 / 100
        return total * (1 + 1e-7 * noise)
