# score: 25
# hint: settings of the optimizer
# Of the optimizer's groups only the first gets the root's settings.


# %% broadcast_state
def broadcast_state(comm, model, optimizer, root=0):
    body = io.BytesIO()
    if comm.rank == root:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, body)
    num_bytes = torch.tensor([body.tell()])
    comm.Bcast(num_bytes, root)
    content = torch.frombuffer(bytearray(body.getvalue() or num_bytes.item()), dtype=torch.uint8)
    comm.Bcast(content, root)
    if comm.rank != root:
        state = torch.load(io.BytesIO(content.numpy().tobytes()), weights_only=True)
        model.load_state_dict(state["model"])
        groups = optimizer.state_dict()["param_groups"]
        state["optimizer"]["param_groups"][1:] = groups[1:]
        optimizer.load_state_dict(state["optimizer"])
