"""What students hand in: collecting it, finding it, and reading it as files from strangers."""


class Malformed(ValueError):
    """A submission that cannot be graded; the text is a sentence for the student."""
