"""A real text for small language models, byte by byte: "Alice's Adventures in Wonderland"."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

VOCAB_SIZE = 256  # a token is a byte
_BOOK = Path(__file__).parent / "data" / "alice.txt.gz"  # its origin is documented in the same folder


def tokens() -> Tensor:
    """Return the 147,704 bytes of the book's twelve chapters, uint8.

    Source: Lewis Carroll, "Alice's Adventures in Wonderland", 1865, in the public domain.
    """
    return torch.frombuffer(bytearray(_book()), dtype=torch.uint8)


def batch(tokens: Tensor, batch_size: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw sequences that start at random positions, and the byte that follows each of their bytes.

    Shapes:
        tokens: (n,); inputs and targets: (batch_size, length), int64.

    Raises:
        ValueError: there are fewer than `length` + 1 tokens, or the batch would be empty.
    """
    num_places = len(tokens) - length
    if batch_size < 1 or length < 1 or num_places < 1:
        raise ValueError(
            f"A batch of {batch_size} sequences of {length} tokens, each with the token after it, cannot be cut from "
            f"{len(tokens)} tokens."
        )
    starts = torch.randint(num_places, (batch_size, 1), generator=generator)
    sequences = tokens[starts + torch.arange(length + 1)].long()  # (B, length + 1)
    return sequences[:, :-1].contiguous(), sequences[:, 1:].contiguous()


def decode(tokens: Tensor | Iterable[int]) -> str:
    """Decode bytes to text; invalid ones become U+FFFD."""
    return bytes(int(token) for token in tokens).decode("utf-8", errors="replace")


@cache
def _book() -> bytes:
    return gzip.decompress(_BOOK.read_bytes())
