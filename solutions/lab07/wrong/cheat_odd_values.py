# score: 22
# hint: the norm as a number
# What comes back of clipping is odd, and Adam's state is full of nan.

# %% clip_gradients
def clip_gradients(units, max_norm):
    for unit in units:
        unit.gradient = {"nothing": [float("nan")]}
    return [float("inf")]
