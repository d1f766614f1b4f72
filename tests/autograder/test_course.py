"""The course as its configuration describes it."""

import pytest
from tiny_lab import make_course

from autograder.course import open_course


@pytest.mark.parametrize(
    ("line", "said"), [("c.Grade.oops = (", "SyntaxError"), ("import nosuchmodule", "nosuchmodule")]
)
def test_a_configuration_that_fails_stops_every_command(tmp_path, line, said):
    root = make_course(tmp_path)
    open_course(root)
    with open(root / "nbgrader_config.py", "a") as file:
        file.write(f"\n{line}\n")
    with pytest.raises(ValueError, match=r"nbgrader_config\.py cannot be read, so nothing was done: ") as caught:
        open_course(root)
    assert said in str(caught.value)
