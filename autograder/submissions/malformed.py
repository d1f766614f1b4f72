"""Why a submission cannot be graded."""


class Malformed(ValueError):
    """A file that is not a notebook of this assignment; the text is a sentence for the student."""
