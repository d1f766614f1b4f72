"""Build the site of the course: `python website`, or `python website --weeks week01` for a part of it."""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from importlib.metadata import distributions
from pathlib import Path

from sphinx.cmd.build import build_main
from stage import stage

ROOT = Path(__file__).resolve().parents[1]
FRAMES = "60"  # at most, of an explorer, which has no kernel here


def main() -> int:
    """Build it. Exit status 1 where a page cannot be read or a cell fails."""
    parser = argparse.ArgumentParser(prog="python website", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "build/site", help="the folder to build in")
    parser.add_argument("--course", type=Path, default=ROOT, help="the folder that holds weeks/, labs/ and docs/")
    parser.add_argument("--weeks", nargs="*", default=(), help="such as week01 week03; all by default")
    parser.add_argument("--repository", help="its address, where pyproject.toml names another or none")
    given = parser.parse_args()
    out, course = given.out.resolve(), given.course.resolve()
    stage(course, out / "pages", given.weeks)
    os.environ["WORLDSIZE_FRAMES"] = FRAMES
    os.environ["WORLDSIZE_SITE_CACHE"] = str(out / "executed" / environment_sha256(ROOT / "worldsize"))
    settings = [f"-Drepository_folder={course}"]
    if given.repository is not None:
        settings.append(f"-Drepository_url={given.repository}")
    folders = ["-d", str(out / "read"), str(out / "pages"), str(out / "html")]
    status = build_main(
        ["-b", "html", "-c", str(ROOT / "website"), "-W", "--keep-going", "-q", "-j", "auto", *settings, *folders]
    )
    if not status:
        print(f"The site: {out / 'html' / 'index.html'}")
    return status


def environment_sha256(library: Path) -> str:
    """A hash of the library's code and of all packages: what a lesson gave with others is out of date."""
    packages = sorted(f"{one.name}=={one.version}" for one in distributions())
    seen = hashlib.sha256("\n".join(packages).encode())
    for path in sorted(library.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            seen.update(f"{path.relative_to(library)}\0".encode() + path.read_bytes())
    return seen.hexdigest()[:16]


if __name__ == "__main__":
    sys.exit(main())
