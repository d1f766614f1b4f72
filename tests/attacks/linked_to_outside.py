# outcome: not written yet
# Hands in hard and soft links into the course, which nobody may follow.

# %% submission
import json
import os


def hand_in(folder, notebook):
    course = folder.parent.parent.parent
    os.symlink("../../../solutions", folder / "data")
    os.symlink("/proc/self/environ", folder / "environ")
    os.symlink("/dev/zero", folder / "zero")
    (folder / "inner").mkdir()
    os.symlink(course, folder / "inner" / "course")
    (folder / "sums.ipynb").write_text(json.dumps(notebook))
