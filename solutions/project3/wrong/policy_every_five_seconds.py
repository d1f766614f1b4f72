# score: 66
# hint: this job needs at least 60 s
# A save every five seconds: each begins long before the one before it is whole.


# %% policy
def policy(status):
    return 5
