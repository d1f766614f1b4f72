# outcome: not written yet
# Holds pictures that would be written where their names say, and text that a template would fill in.

# %% submission
import base64
import json


def hand_in(folder, notebook):
    picture = {"image/svg+xml": "<svg onload=alert('hush')>", "image/png": base64.b64encode(b"x").decode()}
    text = "![x](attachment:../../../MARKER) {{ config }} {% include '/etc/passwd' %}"
    cell = {"cell_type": "markdown", "id": "text", "metadata": {}, "source": text}
    notebook["cells"].append(cell | {"attachments": {"../../../MARKER": picture}})
    (folder / "sums.ipynb").write_text(json.dumps(notebook))
