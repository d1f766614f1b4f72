"""The cost of a checkpoint and of a restart: the bytes that move, at the rates of the design's hosts and store."""

from __future__ import annotations

from dataclasses import replace

from worldsize import outages
from worldsize.capstone.design import Design
from worldsize.outages import Cause, TrainingJob


def write_s(design: Design) -> float:
    """Return the seconds until a checkpoint is complete: each node writes its shard."""
    store = design.storage
    rate = min(store.write_bytes_per_s, design.nodes.num_nodes * store.node_write_bytes_per_s)
    return copy_s(design) + design.checkpoint_bytes / rate


def copy_s(design: Design) -> float:
    """Return the seconds in which each GPU copies its shard to its host, over a shared PCIe switch; 0 without one."""
    host = design.cluster.host
    if host is None:
        return 0.0
    rate = host.link.bandwidth_bytes_per_s / host.gpus_per_uplink
    return design.checkpoint_bytes / design.cluster.world_size / rate


def stall_s(design: Design) -> float:
    """Return the seconds for which a checkpoint stops training."""
    return copy_s(design) if design.checkpoint.is_async else write_s(design)


def start_s(design: Design) -> float:
    """Return the seconds from a failure to training again: restarting and loading the last checkpoint."""
    store = design.storage
    rate = min(store.read_bytes_per_s, design.nodes.num_nodes * store.node_read_bytes_per_s)
    return design.failures.restart_s + design.checkpoint_bytes / rate


def job(design: Design) -> TrainingJob:
    """Describe the design as a job that can fail."""
    return TrainingJob(
        design.nodes.num_nodes,
        stall_s=stall_s(design),
        start_s=start_s(design),
        write_s=write_s(design),
        num_spares=design.nodes.num_spares,
    )


def causes(design: Design) -> list[Cause]:
    """Return the causes of node failures, with their rates.

    Raises:
        ValueError: the design names no source that `outages.published` knows.
    """
    return [replace(one, away_s=design.failures.away_s) for one in outages.published(design.failures.rates)]


def mean_s_to_failure(design: Design) -> float:
    """Return the mean seconds between failures of nodes in use."""
    per_node_hour = sum(one.per_node_hour for one in causes(design))
    return 3600 / (per_node_hour * design.nodes.num_nodes)


def mean_num_away(design: Design) -> float:
    """Return the mean number of nodes in repair: failures per second, times the seconds of a repair."""
    return design.failures.away_s / mean_s_to_failure(design)
