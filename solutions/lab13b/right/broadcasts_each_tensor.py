# The optimizer's state by pickle, the model's tensors one by one.

# %% broadcast_state
def broadcast_state(comm, model, optimizer, root=0):
    import pickle

    for one in model.state_dict().values():
        comm.Bcast(one, root)
    body = bytearray(pickle.dumps(optimizer.state_dict()) if comm.rank == root else b"")
    size = torch.tensor(len(body))
    comm.Bcast(size, root)
    content = torch.zeros(int(size), dtype=torch.uint8)
    if comm.rank == root:
        content.copy_(torch.frombuffer(body, dtype=torch.uint8))
    comm.Bcast(content, root)
    if comm.rank != root:
        optimizer.load_state_dict(pickle.loads(content.numpy().tobytes()))
