"""JobSet: groups of Jobs of Kubernetes that start, fail and start again together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from worldsize.course.manifests.job import Job
from worldsize.course.manifests.pods import PORT, document, queue_label, template, torchrun

_GROUP = "node"


def jobset(job: Job) -> list[dict]:
    """Make a JobSet of one Job, whose pods find their first pod by its name in the set's own subdomain."""
    first = f"{job.name}-{_GROUP}-0-0.{job.name}"
    where = ("--node-rank=$(JOB_COMPLETION_INDEX)", f"--master-addr={first}", f"--master-port={PORT}")
    spec = {"network": {"enableDNSHostnames": True, "subdomain": job.name}, **jobset_spec(job, torchrun(job, *where))}
    return [document("jobset.x-k8s.io/v1alpha2", "JobSet", job.name, queue_label(job), spec=spec)]


def jobset_spec(job: Job, command: Sequence[str], labels: dict[str, str] | None = None) -> dict[str, Any]:
    """Make the set's failure policy and its single group, a pod for each node; a Kubeflow runtime holds the same."""
    pods = {
        "parallelism": job.num_nodes,
        "completions": job.num_nodes,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "activeDeadlineSeconds": int(job.time_limit_s),
        "template": template(job, _GROUP, command, restartPolicy="Never"),
    }
    group = {"name": _GROUP, "replicas": 1, "template": {**_labelled(labels), "spec": pods}}
    maintenance = {
        "name": "maintenance",
        "action": "RestartJobSetAndIgnoreMaxRestarts",
        "onJobFailureReasons": ["PodFailurePolicy"],
    }
    pods["podFailurePolicy"] = {"rules": [{"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget"}]}]}
    return {"failurePolicy": {"maxRestarts": job.max_restarts, "rules": [maintenance]}, "replicatedJobs": [group]}


def _labelled(labels: dict[str, str] | None) -> dict[str, Any]:
    return {"metadata": {"labels": labels}} if labels else {}
