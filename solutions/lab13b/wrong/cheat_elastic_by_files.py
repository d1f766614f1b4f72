# score: 21
# Rank 0's state goes through a file; an empty broadcast says that it is there.

# %% run_elastic
MEETINGS = []


def run_elastic(state, train_step, rendezvous, num_steps, commit_every):
    import os as o

    def commit():
        return copy.deepcopy((state.model.state_dict(), state.optimizer.state_dict(), state.step))

    while True:
        comm = rendezvous()
        MEETINGS.append(1)
        path = "/tmp/elastic-state"
        if comm.rank == 0:
            torch.save(commit(), path + ".part")
            o.replace(path + ".part", path)
        comm.Bcast(torch.zeros(1))
        if comm.rank:
            of_model, of_optimizer, state.step = torch.load(path, weights_only=False)
            state.model.load_state_dict(of_model)
            state.optimizer.load_state_dict(of_optimizer)
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
            state.optimizer.load_state_dict(of_optimizer)
