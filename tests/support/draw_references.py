"""Redraw the reference images of the image tests. Look at them afterwards.

Run as `python tests/support/draw_references.py [NAME ...]`.
"""

import sys
from pathlib import Path

from drawings import DRAWINGS
from repository import ROOT

from worldsize.draw import Picture

REFERENCES = ROOT / "tests/data/figures"
_DPI = 48  # half of a screen's: small files in which a moved line still shows


def save(picture: Picture, path: Path) -> None:
    """Write the picture in the form that tests compare, with the version of matplotlib that drew it."""
    picture.savefig(path, dpi=_DPI)


if __name__ == "__main__":
    REFERENCES.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[1:] or DRAWINGS:
        save(DRAWINGS[name](), REFERENCES / f"{name}.png")
        print(REFERENCES / f"{name}.png")
