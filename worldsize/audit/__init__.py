"""Audit of a run: silent faults, which neither raise nor hang, named with their line, evidence and cure."""

from worldsize.audit.expecting import expect_different
from worldsize.audit.finding import AuditFinding, Severity

__all__ = ["AuditFinding", "Severity", "expect_different"]
