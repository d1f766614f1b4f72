"""What the author of a lab's hidden checks imports, by names that stay wherever the engine keeps them."""

from autograder.judging.checks import PartlyHeld, points
from autograder.judging.failures import StudentFailed
from autograder.judging.report import Outcome

__all__ = ["Outcome", "PartlyHeld", "StudentFailed", "points"]
