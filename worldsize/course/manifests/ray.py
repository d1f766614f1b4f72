"""KubeRay: a RayCluster that stays, and a RayJob that makes its own cluster."""

from __future__ import annotations

import shlex
from typing import Any

from worldsize.course.manifests.job import Job
from worldsize.course.manifests.pods import document, near_each_other, queue_label, template

_API = "ray.io/v1"
HEAD_NEEDS = {"cpu": 2, "memory": "8G"}


def raycluster(job: Job) -> list[dict]:
    """Make a RayCluster: a head that trains nothing, and a worker for each node."""
    return [document(_API, "RayCluster", job.name, queue_label(job), spec=_cluster(job))]


def rayjob(job: Job) -> list[dict]:
    """Make a RayJob: its own cluster, and a Ray Train program that runs there and is retried on a fresh cluster."""
    spec = {
        "entrypoint": shlex.join(["python", *job.command]),
        "backoffLimit": job.max_restarts,
        "activeDeadlineSeconds": int(job.time_limit_s),
        "shutdownAfterJobFinishes": True,
        "ttlSecondsAfterFinished": 600,
        "rayClusterSpec": _cluster(job),
    }
    return [document(_API, "RayJob", job.name, queue_label(job), spec=spec)]


def _cluster(job: Job) -> dict[str, Any]:
    head = template(job, "ray-head", [])
    head["spec"]["containers"][0]["resources"] = {"limits": dict(HEAD_NEEDS)}
    head.pop("metadata", None)  # the head may be anywhere
    worker = template(job, "ray-worker", [], **near_each_other(job, {"ray.io/group": "workers"}))
    group = {
        "groupName": "workers",
        "replicas": job.num_nodes,
        "minReplicas": job.num_nodes,
        "maxReplicas": job.num_nodes,
        "rayStartParams": {},
        "template": worker,
    }
    return {
        "headGroupSpec": {"rayStartParams": {"num-cpus": "0"}, "template": head},
        "workerGroupSpecs": [group],
    }
