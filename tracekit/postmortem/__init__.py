"""Why it happened and what would have helped: findings in SQL, their causes, and remedies tested by replay."""

from tracekit.postmortem.findings import KINDS, Finding, find
from tracekit.postmortem.postmortem import Postmortem, postmortem
from tracekit.postmortem.remedies import Remedy

__all__ = ["KINDS", "Finding", "Postmortem", "Remedy", "find", "postmortem"]
