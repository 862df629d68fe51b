"""What the doctor says: one finding per problem, with the evidence and what to do."""

from __future__ import annotations

from dataclasses import dataclass

#: From worst to least.
SEVERITIES = ("problem", "warning", "note")


@dataclass(frozen=True)
class Finding:
    """One problem.

    Attributes:
        severity: ``"problem"``: do not rely on the model before this is settled; ``"warning"``: look at it;
            ``"note"``: good to know.
        title: What is wrong, in a few words.
        evidence: The figures that show it.
        fix: What to do.
    """

    severity: str
    title: str
    evidence: str
    fix: str

    def __post_init__(self) -> None:
        """An unknown severity would vanish from the sorted list."""
        if self.severity not in SEVERITIES:
            raise ValueError(f"severity must be one of {SEVERITIES}, but is {self.severity!r}.")


@dataclass(frozen=True)
class Checkup:
    """All that the doctor looked at.

    Attributes:
        findings: Worst first.
        passed: Names of the checks that found nothing.
        skipped: Names of the checks that could not be made, with the reason.
    """

    findings: list[Finding]
    passed: list[str]
    skipped: dict[str, str]

    def count(self, severity: str) -> int:
        """How many findings are this severe."""
        return sum(finding.severity == severity for finding in self.findings)
