"""Preparation of a process that forks many ranks, so that they share its memory and start fast."""

from __future__ import annotations

import ctypes
import gc
import re
import sys

_HUGE_PAGE = 2 << 20
_COLLAPSE = 25  # MADV_COLLAPSE in linux/mman.h, since Linux 6.1
_OWN = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw-p 0+ 00:00 0 +(|\[heap\])\n")  # an anonymous mapping in /proc/self/maps


def prepare() -> None:
    """Freeze existing objects for the garbage collector, and gather the memory in huge pages.

    A collection in a rank would write to every object, and so copy memory that all ranks share. A fork copies a page
    table entry for every page: with pages of 4 KiB, this is most of the time that a rank takes to start and to end.
    """
    gc.collect()
    gc.freeze()
    if sys.platform == "linux":
        _gather()


def _gather() -> None:
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    with open("/proc/self/maps") as file:
        own = [found.groups() for line in file if (found := _OWN.fullmatch(line))]
    for first, last, _ in own:
        start = -(-int(first, 16) // _HUGE_PAGE) * _HUGE_PAGE
        if (length := int(last, 16) // _HUGE_PAGE * _HUGE_PAGE - start) > 0:
            advise(start, length, _COLLAPSE)  # on kernels without it this fails harmlessly
