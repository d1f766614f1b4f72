"""nbgrader for every user of a JupyterHub with ngshare: copy this file into etc/jupyter of their environment."""

import os

import ngshare_exchange  # pyright: ignore[reportMissingImports]

c = get_config()  # noqa: F821  # pyright: ignore[reportUndefinedVariable]

c.CourseDirectory.course_id = "worldsize"
c.Exchange.assignment_dir = os.path.expanduser("~/course/labs")  # absolute: JupyterLab's list of assignments goes there
ngshare_exchange.configureExchange(c, os.environ.get("NGSHARE_URL"))  # on Kubernetes it is known without
