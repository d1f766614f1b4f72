"""Rules: each compares the notes of all ranks and yields findings; none of them runs anything."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace

from worldsize.audit.finding import AuditFinding, Severity
from worldsize.audit.rules import calls, gradients, inputs, making, numbers, states, steps, weights
from worldsize.audit.rules.evidence import Evidence

Rule = Callable[[Evidence], Iterator[AuditFinding]]
_ORDER = list(Severity)
# causes before what they cause
RULES: tuple[Rule, ...] = (
    *making.RULES,
    *calls.RULES,
    *inputs.RULES,
    *gradients.RULES,
    *numbers.RULES,
    *steps.RULES,
    *states.RULES,
    *weights.RULES,
)


def examine(evidence: Evidence) -> tuple[list[AuditFinding], list[str]]:
    """Apply all rules to the notes of all ranks.

    Returns:
        What they find, worst first, without its consequences; and the tracebacks of rules that failed.
    """
    findings: list[AuditFinding] = []
    failures: list[str] = []
    for rule in RULES:
        found: list[AuditFinding] = []
        try:
            found += rule(evidence)
        except Exception:  # a report with less in it is better than none
            failures.append(traceback.format_exc(limit=-2))
        for finding in found:
            explained = {kind for earlier in findings for kind in earlier.explains}
            if finding.kind in explained:
                continue
            known = next(
                (i for i, one in enumerate(findings) if (one.kind, one.line) == (finding.kind, finding.line)), None
            )
            if known is None:
                findings.append(finding)
            else:  # on a different rank, or in a later step
                on = tuple(sorted({*findings[known].ranks, *finding.ranks}))
                findings[known] = replace(findings[known], ranks=on)
    return sorted(findings, key=lambda finding: _ORDER.index(finding.severity)), failures
