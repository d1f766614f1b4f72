# outcome: not written yet
# Comes with files whose names are options, lines, escapes and no text at all.

# %% submission
import json
import os


def hand_in(folder, notebook):
    for name in ("--force", "-rf", "a\nb", "\x1b[2J", "%s%n{0}", "x" * 255, "..  ", "con", "$(touch MARKER)", "';--"):
        (folder / name).write_text("hush")
    with open(os.path.join(os.fsencode(folder), b"\xff\xfe.txt"), "w") as file:
        file.write("hush")
    (folder / "sums.ipynb").write_text(json.dumps(notebook))
