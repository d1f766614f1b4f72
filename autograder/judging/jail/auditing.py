"""The findings of an audited run as data for the judge, from the notes that its ranks left in the jail."""

from __future__ import annotations


def findings_on_rank(folder: str, most: int) -> list[list[object]]:
    """The kinds of the first findings, worst first, each with the file and the number of its line."""
    from worldsize.audit.report import audit_of

    findings = [one for one in audit_of(folder).findings if one.line]
    return [[one.kind, one.line.filename, one.line.number] for one in findings[:most] if one.line]
