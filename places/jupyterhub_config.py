"""JupyterHub on one machine: every user of the machine works on the course in a folder of their own.

    jupyterhub --config places/jupyterhub_config.py

It runs as root, because it starts each user's JupyterLab as that user. COURSE is the folder that `autograder release`
packs, unpacked where users may read it and not write. What is new there is copied at a user's next start; what a
student has is never overwritten. NGSHARE is the Python that ngshare is installed for; without it there is no exchange.
"""

import os

c = get_config()  # noqa: F821  # pyright: ignore[reportUndefinedVariable]

COURSE = os.environ.get("WORLDSIZE_COURSE", "/opt/course")
NGSHARE = os.environ.get("WORLDSIZE_NGSHARE")
NGSHARE_URL = os.environ.get("WORLDSIZE_NGSHARE_URL", "http://127.0.0.1:10101")
HANDED_IN = os.environ.get("WORLDSIZE_HANDED_IN", "/srv/ngshare")
INSTRUCTORS = os.environ.get("WORLDSIZE_INSTRUCTORS", "")  # names of users, with commas between them
START = 'mkdir -p course && cp -rn "$0/." course && cd course && exec jupyterhub-singleuser "$@"'

c.JupyterHub.bind_url = os.environ.get("WORLDSIZE_HUB", "http://127.0.0.1:8000")  # behind a proxy that speaks HTTPS
c.Spawner.cmd = ["sh", "-c", START, COURSE, "--config=jupyter_lab_config.py"]
c.Spawner.default_url = "/lab/tree/weeks/week01_why_one_gpu_is_not_enough.ipynb"
c.Spawner.start_timeout = 120
c.Authenticator.allow_all = True  # every user of this machine

if NGSHARE:  # nbgrader's exchange by the hub's own users: docs/hub.md
    kept = ["--database", f"sqlite:///{HANDED_IN}/ngshare.db", "--storage", f"{HANDED_IN}/files"]
    command = [NGSHARE, "-I", "-m", "ngshare", *kept, "--admins", INSTRUCTORS]
    c.JupyterHub.services.append({"name": "ngshare", "url": NGSHARE_URL, "command": command})
    may = "access:services!service=ngshare"  # what users may, and what nbgrader in their servers may for them
    c.JupyterHub.load_roles.append({"name": "user", "scopes": ["self", may]})
    c.Spawner.environment = {"NGSHARE_URL": f"{NGSHARE_URL}/services/ngshare"}
    c.Spawner.server_token_scopes = ["users:activity!user", "access:servers!server", may]
