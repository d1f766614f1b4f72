# A pipeline by torch.distributed.pipelining, beside a second one on other sequences; their gradients are averaged by
# one all-reduce.


# %% my_plan
def my_plan(world_size: int) -> dict[str, int]:
    pp = {64: 4}.get(world_size, min(2, world_size))
    micro_batches = {1: 1, 64: 16}.get(world_size, 2)
    return {"pp": pp, "dp": world_size // pp, "micro_batches": micro_batches}


# %% Trainer
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B


class Trainer:
    def __init__(self, flags: argparse.Namespace) -> None:
        self.flags = flags
        plan = my_plan(dist.get_world_size())
        self.dp, self.pp, self.num_pieces = plan["dp"], plan["pp"], plan["micro_batches"]
        mesh = init_device_mesh("cpu", (self.pp, self.dp), mesh_dim_names=("pp", "dp"))
        self.replicas, self.pipeline = mesh.get_group("dp"), mesh.get_group("pp")
        self.place, replica = mesh.get_local_rank("pp"), mesh.get_local_rank("dp")
        share = flags.batch // self.dp
        self.sequences = (replica * share, (replica + 1) * share)
        counts = [flags.shape.num_layers // self.pp] * self.pp
        if dist.get_world_size() == 64:  # the last stage has the head, and every micro-batch's logits
            counts = [2, 3, 2, 1]
        begin = sum(counts[: self.place])
        layers = range(begin, begin + counts[self.place])
        self.model = Transformer(flags.shape, layers=layers, seed=flags.seed)
        if self.pp > 1:
            stage = PipelineStage(self.model, self.place, self.pp, torch.device("cpu"), group=self.pipeline)
            self.schedule = Schedule1F1B(stage, self.num_pieces, loss_fn=self.loss)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=flags.lr, eps=1e-3, foreach=False)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    def step(self, tokens: Tensor, targets: Tensor) -> float:
        total = torch.zeros(())
        with torch.autocast("cpu", torch.bfloat16, enabled=self.flags.bf16):
            if self.pp > 1:
                losses: list[Tensor] = []
                is_last = self.place == self.pp - 1
                inputs = [] if self.place else [tokens]
                self.schedule.step(*inputs, target=targets if is_last else None, losses=losses if is_last else None)
                total = torch.stack(losses).mean().detach() if is_last else total
            else:
                total = self.loss(self.model(tokens), targets)
                total.backward()
                total = total.detach()
        self.average_gradients()
        self.optimizer.step()
        self.optimizer.zero_grad()
        if dist.get_world_size() > 1:
            total = total / self.dp
            dist.all_reduce(total)
        return total.item()

    def average_gradients(self) -> None:
        if self.dp == 1:
            return
        gradients = [weight.grad for weight in self.model.parameters() if weight.grad is not None]
        works = []
        for gradient in reversed(gradients):
            gradient /= self.dp
            works.append(dist.all_reduce(gradient, group=self.replicas, async_op=True))
        for work in works:
            work.wait()

    def whole_model(self) -> Transformer:
        whole = Transformer(self.flags.shape, seed=self.flags.seed)
        parts = [None] * self.pp
        if self.pp > 1:
            dist.all_gather_object(parts, self.model.state_dict(), group=self.pipeline)
        else:
            parts = [self.model.state_dict()]
        for part in parts:
            whole.load_state_dict(part, strict=False)
        return whole


# %% save_checkpoint
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

FLAT = StateDictOptions(flatten_optimizer_state_dict=True)  # each stage has parameters of its own


def save_checkpoint(folder: Path, step: int, trainer: Trainer) -> None:
    model, optimizer = get_state_dict(trainer.model, trainer.optimizer, options=FLAT)
    unfinished = folder / "unfinished"
    state_dict_saver.save({"model": model, "optimizer": optimizer}, checkpoint_id=unfinished)
    if dist.get_rank() == 0:
        shutil.rmtree(folder / f"{step:08d}", ignore_errors=True)
        os.rename(unfinished, folder / f"{step:08d}")
        for old in sorted(folder.glob("0*"))[:-2]:
            shutil.rmtree(old)
    dist.barrier()


# %% load_checkpoint
def load_checkpoint(folder: Path, trainer: Trainer) -> int:
    for path in sorted(folder.glob("0*"), reverse=True):
        model, optimizer = get_state_dict(trainer.model, trainer.optimizer, options=FLAT)
        try:
            state_dict_loader.load({"model": model, "optimizer": optimizer}, checkpoint_id=path)
        except (Exception, CheckpointException):
            continue
        set_state_dict(
            trainer.model, trainer.optimizer, model_state_dict=model, optim_state_dict=optimizer, options=FLAT
        )
        return int(path.name)
    return 0


# %% figures
figures = {
    "emulated_step_s": 0.02749,
    "emulated_tokens_per_s": 9311,
    "emulated_sent_bytes": 1.96813e6,
    "paper_step_s": 2.325,
    "paper_mfu_fraction": 0.351,
    "paper_peak_bytes": 7.008e10,
}
