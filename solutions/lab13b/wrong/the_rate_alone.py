# score: 25
# hint: settings of the optimizer
# Of the settings of the optimizer's groups, only the learning rate is sent.


# %% broadcast_state
def broadcast_state(comm, model, optimizer, root=0):
    import pickle

    for one in model.state_dict().values():
        comm.Bcast(one, root)
    state = optimizer.state_dict()
    body = bytearray(pickle.dumps((state["state"], [one["lr"] for one in state["param_groups"]])))
    size = torch.tensor(len(body))
    comm.Bcast(size, root)
    content = torch.zeros(int(size), dtype=torch.uint8)
    if comm.rank == root:
        content.copy_(torch.frombuffer(body, dtype=torch.uint8))
    comm.Bcast(content, root)
    if comm.rank != root:
        state["state"], rates = pickle.loads(content.numpy().tobytes())
        for one, rate in zip(state["param_groups"], rates, strict=True):
            one["lr"] = rate
        optimizer.load_state_dict(state)
