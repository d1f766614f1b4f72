# outcome: malformed submission
# Holds cells of source on which parsers overflow, explode and never end.

# %% submission
import json

BOMBS = (
    "-" * 60_000 + "1",
    "(" * 60_000,
    "x = " + "[" * 5000 + "]" * 5000,
    "lambda: " * 9_000 + "1",
    "x = 1" + "0" * 50_000,
)
BOMBS += (
    "a" + ".a" * 50_000,
    "not " * 50_000 + "x",
    "f" + "'" * 3 + "{" * 5000,
    "@" + "a()" * 9_000,
    "if x:\n" * 5000,
)
BOMBS += (
    "x = " + "1+" * 50_000 + "1",
    "x: " + "a[" * 3000 + "]" * 3000,
    "\x00",
    "def f(" + ",".join(f"a{n}" for n in range(9999)) + "): 0",
)


def hand_in(folder, notebook):
    for number, bomb in enumerate(BOMBS):
        cell = {"cell_type": "code", "id": f"bomb-{number}", "metadata": {}, "source": bomb, "outputs": []}
        notebook["cells"].append(cell | {"execution_count": None})
    (folder / "sums.ipynb").write_text(json.dumps(notebook))
