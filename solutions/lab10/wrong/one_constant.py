# score: 22
# hint: the one-constant guess
# The one-constant guess: the share of the peak is that of the anchor.

# %% predict
def predict(run, anchor):
    return one_constant_s(run, anchor)
