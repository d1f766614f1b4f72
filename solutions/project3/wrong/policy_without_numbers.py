# score: 66
# hint: followed
# Words in place of seconds.


# %% policy
def policy(status):
    return "often"
