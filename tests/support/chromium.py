"""Finding and starting headless Chromium."""

import shutil

NAMES = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]


def installed() -> str | None:
    """The path of the first browser that is installed."""
    return next(filter(None, map(shutil.which, NAMES)), None)
