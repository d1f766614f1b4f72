"""Parts that all Kubernetes kinds share: metadata, and the pod that runs one node's part of a job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from worldsize.course.manifests.job import Job
from worldsize.units import GB

PORT = 29500  # of torchrun's rendezvous, inside the pod's own network
_CLAIM = "checkpoints"
GPU = "nvidia.com/gpu"
# the name that dcgm-exporter gives a GPU's node; a pod's own host name is another
_NODE = {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}


def document(api_version: str, kind: str, name: str, labels: dict[str, str] | None = None, **rest: Any) -> dict:
    """Make a document of this kind, with its metadata first."""
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata(name, labels), **rest}


def metadata(name: str, labels: dict[str, str] | None = None) -> dict[str, Any]:
    """Make the metadata: the name and, if there are any, the labels."""
    return {"name": name, **({"labels": labels} if labels else {})}


def queue_label(job: Job) -> dict[str, str]:
    """Make the label with which Kueue holds back a job until its queue has room for all of it."""
    return {"kueue.x-k8s.io/queue-name": job.queue}


def claim_name(job: Job) -> str:
    """Return the name of the claim on the checkpoint volume, which every pod of the job mounts."""
    return f"{job.name}-{_CLAIM}"


def torchrun(job: Job, *where: str) -> list[str]:
    """Make the command line that starts a node's ranks; `where` are the flags with which the nodes find each other."""
    sizes = [f"--nnodes={job.num_nodes}", f"--nproc-per-node={job.processes_per_node}"]
    return ["torchrun", *sizes, *where, *job.command]


def template(job: Job, container: str, command: Sequence[str], **spec: Any) -> dict[str, Any]:
    """Make the pod of one node, whose only container has this name and runs this command."""
    pod = {
        "spec": {
            **spec,
            "terminationGracePeriodSeconds": int(job.save_time_s),
            "containers": [_container(job, container, command)],
            "volumes": _volumes(job),
        }
    }
    if job.topology:
        pod = {"metadata": {"annotations": {"kueue.x-k8s.io/podset-required-topology": job.topology}}, **pod}
    return pod


def torchrun_env(job: Job) -> list[dict[str, Any]]:
    """Make the variable that lets torchrun, after SIGTERM, wait for its ranks as long as the pod does, not 30 s."""
    return [{"name": "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "value": str(int(job.save_time_s))}]


def resources(job: Job) -> dict[str, Any]:
    """Request the GPUs of a node; Kubernetes takes the limit as the request too, as GPUs cannot be overcommitted."""
    return {"limits": {GPU: job.gpus_per_node}} if job.gpus_per_node else {"requests": {"cpu": 1}}


def near_each_other(job: Job, labels: dict[str, str]) -> dict[str, Any]:
    """Make the rule for plain Kubernetes that pods with these labels share one value of the topology label."""
    if not job.topology:
        return {}
    rule = {"topologyKey": job.topology, "labelSelector": {"matchLabels": labels}}
    return {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [rule]}}}


def _container(job: Job, name: str, command: Sequence[str]) -> dict[str, Any]:
    return {
        "name": name,
        "image": job.image,
        **({"command": list(command)} if command else {}),
        "env": [_NODE, *(torchrun_env(job) if command else [])],
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
