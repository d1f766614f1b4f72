# outcome: malformed submission
# Hands in a file of terabytes that takes no room, and another beside it.

# %% submission
import os


def hand_in(folder, notebook):
    for name in ("sums.ipynb", "data.bin"):
        (folder / name).touch()
        os.truncate(folder / name, 1 << 40)
