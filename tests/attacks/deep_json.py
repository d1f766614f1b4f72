# outcome: malformed submission
# Nests lists so deep that reading them would overflow a stack.

# %% submission
import json


def hand_in(folder, notebook):
    notebook["metadata"]["deep"] = "HERE"
    text = json.dumps(notebook).replace('"HERE"', "[" * 200_000 + "]" * 200_000)
    (folder / "sums.ipynb").write_text(text)
