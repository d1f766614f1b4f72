"""A storage class for checkpoints, and the claim on a volume of it that every pod of the job mounts."""

from __future__ import annotations

from math import ceil

from worldsize.course.manifests.job import Job
from worldsize.course.manifests.pods import claim_name, document
from worldsize.units import GB


def storage(job: Job) -> list[dict]:
    """Make a StorageClass whose volumes outlive claims, and a PersistentVolumeClaim that all nodes may write to."""
    wanted = job.storage
    return [
        document(
            "storage.k8s.io/v1",
            "StorageClass",
            wanted.class_name,
            provisioner=wanted.provisioner,
            parameters=dict(wanted.parameters),
            reclaimPolicy="Retain",
            allowVolumeExpansion=True,
            volumeBindingMode="Immediate",
        ),
        document(
            "v1",
            "PersistentVolumeClaim",
            claim_name(job),
            spec={
                "accessModes": ["ReadWriteMany"],
                "storageClassName": wanted.class_name,
                "resources": {"requests": {"storage": f"{ceil(wanted.size_bytes / GB)}G"}},
            },
        ),
    ]
