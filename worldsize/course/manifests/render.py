"""All files for one job."""

from __future__ import annotations

from collections.abc import Callable

from worldsize.course.manifests import yaml_text
from worldsize.course.manifests.batch_script import batch_script
from worldsize.course.manifests.job import Job
from worldsize.course.manifests.jobset import jobset
from worldsize.course.manifests.kubeflow import pytorchjob, trainjob
from worldsize.course.manifests.queues import kueue, volcano
from worldsize.course.manifests.ray import raycluster, rayjob
from worldsize.course.manifests.storage import storage

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
    """Render the same job for every scheduler; return the text of each file by its name."""
    files = {f"{name}.yaml": yaml_text.dump(make(job)) for name, make in _KUBERNETES.items()}
    return {**files, "slurm.sbatch": batch_script(job)}
