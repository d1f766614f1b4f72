"""What is proven of each lab's known answers, in `solutions/proven.json`: a later run then grades fewer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel

from autograder.files import write_whole

PATH = Path("solutions", "proven.json")  # below the course's folder


class Proof(BaseModel):
    """A lab's `checks.py` when every check was last run on every known answer, as hashes.

    `answers` is the hash of the known answers that last got what they declare by those checks, and `narrowest` names
    of them, for each check, the one that fails it and the fewest others.
    """

    checks: str
    answers: str = ""
    narrowest: list[str] = []


def read(root: Path) -> dict[str, Proof]:
    """The proof of each lab that has one."""
    path = root / PATH
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return {lab: Proof.model_validate(proof) for lab, proof in found.items()}


def write(root: Path, proofs: Mapping[str, Proof]) -> None:
    """Record these proofs."""
    shown = {lab: proof.model_dump() for lab, proof in proofs.items()}
    write_whole(root / PATH, json.dumps(shown, indent=1, sort_keys=True) + "\n")


def narrowest(failed: Mapping[str, set[str]]) -> list[str]:
    """For each check that some answer fails, the answer that fails it and the fewest others; sorted, each once.

    `failed` has the checks that each answer fails.
    """
    checks = set().union(*failed.values())
    return sorted({min((len(own), name) for name, own in failed.items() if check in own)[1] for check in checks})
