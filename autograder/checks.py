"""The names that hidden checks import: a stable interface, whichever module of the engine defines them."""

from autograder.judging.checks.check import PartlyHeld, StudentFailed, hinted, points
from autograder.judging.checks.draws import between, drawn_cluster, positive, shuffled, whole
from autograder.judging.checks.partial_sums import (
    Parts,
    draw_parts,
    expect_dtype,
    expect_partial_sums,
    expect_short_messages,
    mask_of,
    named,
)
from autograder.judging.checks.pictures import InFewColours, draw_bars, draw_messages, draw_timeline
from autograder.judging.checks.returned import entries, entry, expect_like, integer, is_same, shown, tensor_like
from autograder.judging.checks.solution import take_from_solution
from autograder.judging.checks.trainings import (
    described,
    disturbed,
    expect_in_order,
    expect_losses,
    expect_resumed,
    expect_same_way,
    expect_undisturbed_weights,
    expect_weights,
    expect_whole,
    grade_speed,
    is_right,
)
from autograder.judging.checks.travelled import expect_sum_travelled, received
from autograder.judging.checks.witnessed import (
    expect_after_arrival,
    expect_body,
    expect_end,
    expect_grown,
    expect_same_again,
    expect_work,
    posts_of,
)
from autograder.judging.jail.made import Made, as_students, call_each, limit_computing, return_freed_memory
from autograder.judging.report import Outcome

__all__ = [
    "InFewColours",
    "Made",
    "Outcome",
    "PartlyHeld",
    "Parts",
    "StudentFailed",
    "as_students",
    "between",
    "call_each",
    "described",
    "disturbed",
    "draw_bars",
    "draw_messages",
    "draw_parts",
    "draw_timeline",
    "drawn_cluster",
    "entries",
    "entry",
    "expect_after_arrival",
    "expect_body",
    "expect_dtype",
    "expect_end",
    "expect_grown",
    "expect_in_order",
    "expect_like",
    "expect_losses",
    "expect_partial_sums",
    "expect_resumed",
    "expect_same_again",
    "expect_same_way",
    "expect_short_messages",
    "expect_sum_travelled",
    "expect_undisturbed_weights",
    "expect_weights",
    "expect_whole",
    "expect_work",
    "grade_speed",
    "hinted",
    "integer",
    "is_right",
    "is_same",
    "limit_computing",
    "mask_of",
    "named",
    "points",
    "positive",
    "posts_of",
    "received",
    "return_freed_memory",
    "shown",
    "shuffled",
    "take_from_solution",
    "tensor_like",
    "whole",
]
