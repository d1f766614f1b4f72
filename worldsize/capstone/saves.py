"""What a save and a restart of a design take: the bytes that move, at the rates of its hosts and its store."""

from __future__ import annotations

from dataclasses import replace

from worldsize import outages
from worldsize.capstone.design import Design
from worldsize.outages import Cause, TrainingJob


def write_s(design: Design) -> float:
    """Seconds from the begin of a save until it is whole: each node writes its share."""
    store = design.storage
    rate = min(store.write_bytes_per_s, design.nodes.num_nodes * store.node_write_bytes_per_s)
    return copy_s(design) + design.checkpoint_bytes / rate


def copy_s(design: Design) -> float:
    """Seconds in which each GPU copies its share to its host, over a PCIe switch that it shares; 0 without a host."""
    host = design.cluster.host
    if host is None:
        return 0.0
    rate = host.link.bandwidth_bytes_per_s / host.gpus_per_uplink
    return design.checkpoint_bytes / design.cluster.world_size / rate


def stall_s(design: Design) -> float:
    """Seconds in which training stands still for a save."""
    return copy_s(design) if design.checkpoint.is_async else write_s(design)


def start_s(design: Design) -> float:
    """Seconds from a failure to training again: the restart, and the loading of the last save."""
    store = design.storage
    rate = min(store.read_bytes_per_s, design.nodes.num_nodes * store.node_read_bytes_per_s)
    return design.failures.restart_s + design.checkpoint_bytes / rate


def job(design: Design) -> TrainingJob:
    """The design as a job that can fail."""
    return TrainingJob(
        design.nodes.num_nodes,
        stall_s=stall_s(design),
        start_s=start_s(design),
        write_s=write_s(design),
        num_spares=design.nodes.num_spares,
    )


def causes(design: Design) -> list[Cause]:
    """Why nodes fail, and how often.

    Raises:
        ValueError: the design names no source that `outages.published` knows.
    """
    return [replace(one, away_s=design.failures.away_s) for one in outages.published(design.failures.rates)]


def mean_s_to_failure(design: Design) -> float:
    """Mean seconds from one failure of a node in use to the next."""
    per_node_hour = sum(one.per_node_hour for one in causes(design))
    return 3600 / (per_node_hour * design.nodes.num_nodes)


def mean_num_away(design: Design) -> float:
    """Mean number of nodes that are away for repair: those that fail in a second, times the seconds of a repair."""
    return design.failures.away_s / mean_s_to_failure(design)
