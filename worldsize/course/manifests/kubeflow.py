"""Kubeflow: a PyTorchJob for the Training Operator, version 1; a runtime and a TrainJob for the Trainer, version 2."""

from __future__ import annotations

from worldsize.course.manifests.job import Job
from worldsize.course.manifests.jobset import jobset_spec
from worldsize.course.manifests.pods import document, near_each_other, queue_label, resources, template, torchrun_env


def pytorchjob(job: Job) -> list[dict]:
    """Make a PyTorchJob with one master and the other nodes as workers; the operator sets torchrun's variables."""
    near = near_each_other(job, {"training.kubeflow.org/job-name": job.name})
    pod = template(job, "pytorch", ["torchrun", *job.command], **near)
    replicas = {"Master": 1, "Worker": job.num_nodes - 1}
    spec = {
        "nprocPerNode": str(job.processes_per_node),
        "runPolicy": {
            "backoffLimit": job.max_restarts,
            "activeDeadlineSeconds": int(job.time_limit_s),
            "cleanPodPolicy": "Running",
            "schedulingPolicy": {"minAvailable": job.num_nodes, "queue": job.queue},
        },
        "pytorchReplicaSpecs": {
            role: {"replicas": number, "restartPolicy": "OnFailure", "template": pod}
            for role, number in replicas.items()
            if number
        },
    }
    return [document("kubeflow.org/v1", "PyTorchJob", job.name, queue_label(job), spec=spec)]


def trainjob(job: Job) -> list[dict]:
    """Make a TrainingRuntime, kept by platform engineers, and a TrainJob, which is all that a researcher writes."""
    api, runtime = "trainer.kubeflow.org/v1alpha1", f"{job.name}-runtime"
    ancestor = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    trainer = {
        "image": job.image,
        "command": ["torchrun", *job.command],
        "env": torchrun_env(job),
        "numNodes": job.num_nodes,
        "numProcPerNode": job.processes_per_node,
        "resourcesPerNode": resources(job),
    }
    runtime_spec = {
        "mlPolicy": {"numNodes": job.num_nodes, "torch": {}},
        "template": {"spec": jobset_spec(job, [], labels=ancestor)},
    }
    job_spec = {
        "runtimeRef": {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": runtime},
        "activeDeadlineSeconds": int(job.time_limit_s),
        "trainer": trainer,
    }
    return [
        document(api, "TrainingRuntime", runtime, spec=runtime_spec),
        document(api, "TrainJob", job.name, queue_label(job), spec=job_spec),
    ]
