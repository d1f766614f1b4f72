"""Audit of a run: silent faults, which neither raise nor hang, named with their line, evidence and cure."""

from worldsize.audit.expecting import expect_different
from worldsize.audit.finding import AuditFinding, Severity
from worldsize.audit.report import Audit, audit_of

__all__ = ["Audit", "AuditFinding", "Severity", "audit_of", "expect_different"]
