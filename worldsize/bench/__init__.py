"""Measuring a training program: fed, timed and disturbed by a process that runs none of its code."""

from worldsize.bench.batches import Batches, TextBatches
from worldsize.bench.clusters import CLASSROOM
from worldsize.bench.harness import measure, sha256_of, weights_error
from worldsize.bench.machine import Machine, describe
from worldsize.bench.program import (
    Incomplete,
    Program,
    RestartPolicy,
    ScriptHere,
    StepLine,
    TrainingResult,
    TrainingSpec,
    Trial,
    attempt,
)
from worldsize.bench.reference_run import Trained, train_alone
from worldsize.bench.result_file import Point, Result, Timing, schema
from worldsize.bench.sample_server import Disturbance, SampleServer, Take, TrainingRecord
from worldsize.bench.samples import LocalSamples, Samples, open_samples, open_text
from worldsize.bench.task import Task, TextTask, text_shape

__all__ = [
    "CLASSROOM",
    "Batches",
    "Disturbance",
    "Incomplete",
    "LocalSamples",
    "Machine",
    "Point",
    "Program",
    "RestartPolicy",
    "Result",
    "SampleServer",
    "Samples",
    "ScriptHere",
    "StepLine",
    "Take",
    "Task",
    "TextBatches",
    "TextTask",
    "Timing",
    "Trained",
    "TrainingRecord",
    "TrainingResult",
    "TrainingSpec",
    "Trial",
    "attempt",
    "describe",
    "measure",
    "open_samples",
    "open_text",
    "schema",
    "sha256_of",
    "text_shape",
    "train_alone",
    "weights_error",
]
