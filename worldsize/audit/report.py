"""The result of an audit, as text, HTML and JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from worldsize.audit import notes, rules
from worldsize.audit.finding import AuditFinding, Severity
from worldsize.audit.rules.evidence import Evidence, OfRanks
from worldsize.audit.sketches import spread

_COLOURS = {Severity.WRONG: "#b3261e", Severity.SUSPICIOUS: "#8a5a00", Severity.NOTE: "#44546a"}


@dataclass(frozen=True)
class Audit:
    """What an audit found in a run, worst first; an empty list says that no rule found anything.

    `num_steps` optimizer steps of `num_ranks` ranks were seen. `differences` has, for "weights" and for "gradients", by
    name and step, the largest relative difference between two ranks, at the start of the step and when the optimizer
    gets the gradient; tensors that no two ranks hold are not in it. `failures` are errors of the audit's own.
    """

    findings: Sequence[AuditFinding]
    num_ranks: int
    num_steps: int
    failures: Sequence[str] = field(default=(), repr=False)
    differences: Mapping[str, Mapping[str, Mapping[int, float]]] = field(default_factory=dict, repr=False)

    @property
    def is_wrong(self) -> bool:
        """Whether the program is certainly wrong."""
        return any(finding.severity is Severity.WRONG for finding in self.findings)

    def __repr__(self) -> str:
        headline = f"Audit of {self.num_ranks} rank{'s' * (self.num_ranks != 1)}, {_steps(self.num_steps)}: "
        if self.findings:
            counts = {s: sum(finding.severity is s for finding in self.findings) for s in Severity}
            headline += ", ".join(f"{count} {s.value}" for s, count in counts.items() if count)
        else:
            headline += "nothing found"
        return "\n\n".join([headline, *map(_text, self.findings), *_failed(self.failures)])

    def _repr_html_(self) -> str:
        if not self.findings:
            return f"<p style='white-space:pre-wrap'>{escape(repr(self))}</p>"
        failed = [f"<pre>{escape(text)}</pre>" for text in _failed(self.failures)]
        return "".join(["<div>", *map(_html, self.findings), *failed, "</div>"])

    def to_json(self) -> str:
        """The audit as a JSON object, for other programs."""
        about = {"ranks": self.num_ranks, "steps": self.num_steps, "failures": list(self.failures)}
        return json.dumps({**about, "findings": [_fields(one) for one in self.findings]}, indent=2)


def audit_of(folder: str | os.PathLike[str]) -> Audit:
    """Compare the notes that the ranks of a run left in a folder.

    Raises:
        ValueError: there are none.
    """
    ranks = notes.read(folder)
    num_steps = max((note.step - 1 for one in ranks for note in one.of("ended")), default=0)
    failures = [text for one in ranks for note in one.of("failures") for text in note["texts"]]
    evidence = Evidence(ranks)
    findings, failed = rules.examine(evidence)
    failed += [f"rank {one.rank} has left out notes: the run was too long" for one in ranks if _is_full(one)]
    weights, gradients = _differences(evidence.weights), _differences(evidence.gradients)
    gradients = {name: gradients[name] for name in sorted(gradients, key=[*weights, *gradients].index)}
    differences = {"weights": weights, "gradients": gradients}
    return Audit(findings, len(ranks), num_steps, failures + failed, differences)


def _differences(moments: Mapping[str, Sequence[tuple[int, OfRanks]]]) -> dict[str, dict[int, float]]:
    differences: dict[str, dict[int, float]] = {}
    for name, of_steps in moments.items():
        for step, of in of_steps:
            if len(of) > 1:
                by_step = differences.setdefault(name, {})
                by_step[step] = max(by_step.get(step, 0.0), spread([*of.values()]))
    return differences


def _is_full(rank: notes.RankNotes) -> bool:
    return any(note["is_full"] for note in rank.of("ended"))


def _steps(count: int) -> str:
    return f"{count} optimizer step{'s' * (count != 1)}" if count else "no optimizer step"


def _failed(failures: Sequence[str]) -> list[str]:
    """What to say of errors of the audit's own, which may have hidden findings."""
    if not failures:
        return []
    count = f"{len(failures)} observations" if len(failures) > 1 else "1 observation"
    return [f"The audit itself failed in {count}, and may have missed something:\n{failures[0]}"]


def _where(finding: AuditFinding, most_ranks: int = 8) -> str:
    ranks = ", ".join(map(str, finding.ranks[:most_ranks])) + (", ..." if len(finding.ranks) > most_ranks else "")
    parts = [str(finding.line) if finding.line else ""]
    parts.append(f"rank{'s' * (len(finding.ranks) != 1)} {ranks}" if finding.ranks else "")
    parts.append(f"step {finding.step}" if finding.step else "")
    return "; ".join(filter(None, parts))


def _text(finding: AuditFinding) -> str:
    lines = [f"{finding.severity.value.upper()}: {finding.what}", f"  {_where(finding)}"]
    if finding.line and finding.line.text:
        lines.append(f"    {finding.line.text}")
    lines += [f"  evidence: {finding.evidence}", f"  cure: {finding.cure}"]
    return "\n".join(lines)


def _html(finding: AuditFinding) -> str:
    colour = _COLOURS[finding.severity]
    code = f"<pre style='margin:2px 0'>{escape(finding.line.text)}</pre>" if finding.line and finding.line.text else ""
    return (
        f"<div style='border-left:4px solid {colour};padding:2px 10px;margin:8px 0'>"
        f"<b style='color:{colour}'>{finding.severity.value}</b>: {escape(finding.what)}"
        f"<div style='opacity:.75'>{escape(_where(finding))}</div>{code}"
        f"<div>{escape(finding.evidence)}</div><div><b>Cure</b>: {escape(finding.cure)}</div></div>"
    )


def _fields(finding: AuditFinding) -> dict[str, Any]:
    line = finding.line
    return {
        "kind": finding.kind,
        "severity": finding.severity.value,
        "what": finding.what,
        "evidence": finding.evidence,
        "cure": finding.cure,
        "file": line.filename if line else None,
        "line": line.number if line else None,
        "ranks": list(finding.ranks),
        "step": finding.step,
        "name": finding.name or None,
    }
