"""JupyterLab as the course opens it, started at the course's root: its first lesson in front, without pop-ups.

Students install it as `settings/jupyter_config.py`, where Jupyter finds it whichever way it is started.
"""

import glob
import os

c = get_config()  # noqa: F821  # pyright: ignore[reportUndefinedVariable]

ROOT = os.getcwd()
SWITCHED_OFF = [
    # asks whether to fetch news, and looks for updates; `LabApp.news_url = None` does not stop the question in 4.6
    "@jupyterlab/apputils-extension:announcements",
    # edits the marks of graded cells by hand, but notebooks are built
    "@jupyter/nbgrader:create-assignment",
]


def without_them(handler, page_config):
    """JupyterLab's settings of a page, with these plugins switched off."""
    page_config["disabledExtensions"] += SWITCHED_OFF
    return page_config


# a URL and not a file to open: so it is also in the URL that is printed where no browser opens,
# and the folder shown is the course's and not that of the file
first_lesson = min(glob.glob("weeks/*.ipynb", root_dir=ROOT), default="")
c.LabApp.default_url = f"/lab/tree/{first_lesson}" if first_lesson else "/lab"
c.ServerApp.root_dir = ROOT
# what a lesson writes beside itself is not for readers
c.ContentsManager.hide_globs = ["__pycache__", "*.pyc", "*.egg-info", "*~", "ledger.json"]
c.ServerApp.tornado_settings = {"page_config_hook": without_them}
# a container often has no other user, and `make lab` takes no flags
c.ServerApp.allow_root = True
