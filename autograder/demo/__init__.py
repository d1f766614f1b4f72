"""An instructor's main task from end to end: execute a week, grade a class, write one page about both."""

from autograder.demo.run import demo
from autograder.demo.steps import StepFailed

__all__ = ["StepFailed", "demo"]
