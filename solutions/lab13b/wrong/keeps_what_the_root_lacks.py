# score: 25
# hint: the root's optimizer state
# A rank whose optimizer has a state keeps it where the root's has none.


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
        of_optimizer = state["optimizer"]
        of_optimizer["state"] = optimizer.state_dict()["state"] | of_optimizer["state"]
        optimizer.load_state_dict(of_optimizer)
