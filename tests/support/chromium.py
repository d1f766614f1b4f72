"""Chromium without a window: where it is, and how it is started."""

import shutil

NAMES = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]


def installed() -> str | None:
    """The path of the first that is installed."""
    return next(filter(None, map(shutil.which, NAMES)), None)
