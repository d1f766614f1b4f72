# All collectives of a function are started first and waited for together.


# %% broadcast_model
def broadcast_model(model):
    with torch.no_grad():
        tensors = list(model.parameters()) + list(model.buffers())
        works = [dist.broadcast(tensor, src=0, async_op=True) for tensor in tensors]
        for work in works:
            work.wait()


# %% average_gradients
def average_gradients(model, num_local_samples):
    total = torch.tensor(float(num_local_samples))
    works = [dist.all_reduce(total, async_op=True)]
    trained = [p for p in model.parameters() if p.requires_grad]
    for p in trained:
        p.grad = p.grad * num_local_samples if num_local_samples else torch.zeros_like(p)
        works.append(dist.all_reduce(p.grad, async_op=True))
    for work in works:
        work.wait()
    for p in trained:
        p.grad.div_(total.item())


# %% synchronise_buffers
def synchronise_buffers(model):
    for work in [dist.broadcast(buffer, src=0, async_op=True) for buffer in model.buffers()]:
        work.wait()
