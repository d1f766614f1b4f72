"""JupyterHub on one machine: every user of the machine works on the course in a folder of their own.

    jupyterhub --config places/jupyterhub_config.py

It runs as root, because it starts each user's JupyterLab as that user. COURSE is the folder that `autograder release`
packs, unpacked where users may read it and not write. What is new there is copied at a user's next start; what a
student has is never overwritten.
"""

import os

c = get_config()  # noqa: F821  # pyright: ignore[reportUndefinedVariable]

COURSE = os.environ.get("WORLDSIZE_COURSE", "/opt/course")
START = 'mkdir -p course && cp -rn "$0/." course && cd course && exec jupyterhub-singleuser "$@"'

c.JupyterHub.bind_url = os.environ.get("WORLDSIZE_HUB", "http://127.0.0.1:8000")  # behind a proxy that speaks HTTPS
c.Spawner.cmd = ["sh", "-c", START, COURSE, "--config=jupyter_lab_config.py"]
c.Spawner.default_url = "/lab/tree/weeks/week01_why_one_gpu_is_not_enough.ipynb"
c.Spawner.start_timeout = 120
c.Authenticator.allow_all = True  # every user of this machine
