# score: 23
# hint: Try every order
# The axis whose ranks send most is the innermost one, whether or not it fits.

# %% arrange
def arrange(sizes, sent_bytes, gpus_per_node):
    return sorted(sizes, key=lambda axis: sent_bytes[axis])
