# score: 0
# Everything returns something odd.

# %% groups_along
def groups_along(sizes, *axes):
    return {"rank": [float("nan"), 10**30]}


# %% arrange
def arrange(sizes, sent_bytes, gpus_per_node):
    return [None] * len(sizes)


# %% gradients_on_mesh
def gradients_on_mesh(blocks, inputs, targets, mesh):
    for block in blocks:
        for one in block:
            one.grad = torch.full_like(one, float("nan"))
    return float("nan")


# %% clip
def clip(tensors, max_norm, groups):
    return float("inf")


# %% work_s
def work_s(job, machine, plan):
    return {"work": 1}


# %% communication
def tp_s(job, machine, plan):
    return float("nan")


def pp_s(job, machine, plan):
    return True


def dp_s(job, machine, plan):
    return 10**400


# %% step_time
def step_s(job, machine, plan):
    return [1.0]


def bubble_fraction(job, plan):
    return "none"


# %% rank_bytes
def rank_bytes(job, plan):
    return torch.ones(3)


# %% choose
def choose(job, machine):
    return (float("nan"), -1, 10**30, True)


# %% predict
def predict(run, anchor):
    return -float("inf")
