# outcome: malformed submission
# Comes with a cell whose parse alone takes ten gigabytes: Python joins dotted names again for each dot.

# %% submission
import json


def hand_in(folder, notebook):
    source = "import " + ".".join(100_000 * "a")
    cell = {"cell_type": "code", "id": "dots", "metadata": {}, "source": source, "outputs": [], "execution_count": None}
    notebook["cells"].append(cell)
    (folder / "sums.ipynb").write_text(json.dumps(notebook))
