"""What to do about a failure, a hang or a full GPU: a sentence, and where docs/troubleshooting.md says more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from worldsize.memory.use import ACTIVATIONS, COMMUNICATION, GRADIENTS, OPTIMIZER_STATE, TEMPORARIES, WEIGHTS

_HANGS, _FAILURES, _MEMORY = "nothing-moves", "a-rank-fails", "out-of-memory"


@dataclass(frozen=True)
class Cure:
    """What to do, and the section of docs/troubleshooting.md with more."""

    sentence: str
    section: str = _FAILURES

    def __str__(self) -> str:
        return f"What to do: {self.sentence} (docs/troubleshooting.md#{self.section})"


SAME_CALLS = Cure(
    "make every rank of the group call the same collectives in the same order; look for an `if` on the rank, an early "
    "`continue` or an exception that was caught before these lines.",
    _HANGS,
)
SAME_SIZES = Cure(
    "give every rank a tensor with as many items: pad the last batch or leave it out, or exchange the sizes first.",
    _HANGS,
)
EVERY_GROUP = Cure("let every rank make all groups, in one loop, and keep its own.", _HANGS)
SEND_FIRST = Cure("start what you send before you wait: isend, then recv, then wait.", _HANGS)
SAME_STEPS = Cure(
    "let every rank reach this call as often: the same number of steps (drop the last batch, or train inside "
    "`with model.join():`), and no `if` on the rank around it.",
    _HANGS,
)
EVERY_RANK = Cure(
    "call it on every rank of the group; keep only what writes or prints inside an `if` on the rank.", _HANGS
)
NO_MESSAGE = Cure(
    "let every recv have its send: look at which rank should send what is waited for, and what that rank does instead.",
    _HANGS,
)
NOT_THERE = Cure(
    "look at the line where that rank is: it is slow or stuck there (loading, saving, a lock), or an `if` on the rank "
    "has led it past the call.",
    _HANGS,
)

_SHARD = "shard it with FSDP over more ranks, and reshard after forward."
# what helps if most of a peak is of a kind
_BY_KIND = {
    ACTIVATIONS: "activation checkpointing (torch.utils.checkpoint, checkpoint_wrapper), a smaller micro-batch, "
    "sequence or context parallelism.",
    WEIGHTS: _SHARD,
    GRADIENTS: _SHARD,
    OPTIMIZER_STATE: _SHARD,
    TEMPORARIES: "compute the loss in chunks or in parallel if they are logits, or take a smaller micro-batch.",
    COMMUNICATION: "gather less at once: apply fully_shard to smaller modules, and reshard after forward.",
}
FRAGMENTS = Cure(
    "leave room for what the allocator reserves beyond the tensors: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
    _MEMORY,
)

# texts of torch's and this library's errors, and what to do about each
_BY_TEXT = {
    "Expected to have finished reduction": Cure(
        "let every rank's loss use all parameters, or give DistributedDataParallel find_unused_parameters=True."
    ),
    "Tensors must be contiguous": Cure("communicate tensor.contiguous(), and copy what it receives back."),
    "Split sizes doesn't match": Cure("let the split sizes add up to the tensor's rows; exchange the counts first."),
    "split_sizes": Cure("let the split sizes add up to the tensor's rows; exchange the counts first."),
    "bytes came for tensors of": Cure("receive into tensors as large as what was sent; exchange the sizes first."),
    "invalid load key": SAME_CALLS,
    "pickle data was truncated": SAME_CALLS,
    "uniform original parameter dtype": Cure(
        "give parameters of one dtype to each fully_shard: shard the module with another dtype by itself."
    ),
    "uniform dtype": Cure(
        "give parameters of one dtype to each fully_shard: shard the module with another dtype by itself."
    ),
    "invalid device ordinal": Cure("choose a GPU by LOCAL_RANK, not by RANK."),
    "Cannot access data pointer of Tensor that doesn't have storage": Cure(
        "give it data first: call model.to_empty(device=...) after sharding, then set the weights."
    ),
}


def of_peak(sizes: Mapping[str, float]) -> Cure | None:
    """Return what to do about a peak of these bytes by kind, if it holds anything."""
    most = max(sizes, key=lambda kind: sizes[kind], default="")
    return Cure(f"most of the peak is {most}: {_BY_KIND[most]}", _MEMORY) if sizes.get(most) else None


def of_failure(text: str) -> Cure | None:
    """Return what to do about an error with this text, if it is known."""
    return next((cure for known, cure in _BY_TEXT.items() if known in text), None)
