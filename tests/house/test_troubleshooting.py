"""Every message that the page on troubleshooting quotes is one that the course can give."""

import ast
import re
from pathlib import Path

from repository import ROOT

PAGE = ROOT / "docs/troubleshooting.md"


def texts(path: Path) -> list[str]:
    """The texts in a program; of one with values in it, the parts between them."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def test_every_quoted_message_is_in_the_code():
    paths = [*ROOT.glob("worldsize/**/*.py"), *ROOT.glob("autograder/**/*.py"), ROOT / "nbgrader_config.py"]
    known = "\0".join(text for path in paths for text in texts(path))
    rows = [row.split("|")[1] for row in PAGE.read_text(encoding="utf-8").splitlines() if row.startswith("| `")]
    messages = [re.search("`(.+?)`", row)[1] for row in rows]
    parts = [part.strip(" ,;:.") for message in messages for part in message.split("…")]
    parts = [part for part in parts if len(part) > 3 and part != "SIGKILL"]
    assert len(parts) > 30
    assert not [part for part in parts if part not in known]
