# score: 25
# hint: let all others pass through
# Any RuntimeError in a step, such as one of a shape or of memory, counts as a lost worker.


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
        except RuntimeError:
            of_model, of_optimizer, state.step = kept
            state.model.load_state_dict(of_model)
            state.optimizer.load_state_dict(of_optimizer)
