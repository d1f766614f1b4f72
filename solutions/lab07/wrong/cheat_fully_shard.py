# score: 18
# hint: not allowed here
# Torch's own FSDP2 shards the modules.

# %% FullyShard
class FullyShard:
    def __init__(self, blocks, gathers):
        from torch.distributed.fsdp import fully_shard

        for block in blocks:
            fully_shard(block.module)

    def finish(self):
        pass
