"""Students' submissions: collecting them, finding them, and reading them as untrusted files."""


class Malformed(ValueError):
    """A submission that cannot be graded; the text is a sentence for the student."""
