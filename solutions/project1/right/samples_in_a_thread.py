# A thread takes the samples of the next step while this one is computed; weights come back over
# another line.


# %% my_samples
def my_samples(batch: int, rank: int, world_size: int) -> tuple[int, int]:
    base, rest = divmod(batch, world_size)
    start = rank * base + min(rank, rest)
    return start, start + base + (rank < rest)


# %% main
class Ahead:
    """The samples of a rank, taken one step ahead by a thread."""

    def __init__(self, samples, steps, share):
        import queue
        import threading

        self.queue = queue.Queue(maxsize=1)
        self.samples, self.steps, self.share = samples, steps, share
        threading.Thread(target=self.work, daemon=True).start()

    def work(self):
        try:
            for step in self.steps:
                self.queue.put((step, self.samples.take(step, *self.share)))
        except Exception as error:
            self.queue.put((None, error))
        self.queue.put((None, None))

    def __iter__(self):
        while True:
            step, batch = self.queue.get()
            if isinstance(batch, Exception):
                raise batch
            if step is None:
                return
            yield step, batch


def main() -> None:
    flags = read_flags()
    dist.init_process_group(timeout=timedelta(seconds=flags.timeout))
    replica = Replica(flags)
    first = load_checkpoint(flags.checkpoints, replica) if flags.resume else 0
    samples = bench.open_samples(flags.batch, flags.seed)
    share = my_samples(flags.batch, dist.get_rank(), dist.get_world_size())
    for step, (images, labels) in Ahead(samples, range(first, flags.steps), share):
        loss = replica.step(images, labels)
        if replica.rank == 0:
            line = {
                "step": step,
                "loss": loss,
                "sent_bytes": replica.sent_bytes,
                "text": f"step {step}",
            }
            print(json.dumps(line), flush=True)
        if flags.checkpoint_every and (step + 1) % flags.checkpoint_every == 0:
            save_checkpoint(flags.checkpoints, step + 1, replica)
    if replica.rank == 0:
        bench.open_samples(flags.batch, flags.seed).hand_in(replica.model)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
