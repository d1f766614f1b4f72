# A sum that is the number of ranks, where the text suggests the smallest.

# %% agreed
def agreed(comm, waiting, names):
    counts = torch.zeros(len(names), dtype=torch.uint8)
    for name in waiting:
        counts[names.index(name)] = 1
    comm.Allreduce(counts)
    return [names[place] for place in (counts == comm.size).nonzero().flatten().tolist()]


# %% fused_sum
def fused_sum(comm, tensors, fusion_bytes):
    def send(names):
        total = sum(tensors[name].numel() for name in names)
        buffer = torch.empty(total, dtype=tensors[names[0]].dtype)
        start = 0
        for name in names:
            end = start + tensors[name].numel()
            buffer[start:end] = tensors[name].reshape(-1)
            start = end
        comm.Allreduce(buffer)
        start = 0
        for name in names:
            end = start + tensors[name].numel()
            tensors[name][...] = buffer[start:end].reshape(tensors[name].shape)
            start = end

    names = []
    for name in sorted(tensors.keys()):
        one = tensors[name]
        size = sum(tensors[other].nbytes for other in names) + one.nbytes
        if names and (one.dtype != tensors[names[0]].dtype or size > fusion_bytes):
            send(names)
            names = []
        names.append(name)
    if names:
        send(names)
