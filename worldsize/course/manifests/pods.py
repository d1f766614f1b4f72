"""What all kinds for Kubernetes share: metadata, and the pod that runs one node's part of a job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from worldsize.course.manifests.job import Job
from worldsize.units import GB

PORT = 29500  # of torchrun's rendezvous, inside the pod's own network
_CLAIM = "checkpoints"
GPU = "nvidia.com/gpu"


def document(api_version: str, kind: str, name: str, labels: dict[str, str] | None = None, **rest: Any) -> dict:
    """A document of this kind, with its metadata first."""
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata(name, labels), **rest}


def metadata(name: str, labels: dict[str, str] | None = None) -> dict[str, Any]:
    """The name and, where there are any, the labels."""
    return {"name": name, **({"labels": labels} if labels else {})}


def queue_label(job: Job) -> dict[str, str]:
    """The label by which Kueue holds a job back until its queue has room for all of it."""
    return {"kueue.x-k8s.io/queue-name": job.queue}


def claim_name(job: Job) -> str:
    """The name of the claim on the checkpoints' volume, which every pod of the job mounts."""
    return f"{job.name}-{_CLAIM}"


def torchrun(job: Job, *where: str) -> list[str]:
    """The command line that starts a node's ranks; `where` are the flags that say how the nodes find each other."""
    sizes = [f"--nnodes={job.num_nodes}", f"--nproc-per-node={job.processes_per_node}"]
    return ["torchrun", *sizes, *where, *job.command]


def template(job: Job, container: str, command: Sequence[str], **spec: Any) -> dict[str, Any]:
    """The pod of one node, whose only container has this name and runs this command."""
    pod = {"spec": {**spec, "containers": [_container(job, container, command)], "volumes": _volumes(job)}}
    if job.topology:
        pod = {"metadata": {"annotations": {"kueue.x-k8s.io/podset-required-topology": job.topology}}, **pod}
    return pod


def resources(job: Job) -> dict[str, Any]:
    """The GPUs of a node; Kubernetes takes the limit as the request too, because GPUs cannot be shared out."""
    return {"limits": {GPU: job.gpus_per_node}} if job.gpus_per_node else {"requests": {"cpu": 1}}


def near_each_other(job: Job, labels: dict[str, str]) -> dict[str, Any]:
    """The rule that pods with these labels share one value of the topology's label, for plain Kubernetes schedulers."""
    if not job.topology:
        return {}
    rule = {"topologyKey": job.topology, "labelSelector": {"matchLabels": labels}}
    return {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [rule]}}}


def _container(job: Job, name: str, command: Sequence[str]) -> dict[str, Any]:
    return {
        "name": name,
        "image": job.image,
        **({"command": list(command)} if command else {}),
        "resources": resources(job),
        "volumeMounts": [
            {"name": _CLAIM, "mountPath": job.storage.path},
            {"name": "shared-memory", "mountPath": "/dev/shm"},
        ],
    }


def _volumes(job: Job) -> list[dict[str, Any]]:
    return [
        {"name": _CLAIM, "persistentVolumeClaim": {"claimName": claim_name(job)}},
        {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": _quantity(16 * GB)}},
    ]


def _quantity(size_bytes: float) -> str:
    return f"{size_bytes / GB:.0f}G"
