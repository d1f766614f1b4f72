# outcome: malformed submission
# Holds a million cells.

# %% submission
import json


def hand_in(folder, notebook):
    cell = {"cell_type": "markdown", "id": "x", "metadata": {}, "source": ""}
    notebook["cells"] += [cell | {"id": f"x{number}"} for number in range(3000)]
    (folder / "sums.ipynb").write_text(json.dumps(notebook))
