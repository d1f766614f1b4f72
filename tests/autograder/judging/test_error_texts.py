"""Which words of an error a student reads: Python's and torch's usual ones, and nothing that could be hidden."""

# errors are made on purpose
# pyright: reportCallIssue=false, reportUndefinedVariable=false

from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F

from autograder.judging.judge.error_texts import forms_raised, sentence_for, shown_kind, shown_text, words_of
from worldsize.emulate.protocol.operations import refusal
from worldsize.emulate.worker import backend
from worldsize.launch.worker import allowed_gloo

OWN = words_of(["def total(tensor):\n    return deeper(tensor).sums"])


def usual():
    """Errors that students make, each with words that must stay in its text."""
    leaf = torch.ones(2, requires_grad=True)
    return [
        (lambda: torch.ones(2) + torch.ones(3), "The size of tensor a (…) must match"),
        (lambda: torch.ones(2, 3) @ torch.ones(2, 3), "shapes cannot be multiplied (…)"),
        (lambda: torch.ones(6).view(4, 2), "is invalid for input of size …"),
        (lambda: torch.cat([torch.ones(1, 2), torch.ones(1, 3)]), "Sizes of tensors must match except in dimension"),
        (lambda: torch.cat([]), "expected a non-empty list of Tensors"),
        (lambda: torch.stack([torch.ones(1), torch.ones(2)]), "stack expects each tensor to be equal size"),
        (lambda: torch.ones(4).split([1, 1]), "split_with_sizes expects split_sizes to sum exactly"),
        (lambda: torch.ones(2)[5], "is out of bounds for dimension"),
        (lambda: torch.ones(2).sum(3), "Dimension out of range"),
        (lambda: torch.ones(2)[1.5], "only integers, slices"),
        (lambda: leaf.add_(1), "a leaf Variable that requires grad is being used in an in-place operation."),
        (lambda: leaf.numpy(), "Can't call numpy() on Tensor that requires grad."),
        (lambda: torch.ones(1).backward(), "does not require grad and does not have a grad_fn"),
        (lambda: (2 * leaf).backward(), "grad can be implicitly created only for scalar outputs"),
        (lambda: bool(torch.ones(2)), "Boolean value of Tensor with more than one value is ambiguous"),
        (lambda: torch.ones(2).item(), "cannot be converted to Scalar"),
        (lambda: torch.ones(2, dtype=torch.int32).mean(), "could not infer output dtype"),
        (lambda: setattr(leaf, "grad", torch.ones(3)), "attempting to assign a gradient of size …"),
        (lambda: torch.ones(2).expand(3), "The expanded size of the tensor (…) must match the existing size (…)"),
        (lambda: F.linear(torch.ones(2, 3), torch.ones(2, 4)), "shapes cannot be multiplied"),
        (lambda: torch.zeros(2).topk(5), "selected index k out of range"),
        (lambda: torch.arange(4)[torch.ones(2)], "tensors used as indices must be long"),
        (lambda: torch.ones(1).nothing, "'Tensor' object has no attribute '…'"),
        (lambda: torch.ones(1).deeper, "'Tensor' object has no attribute 'deeper'"),
        (lambda: None + 1, "unsupported operand type(s) for +: 'NoneType' and 'int'"),
        (lambda: [][0], "list index out of range"),
        (lambda: None.sums, "'NoneType' object has no attribute 'sums'"),
        (lambda: 1 / 0, "division by zero"),
        (lambda: len(3), "object of type 'int' has no len()"),
        (lambda: 3(), "'int' object is not callable"),
        (lambda: sum(3), "'int' object is not iterable"),
        (lambda: range(0, 1, 0), "range() arg … must not be zero"),
        (lambda: (lambda a: a)(), "missing … required positional argument"),
        (lambda: int("x"), "invalid literal for int() with base …: …"),
        (lambda: compile("a = (", "x", "exec"), "was never closed"),
        (lambda: compile("a = = 1", "x", "exec"), "invalid syntax"),
        (lambda: list(zip([1], [], strict=True)), "is shorter than argument"),
        (lambda: [].pop(), "pop from empty list"),
        (lambda: {}[[]], "unhashable type: 'list'"),
        (lambda: __import__("no_such_module"), "No module named '…'"),
        (lambda: deeper, "name 'deeper' is not defined"),  # noqa: F821
    ]


@pytest.mark.parametrize(("fails", "words"), usual())
def test_a_usual_error_stays_readable(fails, words):
    with pytest.raises(Exception) as caught:  # noqa: PT011
        fails()
    error = caught.value
    assert words in shown_text(error.msg if isinstance(error, SyntaxError) else str(error), OWN)
    assert shown_kind(type(error).__name__, OWN) == type(error).__name__


HIDDEN = "names=('nn', 'Sequential') locals={'gradients': tensor([[0.5955]])} /course/solutions/lab01/checks.py"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (refusal("all_reduce", ["send", "recv"]), "all_reduce is not allowed here"),
        (allowed_gloo._not_gloo("ProcessGroupGloo", ["send"]), "not allowed here: use groups from dist.new_group()"),
        (str(backend._not_emulated(Mock())("ProcessGroupGloo")), "would bypass the emulated cluster"),
    ],
    ids=["operation", "real group", "emulated group"],
)
def test_our_own_refusals_are_shown(text, words):
    assert words in shown_text(text, OWN)


@pytest.mark.parametrize(
    "text",
    [
        HIDDEN,
        f"name '{HIDDEN}' is not defined",
        f"name 'total' is not defined. {HIDDEN}",
        f"list index out of range {HIDDEN}",
        f"invalid syntax {HIDDEN}",
        f"shape '{HIDDEN}' is invalid for input of size 5955",
        f"The size of tensor a (5955) must match the size of tensor b (5955) at non-singleton dimension 5955{HIDDEN}",
        f"[gloo] {HIDDEN} Connection closed by peer {HIDDEN}",
        f"total() missing 1 required positional argument: '{HIDDEN}'",
        "all_reduce is not allowed here: this run is to be built from Sequential, gradients alone",
        "'5955'",
        "Sequential",
        "invalid syntax\nnn.Sequential 5955 checks",
        "'Hidden' object has no attribute 'gradients.checks.locals'",
    ],
)
def test_no_text_carries_what_could_be_hidden(text):
    shown = shown_text(text, OWN)
    assert not any(
        word in shown for word in ("Sequential", "Hidden", "locals=", "5955", "checks", "gradients", "course")
    ), shown


def test_only_the_first_name_may_be_a_path_and_not_a_long_one():
    form, own = "{}() missing 2 required positional arguments: '{}' and '{}'", {"a", "b", "hook", "step"}
    assert shown_text(form.format("step.<locals>.hook", "a", "b"), own).startswith("step.<locals>.hook() missing")
    assert shown_text(form.format("a.b.a.b", "a", "b"), own).startswith("…() missing")
    assert "a.b" not in shown_text(form.format("step", "a.b", "b.a.b"), own)


@pytest.mark.parametrize("kind", [HIDDEN, "Sequential", "sys.exit('Sequential 5955')", "x" * 5000])
def test_no_kind_carries_what_could_be_hidden(kind):
    assert shown_kind(kind, OWN) in ("an exception", "sys.exit")


def test_what_checks_raise_on_ranks_is_shown_without_its_values():
    forms = forms_raised('raise ValueError("train took too many steps")\nraise KeyError(f"train has no {name} left")')
    assert shown_text("train took too many steps", OWN, forms) == "train took too many steps"
    assert shown_text("train has no total left", OWN, forms) == "train has no total left"
    assert shown_text("train has no Hidden left", OWN, forms) == "train has no … left"
    assert shown_text("train took too many Hidden steps", OWN, forms) == ""


def test_limits_are_put_into_words():
    assert "memory" in sentence_for("RuntimeError: DefaultCPUAllocator: can't allocate memory")
    assert "writes" in sentence_for("OSError: [Errno 28] No space left on device")
    assert sentence_for("ValueError") == ""
