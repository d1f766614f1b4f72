# score: 0
# Everything returns something odd.

# %% which_time
def best_s(times_s):
    return float("nan")


def spread_fraction(times_s):
    return "0.25"


# %% fitted_line
def line(points):
    return {"floor": 0}


# %% ring_link
def all_reduce_s(size_bytes, num_ranks, latency_s, bytes_per_s):
    return 10**400


def alpha_beta(links, num_ranks):
    return (float("inf"), True)


# %% alone
def product_s(products, flops, size_bytes):
    return -float("inf")


def pass_s(passes, name, size_bytes):
    return torch.ones(3)


# %% in_program
def in_program(phases, alone_s):
    return [None, None]


# %% prediction
def step_s(program, machine, alone_s):
    return True


def save_s(program, machine):
    return 1j


# %% left_out_error
def left_out_error(rows, fit):
    return [0.1]


# %% predict
def predict(measured, program):
    return torch.ones(2), None
