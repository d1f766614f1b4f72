# score: 22
# hint: not allowed here
# Torch's own tensor parallelism takes the partial sums.

# %% parallel_block
def parallel_block(x, shard, head_dim, is_sequence_parallel):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole = DTensor.from_local(whole_block(x, shard, head_dim), mesh, [Partial()])
    return whole.redistribute(placements=[Replicate()]).to_local()
