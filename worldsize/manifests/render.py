"""All files for one job."""

from __future__ import annotations

from collections.abc import Callable

from worldsize.manifests import yaml_text
from worldsize.manifests.batch_script import batch_script
from worldsize.manifests.job import Job
from worldsize.manifests.jobset import jobset
from worldsize.manifests.kubeflow import pytorchjob, trainjob
from worldsize.manifests.queues import kueue, volcano
from worldsize.manifests.ray import raycluster, rayjob
from worldsize.manifests.storage import storage

_KUBERNETES: dict[str, Callable[[Job], list[dict]]] = {
    "storage": storage,
    "pytorchjob": pytorchjob,
    "trainjob": trainjob,
    "jobset": jobset,
    "raycluster": raycluster,
    "rayjob": rayjob,
    "kueue": kueue,
    "volcano": volcano,
}


def manifests(job: Job) -> dict[str, str]:
    """The same job for every scheduler: the text of each file by its name."""
    files = {f"{name}.yaml": yaml_text.dump(make(job)) for name, make in _KUBERNETES.items()}
    return {**files, "slurm.sbatch": batch_script(job)}
