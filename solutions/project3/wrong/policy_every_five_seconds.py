# score: 66
# hint: 60 s is the least that this job takes
# A save every five seconds: each begins long before the one before it is whole.


# %% policy
def policy(status):
    return 5
