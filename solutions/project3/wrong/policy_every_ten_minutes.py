# score: 66
# hint: saves of five minutes
# A save every ten minutes on all nodes, whatever a save costs and however often nodes fail.


# %% policy
def policy(status):
    return 600
