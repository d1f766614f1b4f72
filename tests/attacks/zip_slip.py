# outcome: malformed submission
# Hands in an archive, whose members would land in other folders when unpacked.

# %% submission
import io
import json
import zipfile


def hand_in(folder, notebook):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name in ("../../../gradebook.db", "/tmp/MARKER", "../../honest/sums/sums.ipynb", "sums.ipynb"):
            archive.writestr(name, json.dumps(notebook))
    for name in ("sums.ipynb", "sums.zip"):
        (folder / name).write_bytes(packed.getvalue())
