"""Measuring a training program: fed, timed and disturbed by a process that runs none of its code."""

from worldsize.bench.batches import Batches
from worldsize.bench.clusters import CLASSROOM
from worldsize.bench.harness import measure, sha256_of, weights_error
from worldsize.bench.machine import Machine, describe
from worldsize.bench.program import Elastic, Ended, Incomplete, Program, ScriptHere, Start, StepLine, Trial, attempt
from worldsize.bench.reference_run import Trained, train_alone
from worldsize.bench.result import Point, Result, Timing, schema
from worldsize.bench.sample_server import Disturbance, Feed, Record, Take
from worldsize.bench.samples import LocalSamples, Samples, open_samples
from worldsize.bench.task import Task

__all__ = [
    "CLASSROOM",
    "Batches",
    "Disturbance",
    "Elastic",
    "Ended",
    "Feed",
    "Incomplete",
    "LocalSamples",
    "Machine",
    "Point",
    "Program",
    "Record",
    "Result",
    "Samples",
    "ScriptHere",
    "Start",
    "StepLine",
    "Take",
    "Task",
    "Timing",
    "Trained",
    "Trial",
    "attempt",
    "describe",
    "measure",
    "open_samples",
    "schema",
    "sha256_of",
    "train_alone",
    "weights_error",
]
