"""One description of a training job, and what each scheduler must be given to run it."""

from worldsize.manifests.check import check, explain
from worldsize.manifests.job import Job, Storage
from worldsize.manifests.mistakes import Mistake
from worldsize.manifests.render import manifests

__all__ = ["Job", "Mistake", "Storage", "check", "explain", "manifests"]
