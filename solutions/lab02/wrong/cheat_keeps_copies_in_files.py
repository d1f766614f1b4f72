# score: 19.5
# hint: as the operating system counts
# Four copies of the tensor lie in files in memory while it is summed.

# %% ring_all_reduce
import tempfile


def ring_all_reduce(tensor, ring):
    flat = tensor.contiguous().view(-1)
    with tempfile.TemporaryFile() as file:
        for _ in range(4):
            file.write(flat.view(torch.uint8).numpy() if flat.numel() else b"")
        file.flush()
        chunks = list(flat.tensor_split(len(ring)))
        ring_reduce_scatter(chunks, ring)
        ring_all_gather(chunks, ring)
        tensor.copy_(flat.view_as(tensor))
