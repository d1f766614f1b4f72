"""The main job from end to end, as an instructor would do it: a week executed, a class graded, one page about both."""

from autograder.demo.run import demo
from autograder.demo.steps import StepFailed

__all__ = ["StepFailed", "demo"]
