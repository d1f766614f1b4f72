"""A report's numbers: whether each was computed in the same notebook, or is cited."""

from worldsize.course.reporting.notebook_check import Checked, Finding, check, read

__all__ = ["Checked", "Finding", "check", "read"]
