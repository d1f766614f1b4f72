"""Queues: Kueue's quota, which holds back any kind of job, and Volcano's queue with its own kind of job."""

from __future__ import annotations

from typing import Any

from worldsize.course.manifests.job import Job
from worldsize.course.manifests.pods import GPU, document, template, torchrun
from worldsize.course.manifests.ray import HEAD_NEEDS

_KUEUE = "kueue.x-k8s.io/v1beta2"
_HOSTNAME = "kubernetes.io/hostname"


def kueue(job: Job) -> list[dict]:
    """Make what the job's label `kueue.x-k8s.io/queue-name` names: a LocalQueue, its ClusterQueue, the quota's nodes.

    The quota is what this job needs, with Ray's head if it has one: a job that asks for a resource without a quota is
    never admitted. Where the job asks for a topology, Kueue is given the levels of the network.
    """
    needs: dict[str, Any] = {**HEAD_NEEDS, **({GPU: job.num_nodes * job.gpus_per_node} if job.gpus_per_node else {})}
    if not job.gpus_per_node:
        needs["cpu"] += job.num_nodes
    quota = {"name": "nodes", "resources": [{"name": name, "nominalQuota": needs[name]} for name in needs]}
    queue = {
        "namespaceSelector": {},
        "queueingStrategy": "StrictFIFO",
        "preemption": {"withinClusterQueue": "LowerPriority"},
        "resourceGroups": [{"coveredResources": [*needs], "flavors": [quota]}],
    }
    flavor: dict[str, Any] = {"nodeLabels": {"example.org/pool": "training"}}
    topology = []
    if job.topology:
        flavor["topologyName"] = "network"
        levels = [{"nodeLabel": job.topology}, {"nodeLabel": _HOSTNAME}]
        topology = [document(_KUEUE, "Topology", "network", spec={"levels": levels})]
    return [
        *topology,
        document(_KUEUE, "ResourceFlavor", "nodes", spec=flavor),
        document(_KUEUE, "ClusterQueue", job.queue, spec=queue),
        document(_KUEUE, "LocalQueue", job.queue, spec={"clusterQueue": job.queue}),
    ]


def volcano(job: Job) -> list[dict]:
    """Make a Queue and a Volcano Job: no pod starts before there is room for all, and one failure restarts all."""
    addresses = ("--node-rank=$(RANK)", "--master-addr=$(MASTER_ADDR)", "--master-port=$(MASTER_PORT)")
    pod = template(job, "pytorch", torchrun(job, *addresses), restartPolicy="Never")
    pod.pop("metadata", None)  # the topology is asked of Volcano below, not of Kueue
    roles = {"master": 1, "worker": job.num_nodes - 1}
    spec: dict[str, Any] = {
        "schedulerName": "volcano",
        "queue": job.queue,
        "minAvailable": job.num_nodes,
        "maxRetry": job.max_restarts,
        "policies": [{"event": event, "action": "RestartJob"} for event in ("PodFailed", "PodEvicted")],
        "plugins": {"pytorch": ["--master=master", "--worker=worker", "--port=23456"]},
        "tasks": [{"name": role, "replicas": number, "template": pod} for role, number in roles.items() if number],
    }
    if job.topology:
        spec["networkTopology"] = {"mode": "hard", "highestTierAllowed": 1}
    capability = {"capability": {GPU: job.num_nodes * job.gpus_per_node}} if job.gpus_per_node else {}
    return [
        document("scheduling.volcano.sh/v1beta1", "Queue", job.queue, spec={"weight": 1, **capability}),
        document("batch.volcano.sh/v1alpha1", "Job", job.name, spec=spec),
    ]
