# score: 14
# The server waits for everybody in every step, and tries to take the time out of workers' steps.

# %% run_unbounded_server
def run_unbounded_server(parameters, update, num_steps):
    run_server(parameters, update, num_steps, num_steps)


# %% run_server
from worldsize import emulate

spend = emulate.spend
emulate.spend = lambda time_s: spend(time_s) if dist.get_backend() == "gloo" else None


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
