"""`python -m autograder`: the same as the command `autograder`."""

from autograder.cli import app

app(prog_name="autograder")
