# outcome: malformed submission
# Hands in a pipe, at which whoever reads it waits for ever.

# %% submission
import os


def hand_in(folder, notebook):
    os.mkfifo(folder / "sums.ipynb")
