# outcome: malformed submission
# Holds half a character, which no file can be written with.

# %% submission
import json


def hand_in(folder, notebook):
    notebook["cells"][-1]["source"] = "HALF"
    (folder / "sums.ipynb").write_text(json.dumps(notebook).replace("HALF", "\\ud800"))
