# outcome: not written yet
# Comes with files that Python, pytest, nbgrader or the judge might run or import.

# %% submission
import json

CODE = "open('/tmp/MARKER', 'w').close()"
NAMES = ("conftest.py", "sitecustomize.py", "usercustomize.py", "torch.py", "checks.py", "json.py", "autograder.py")
NAMES += ("nbgrader_config.py", "jupyter_config.py", "MARKER.pth", "worldsize.py", "pytest_plugins.py", "setup.py")


def hand_in(folder, notebook):
    for name in NAMES:
        (folder / name).write_text(("import os; " if name.endswith(".pth") else "") + CODE)
    (folder / "pytest.ini").write_text("[pytest]\naddopts = -p conftest")
    (folder / ".jupyter").mkdir()
    (folder / ".jupyter" / "jupyter_config.py").write_text(CODE)
    (folder / "sums").mkdir()
    (folder / "sums" / "__init__.py").write_text(CODE)
    (folder / "sums.ipynb").write_text(json.dumps(notebook))
