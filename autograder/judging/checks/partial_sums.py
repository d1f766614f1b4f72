"""Sums on their way over the emulated wire: whose parts are in each number that ranks send each other.

They fit any algorithm that adds up tensors with messages: a ring, a tree, direct exchange.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from autograder.judging.checks.returned import entry, tensor_like
from worldsize.check import CheckFailed

if TYPE_CHECKING:
    import torch

    from worldsize.check import Drawn
    from worldsize.launch import Run

_RECEIVE = "What ranks know of each other comes from what they receive."


class Parts:
    """Drawn whole numbers, by rank and element, such that sums over different ranks or elements are never equal.

    A number on the wire therefore shows whose parts are in it: the mask has a bit for each rank. All sums are exact.
    """

    def __init__(self, rng: torch.Generator, world_size: int, size: int, dtype: torch.dtype | None = None) -> None:
        import torch

        dtype = dtype or torch.float32
        self.size, self._masks = size, torch.arange(1, 1 << world_size)
        is_in = (self._masks[:, None] >> torch.arange(world_size) & 1).double()
        most = int(2 / torch.finfo(dtype).eps) // world_size
        while True:
            drawn = torch.randint(1, most + 1, (world_size, size), generator=rng)
            self._sums, self._order = (is_in @ drawn.double()).flatten().sort()
            if len(self._sums.unique()) == len(self._sums):
                break
        self.of_rank = list(drawn.to(dtype))

    def total(self, ranks: Iterable[int]) -> torch.Tensor:
        """Return the sum over these ranks."""
        import torch

        return torch.stack([self.of_rank[rank] for rank in ranks]).sum(dim=0)

    def read(self, numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the mask of each nonzero number, -1 if it is not such a sum, and the element that it belongs to."""
        import torch

        numbers = numbers.detach().double().flatten()
        numbers = numbers[numbers != 0]
        places = torch.searchsorted(self._sums, numbers).clamp(max=len(self._sums) - 1)
        is_sum, found = self._sums[places] == numbers, self._order[places]
        return torch.where(is_sum, self._masks[found // self.size], -1), found % self.size

    def mask_in(self, value: Any, wanted: torch.Tensor) -> int:
        """Return the mask of all numbers that a rank returned in place of `wanted`; -1 if they have none or several."""
        given = tensor_like(value, wanted)
        masks = self.read(given)[0].unique().tolist() if given is not None else []
        return masks[0] if len(masks) == 1 else -1


def mask_of(ranks: Iterable[int]) -> int:
    """Return the mask of these ranks."""
    return sum(1 << rank for rank in ranks)


def named(mask: int) -> str:
    """Name the ranks of a mask, such as `0 + 2`."""
    return " + ".join(str(rank) for rank in range(mask.bit_length()) if mask >> rank & 1) or "none"


def draw_parts(values: Sequence[Any], chunks: Sequence[torch.Tensor], parts: Parts, ranks: Sequence[int]) -> Drawn:
    """Draw whose parts are in the chunks that ranks returned."""
    from worldsize.draw.contrast import grid

    rows = {}
    for rank in ranks:
        masks = [parts.mask_in(entry(values[rank], place), chunk) for place, chunk in enumerate(chunks)]
        rows[f"rank {rank}"] = ["all" if one == mask_of(ranks) else "?" if one < 0 else named(one) for one in masks]
    columns = [f"chunk {place}" for place in range(len(chunks))]
    return grid(rows, columns, "all", "The ranks whose parts are in each chunk, on each rank")


def expect_partial_sums(
    run: Run,
    parts: Parts,
    ranks: Sequence[int],
    needed: Mapping[int, torch.Tensor],
    takes_others: bool = False,
) -> None:
    """Raise CheckFailed unless all numbers sent are sums of parts that their sender had received by then.

    Every rank in `needed` must receive the parts of all `ranks` for its elements there. With `takes_others`, numbers
    that are not such sums may be sent too. Zeros may always be sent, as padding.
    """
    import torch

    bits = torch.tensor([1 << rank for rank in range(len(parts.of_rank))])
    held = bits[:, None].repeat(1, parts.size)  # by rank and element: whose parts it has
    messages = [one for one in run.exchanges if one.body]
    read = [parts.read(one.tensor()) for one in messages]
    turns = [(one.posted_s[one.ranks[0]], 1, place) for place, one in enumerate(messages)]
    turns += [(one.done_s[one.ranks[1]] * (1 - 1e-9), 0, place) for place, one in enumerate(messages)]
    for _, is_leaving, place in sorted(turns):
        (sender, receiver), (masks, elements) = messages[place].ranks, read[place]
        is_sum = masks > 0
        if not is_leaving:
            held[receiver, elements[is_sum]] |= masks[is_sum]
            continue
        if not (takes_others or is_sum.all()):
            raise CheckFailed(
                f"rank {sender} to send rank {receiver} sums of ranks' parts, each part once",
                f"{int((~is_sum).sum())} of {len(masks)} numbers in a message that are not such sums",
                (
                    "Send in each step what came in the step before: unchanged while finished sums are handed out, "
                    "with this rank's own part added while sums are made. Wait for it first."
                ),
            )
        early = (masks & ~held[sender, elements])[is_sum]
        if early.any():
            raise CheckFailed(
                f"rank {sender} to send on what it has received",
                f"a message with the part of rank {named(int(early[early > 0][0]))} before it arrived over the wire",
                f"{_RECEIVE} Wait for it before you pass it on.",
            )
    for rank, elements in needed.items():
        missing = mask_of(ranks) & ~held[rank, elements]
        if missing.any():
            raise CheckFailed(
                f"the parts of all ranks to reach rank {rank} over the wire",
                f"elements to which the part of rank {named(int(missing[missing > 0][0]))} was never added on the way",
                _RECEIVE,
            )


def expect_short_messages(run: Run, parts: Parts, owner: torch.Tensor, num_pieces: int) -> None:
    """Raise CheckFailed if a message has more elements than its tensor divided by `num_pieces`, rounded up.

    `owner` maps each element to the index of its tensor.
    """
    for one in run.exchanges:
        sent = one.tensor()
        masks, elements = parts.read(sent)
        num = int((owner == owner[elements[0]]).sum()) if (masks > 0).any() else 0
        most = -(-num // num_pieces)
        if num and len(sent) > most:
            raise CheckFailed(
                f"messages of at most {most} elements of a tensor of {num}",
                f"one of {len(sent)} from rank {one.ranks[0]}",
                "Split the tensor as evenly as possible, and send one chunk per step.",
            )


def expect_dtype(run: Run, dtype: torch.dtype) -> None:
    """Raise CheckFailed if numbers are sent in a different dtype."""
    wanted = str(dtype).removeprefix("torch.")
    if others := {one.dtype for one in run.exchanges if one.body} - {wanted}:
        raise CheckFailed(
            f"a {wanted} tensor to travel as {wanted}",
            f"messages of {', '.join(sorted(others))}",
            "Numbers travel in the tensor's own dtype.",
        )
