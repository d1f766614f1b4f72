"""Where a program gets its samples and hands in its weights: the harness that started it, or its own process."""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import resource
import signal
import socket
import time
from typing import Any

import torch
from torch import nn

from worldsize import framing
from worldsize.bench.batches import Batch, Batches, DrawnBatches, Images, TextBatches
from worldsize.bench.reference_run import flat_weights
from worldsize.launch.worker.spans import span

_LETTING_GO_S = 0.1
ADDRESS = "WORLDSIZE_FEED"  # the socket of the harness, in the environment of every rank


class LocalSamples:
    """Samples drawn in this process, for a program that is not measured."""

    def __init__(self, batches: DrawnBatches) -> None:
        self._batches = batches

    def take(self, step: int, start: int, stop: int) -> Batch:
        """Return samples `start` up to `stop`, exclusive, of a step's global batch.

        Shapes:
            images: (n, C, H, H), and labels (n,); text: tokens (n, T), and the tokens that follow them, (n, T).
        """
        inputs, targets = self._batches.batch(step)
        return inputs[start:stop], targets[start:stop]

    def hand_in(self, model: nn.Module) -> None:
        """Do nothing: the weights are not needed."""


class Samples:
    """Samples that the harness hands out, recording who takes what and when."""

    def __init__(self, address: str, rank: int) -> None:
        self._rank = rank
        with contextlib.suppress(ValueError):  # only the main thread may set a signal handler
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # writing beyond the harness's file limit ends this process
        self._sock = socket.socket(socket.AF_UNIX)
        self._sock.connect(address)

    def take(self, step: int, start: int, stop: int) -> Batch:
        """Return samples `start` up to `stop`, exclusive, of a step's global batch, like `LocalSamples.take`.

        Raises:
            ValueError: there is no such step or there are no such samples.
            ConnectionError: the harness has ended.
        """
        with span(f"samples of step {step}", "data"):
            framing.send(self._sock, "take", rank=self._rank, step=step, start=start, stop=stop)
            header, body = _answer(self._sock)
            if header["most_bytes"]:
                _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
                resource.setrlimit(resource.RLIMIT_FSIZE, (header["most_bytes"], most))
            inputs, targets = _tensors(header["kinds"], body)
            return inputs, targets

    def hand_in(self, model: nn.Module) -> None:
        """Hand in the weights of a model, wrapped by DDP or not; one rank does so, after the last step."""
        framing.send(self._sock, "hand_in", flat_weights(model).numpy().tobytes())
        _answer(self._sock)


def lend_folder(address: str, folder: str) -> None:
    """Lend the harness an open file of the checkpoints' folder; called before any rank is started.

    Raises:
        ConnectionError: the harness has ended, or has a folder already.
        ValueError: a planned disturbance would harm others there.
    """
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(address)
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            framing.send(sock, "lend", fds=[fd])
        finally:
            os.close(fd)
        _answer(sock)


def open_samples(batch_size: int, seed: int, images: Images = "digits") -> Samples | LocalSamples:
    """Open the samples of this rank's training; every rank opens its own.

    Under a harness the samples come from it and cannot be known in advance, so `seed` and `images` have no effect.
    Without a harness they are drawn in this process.
    """
    return _under_harness() or LocalSamples(Batches(seed, batch_size, images))


def open_text(batch_size: int, length: int, seed: int) -> Samples | LocalSamples:
    """Open the sequences of this rank's training, like `open_samples`."""
    return _under_harness() or LocalSamples(TextBatches(seed, batch_size, length))


def _under_harness() -> Samples | None:
    """Return the harness's samples; None without a harness."""
    # Gloo's threads outlive destroy_process_group in torch 2.13; one that releases a tensor while the
    # interpreter is shutting down aborts the program, which 3 of 48 did on a loaded machine
    atexit.register(time.sleep, _LETTING_GO_S)
    address = os.environ.get(ADDRESS)
    return Samples(address, int(os.environ.get("RANK", 0))) if address else None


def _answer(sock: socket.socket) -> tuple[dict[str, Any], bytearray]:
    answer = framing.receive(sock)
    if answer is None:
        raise ConnectionError("the harness that hands out the samples has ended")
    header, body, _ = answer
    fields = framing.read_fields(header)
    if fields["kind"] == "refused":
        raise ValueError(fields["reason"])
    return fields, bytearray(body)


def _tensors(kinds: list[tuple[str, list[int]]], body: bytearray) -> list[torch.Tensor]:
    """Split a message's body into tensors of these dtypes and shapes."""
    tensors, begin = [], 0
    for name, shape in kinds:
        dtype = getattr(torch, name)
        end = begin + math.prod(shape) * dtype.itemsize
        piece = bytearray(body[begin:end])
        tensors.append(
            torch.frombuffer(piece, dtype=dtype).reshape(shape) if piece else torch.empty(shape, dtype=dtype)
        )
        begin = end
    return tensors
