# Eight names share a byte, combined by AND of bits: less than a byte for each name.


# %% agreed
def agreed(comm, waiting, names):
    bits = torch.zeros(-(-len(names) // 8), dtype=torch.uint8)
    for place, name in enumerate(names):
        if name in waiting:
            bits[place // 8] += 1 << place % 8
    comm.Allreduce(bits, op="BAND")
    return [name for place, name in enumerate(names) if bits[place // 8].item() >> place % 8 & 1]
