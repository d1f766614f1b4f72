# score: 23
# hint: one between two steps
# A commit is broadcast once more, and every error counts as a loss.


# %% run_elastic
def run_elastic(state, train_step, rendezvous, num_steps, commit_every):
    def commit():
        broadcast_state(comm, state.model, state.optimizer)  # sends at each commit
        return copy.deepcopy((state.model.state_dict(), state.optimizer.state_dict(), state.step))

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
        except Exception:  # all of them, not WorkerLost alone
            of_model, of_optimizer, state.step = kept
            state.model.load_state_dict(of_model)
            state.optimizer.load_state_dict(of_optimizer)
