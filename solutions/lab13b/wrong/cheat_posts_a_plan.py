# score: 22
# Elastic: no rendezvous after the first; steps are done on what is there.

# %% run_elastic
import contextlib


def run_elastic(state, train_step, rendezvous, num_steps, commit_every):
    comm = rendezvous()
    broadcast_state(comm, state.model, state.optimizer)
    while state.step < num_steps:
        with contextlib.suppress(WorkerLost, HostsUpdated):
            train_step(comm, state)
        state.step += 1
