"""JupyterLab as the course opens it: quiet, at the course's root."""

c = get_config()  # noqa: F821  # pyright: ignore[reportUndefinedVariable]

c.LabApp.news_url = None
c.LabApp.check_for_updates_class = "jupyterlab.NeverCheckForUpdate"
