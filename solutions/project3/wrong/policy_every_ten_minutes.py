# score: 78 to 83
# hint: 1,024 nodes
# A save every ten minutes on all nodes, whatever a save costs and however often nodes fail.


# %% policy
def policy(status):
    return 600
