"""JupyterLab as the course opens it: at the course's root, week 1 in front, without pop-ups."""

import os

c = get_config()  # noqa: F821  # pyright: ignore[reportUndefinedVariable]

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
c.LabApp.default_url = "/lab/tree/weeks/week01_why_one_gpu_is_not_enough.ipynb"
c.ServerApp.root_dir = os.path.dirname(os.path.abspath(__file__))
c.ServerApp.tornado_settings = {"page_config_hook": without_them}
# a container often has no other user, and `make lab` takes no flags
c.ServerApp.allow_root = True
