# A commit as bytes, and a loop that looks at what happened.

# %% run_elastic
def run_elastic(state, train_step, rendezvous, num_steps, commit_every):
    def packed():
        body = io.BytesIO()
        torch.save([state.model.state_dict(), state.optimizer.state_dict(), state.step], body)
        return body.getvalue()

    happened, comm, kept = "start", None, b""
    while True:
        if happened == "lost":
            model, optimizer, state.step = torch.load(io.BytesIO(kept))
            state.model.load_state_dict(model)
            state.optimizer.load_state_dict(optimizer)
        if happened in ("start", "lost", "added"):
            comm = rendezvous()
            broadcast_state(comm, state.model, state.optimizer)
            number = torch.tensor(float(state.step))
            comm.Bcast(number)
            state.step = int(number)
            kept = packed()
        if state.step >= num_steps:
            break
        try:
            train_step(comm, state)
            happened = "done"
        except WorkerLost:
            happened = "lost"
            continue
        except HostsUpdated:
            happened = "added"
        state.step += 1
        if state.step == num_steps:
            break
        if state.step % commit_every == 0:
            kept = packed()
