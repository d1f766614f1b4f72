# score: 23
# hint: Copy what you commit
# A commit that training changes.

# %% run_elastic
def run_elastic(state: State, train_step, rendezvous, num_steps: int, commit_every: int) -> None:
    """Train until `num_steps` steps are done, whatever ranks come and go.

    - `rendezvous()` returns the `comm` of those that are alive now. It is called at the beginning,
      and after each WorkerLost or HostsUpdated, and at no other time.
    - After each rendezvous, the state of rank 0 of the new `comm` goes to all its ranks, by
      `broadcast_state`, and its `step` as well. What all have then is a commit.
    - `train_step(comm, state)` does one step and changes the model and the optimizer. `run_elastic`
      then adds 1 to `state.step`. `train_step` must not be called when `num_steps` are done.
    - When `state.step` has become a multiple of `commit_every`, the state is committed: kept in
      memory, without sending anything.
    - `train_step` raises WorkerLost: model, optimizer and step go back to the last commit before
      the next rendezvous.
    - It raises HostsUpdated: the step counts as done, and nothing goes back. Where it was the last
      step, the training is done.
    - All other exceptions pass through. It calls `broadcast_state` by this name.
    """

    def commit():
        return state.model.state_dict(), state.optimizer.state_dict(), state.step

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
            state.optimizer.load_state_dict(of_optimizer)
