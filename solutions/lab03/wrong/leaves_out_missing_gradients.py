# score: 29.5
# hint: rank
# A rank without a gradient makes no call: the calls of others then meet the wrong ones, or none.


# %% average_one_by_one
def average_one_by_one(module):
    for parameter in module.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
