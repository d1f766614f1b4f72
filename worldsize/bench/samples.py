"""Where a program gets its samples and hands in its weights: the harness that started it, or its own process."""

from __future__ import annotations

import atexit
import os
import socket
import time
from typing import Any

import torch
from torch import nn

from worldsize import framing
from worldsize.bench.batches import Batch, Batches
from worldsize.bench.reference_run import flat_weights
from worldsize.bench.task import Images
from worldsize.launch.worker.spans import span

_LETTING_GO_S = 0.1
ADDRESS = "WORLDSIZE_FEED"  # the socket of the harness, in the environment of every rank


class LocalSamples:
    """Samples drawn in this process, for a program that is not measured."""

    def __init__(self, batch_size: int, seed: int, images: Images = "digits") -> None:
        self._batches = Batches(seed, batch_size, images)

    def take(self, step: int, start: int, stop: int) -> Batch:
        """Samples `start` up to `stop`, exclusive, of a step's global batch: images (n, C, H, H), labels (n,)."""
        images, labels = self._batches.batch(step)
        return images[start:stop], labels[start:stop]

    def hand_in(self, model: nn.Module) -> None:
        """Do nothing: the weights are not needed."""


class Samples:
    """Samples that the harness hands out, recording who takes what and when."""

    def __init__(self, address: str, rank: int) -> None:
        self._rank = rank
        self._sock = socket.socket(socket.AF_UNIX)
        self._sock.connect(address)

    def take(self, step: int, start: int, stop: int) -> Batch:
        """Samples `start` up to `stop`, exclusive, of a step's global batch, like `LocalSamples.take`.

        Raises:
            ValueError: there is no such step or there are no such samples.
            ConnectionError: the harness has ended.
        """
        with span(f"samples of step {step}", "data"):
            framing.send(self._sock, "take", rank=self._rank, step=step, start=start, stop=stop)
            header, body = self._answer()
            num, shape = stop - start, header["shape"]
            labels = torch.frombuffer(body, dtype=torch.int64, count=num) if num else torch.empty(0, dtype=torch.int64)
            pixels = bytearray(body[8 * num :])
            images = torch.frombuffer(pixels, dtype=torch.float32) if num else torch.empty(0)
            return images.reshape(num, *shape), labels

    def hand_in(self, model: nn.Module) -> None:
        """Hand in the weights of a model, wrapped by DDP or not; one rank does so, after the last step."""
        framing.send(self._sock, "hand_in", flat_weights(model).numpy().tobytes())
        self._answer()

    def _answer(self) -> tuple[dict[str, Any], bytearray]:
        answer = framing.receive(self._sock)
        if answer is None:
            raise ConnectionError("the harness that hands out the samples has ended")
        header, body, _ = answer
        if header["kind"] == "refused":
            raise ValueError(header["reason"])
        return header, bytearray(body)


def open_samples(batch_size: int, seed: int, images: Images = "digits") -> Samples | LocalSamples:
    """The samples of the training that this process is a rank of; every rank opens its own.

    Under a harness they come from there, and neither `seed` nor `images` has any effect: the samples cannot be known in
    advance. Without one they are drawn here.
    """
    # Gloo's threads outlive destroy_process_group in torch 2.13; one that wants to let go of a tensor while the
    # interpreter is being taken down aborts the program, which 3 of 48 did on a loaded machine
    atexit.register(time.sleep, _LETTING_GO_S)
    if address := os.environ.get(ADDRESS):
        return Samples(address, int(os.environ.get("RANK", 0)))
    return LocalSamples(batch_size, seed, images)
