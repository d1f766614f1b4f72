# score: 0
# Every function returns the example of its docstring.

# %% groups_along
def groups_along(sizes, *axes):
    return [[0, 4], [1, 5], [2, 6], [3, 7]]


# %% arrange
def arrange(sizes, sent_bytes, gpus_per_node):
    return ["dp", "tp"]


# %% gradients_on_mesh
def gradients_on_mesh(blocks, inputs, targets, mesh):
    for block in blocks:
        for one in block:
            one.grad = torch.zeros_like(one)
    return 0.0


# %% clip
def clip(tensors, max_norm, groups):
    return 5.0


# %% work_s
def work_s(job, machine, plan):
    return 0.01243


# %% communication
def tp_s(job, machine, plan):
    return 0.001007


def pp_s(job, machine, plan):
    return 0.0001678


def dp_s(job, machine, plan):
    return 0.01652


# %% step_time
def step_s(job, machine, plan):
    return 0.5


def bubble_fraction(job, plan):
    return 3 / 11


# %% rank_bytes
def rank_bytes(job, plan):
    return 3660578816.0


# %% choose
def choose(job, machine):
    return Plan(8, 2, 2, 1, False)


# %% predict
def predict(run, anchor):
    return anchor.step_s
