# score: 66
# hint: an answer may take a few milliseconds
# Half a minute for every answer.


# %% policy
def policy(status):
    import time

    time.sleep(30)
    return 600
