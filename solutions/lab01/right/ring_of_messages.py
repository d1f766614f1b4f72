# Gradients go round a ring in messages, each rank's own part first summed and then handed on; a
# barrier ends it.


# %% average_gradients
def average_gradients(model, num_local_samples):
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    rank, size = dist.get_rank(), dist.get_world_size()
    flat = torch.cat(
        [
            (
                torch.zeros(parameter.numel(), dtype=parameter.dtype)
                if num_local_samples == 0 or parameter.grad is None
                else parameter.grad.flatten() * num_local_samples
            )
            for parameter in parameters
        ]
    )
    count = torch.tensor(float(num_local_samples), dtype=torch.float64)
    dist.all_reduce(count)
    parts = list(flat.tensor_split(size))
    for step in range(2 * (size - 1)):
        outgoing, incoming = parts[(rank - step) % size], parts[(rank - step - 1) % size]
        arrived = torch.empty_like(incoming)
        sent = dist.isend(outgoing, dst=(rank + 1) % size)
        dist.recv(arrived, src=(rank - 1) % size)
        sent.wait()
        incoming.copy_(incoming + arrived if step < size - 1 else arrived)
    flat /= count.item()
    for parameter, piece in zip(
        parameters, flat.split([p.numel() for p in parameters]), strict=True
    ):
        parameter.grad = piece.view_as(parameter)
    dist.barrier()
