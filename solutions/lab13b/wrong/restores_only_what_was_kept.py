# score: 25
# hint: go back to all of it
# What was committed is copied into the optimizer's state; what came after a commit without any, as
# before the first step, stays.


# %% run_elastic
def run_elastic(state, train_step, rendezvous, num_steps, commit_every):
    def commit():
        parts = (state.model.state_dict(), state.optimizer.state_dict(), state.step)
        return copy.deepcopy(parts)

    while True:
        comm = rendezvous()
        broadcast_state(comm, state.model, state.optimizer)
        done = torch.tensor([state.step])
        comm.Bcast(done)
        state.step = int(done)
        kept = commit()
        try:
            while state.step < num_steps:
                train_step(comm, state)
                state.step += 1
                if state.step % commit_every == 0:
                    kept = commit()
            return
        except HostsUpdated:
            state.step += 1
            if state.step >= num_steps:
                return
        except WorkerLost:
            of_model, of_optimizer, state.step = kept
            state.model.load_state_dict(of_model)
            own = state.optimizer.state_dict()["state"]
            of_optimizer["state"] = own | of_optimizer["state"]
            state.optimizer.load_state_dict(of_optimizer)
