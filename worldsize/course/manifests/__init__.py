"""One description of a training job, rendered for each scheduler that can run it."""

from worldsize.course.manifests.check import check, explain
from worldsize.course.manifests.job import Job, Storage
from worldsize.course.manifests.mistakes import ManifestMistake
from worldsize.course.manifests.render import manifests

__all__ = ["Job", "ManifestMistake", "Storage", "check", "explain", "manifests"]
