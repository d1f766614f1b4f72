# score: 14
# hint: immediately answer every worker that may start
# The server waits until everybody has pushed, then applies the round: synchronous, whatever the
# bound.


# %% run_unbounded_server
def run_unbounded_server(parameters, update, num_steps):
    run_server(parameters, update, num_steps, num_steps)


# %% run_server
def run_server(parameters, update, num_steps, staleness_bound):
    num_workers = dist.get_world_size() - 1
    for _ in range(num_steps):
        for worker in range(1, num_workers + 1):
            dist.send(parameters, dst=worker)
        round_of_gradients = []
        for _ in range(num_workers):
            gradient = torch.empty_like(parameters)
            dist.recv(gradient)
            round_of_gradients.append(gradient)
        for gradient in round_of_gradients:
            update(parameters, gradient)
