# score: 0 to 0.5
# Every function returns the example of its docstring.

# %% which_time
def best_s(times_s):
    return 4.0


def spread_fraction(times_s):
    return 0.25


# %% fitted_line
def line(points):
    return 0.002, 1e9


# %% ring_link
def all_reduce_s(size_bytes, num_ranks, latency_s, bytes_per_s):
    return 0.0021


def alpha_beta(links, num_ranks):
    return 1e-4, 1e9


# %% alone
def product_s(products, flops, size_bytes):
    return 1.0


def pass_s(passes, name, size_bytes):
    return 1e-6


# %% in_program
def in_program(phases, alone_s):
    return 1e-5, 1.3


# %% prediction
def step_s(program, machine, alone_s):
    return 0.01


def save_s(program, machine):
    return 0.026


# %% left_out_error
def left_out_error(rows, fit):
    return 0.625


# %% predict
def predict(measured, program):
    return 0.01, 0.043
