"""Fingerprints of token sequences by winnowing: the smallest hash of every window; no long match is missed.

Source: S. Schleimer, D. Wilkerson, A. Aiken, "Winnowing: Local Algorithms for Document Fingerprinting", SIGMOD 2003. A
match of at least WINDOW + LENGTH - 1 tokens is always found, one of fewer than LENGTH tokens never.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from autograder.similarity.tokens import Token

LENGTH = 12  # tokens that are hashed together
WINDOW = 5  # hashes of which one is chosen


class Span(NamedTuple):
    """The lines that a fingerprint covers, both included."""

    first: int
    last: int


def fingerprints(tokens: Sequence[Token]) -> dict[int, list[Span]]:
    """The fingerprints of a sequence, each with the lines of its occurrences; a fingerprint never spans two parts."""
    found: dict[int, list[Span]] = {}
    for part in _parts(tokens):
        grams = [part[at : at + LENGTH] for at in range(len(part) - LENGTH + 1)]
        hashes = [_hash(" ".join(one.text for one in gram)) for gram in grams]
        for place in _chosen(hashes):
            lines = [one.line for one in grams[place]]
            found.setdefault(hashes[place], []).append(Span(min(lines), max(lines)))
    return found


def _parts(tokens: Sequence[Token]) -> list[Sequence[Token]]:
    """Cut the sequence where a definition begins or ends, so that fingerprints do not depend on the order."""
    cuts = [0, *(place for place, one in enumerate(tokens) if one.is_first), len(tokens)]
    return [tokens[start:stop] for start, stop in pairwise(cuts)]


def _chosen(hashes: Sequence[int]) -> list[int]:
    """The indices of the smallest hash of each window (the rightmost if several are equal), without repeats."""
    places: dict[int, None] = {}
    for start in range(max(1, len(hashes) - WINDOW + 1) if hashes else 0):
        window = range(start, min(start + WINDOW, len(hashes)))
        places[min(window, key=lambda place: (hashes[place], -place))] = None
    return list(places)


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest())
