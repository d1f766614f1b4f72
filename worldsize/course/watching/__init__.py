"""Monitoring of a training run: what its ranks export, what collects it, and which alerts must fire."""

from worldsize.course.watching.files import Query, dashboard, dcgm_fields, queries, rules
from worldsize.course.watching.prometheus import Alert, Prometheus, Sample, missing
from worldsize.course.watching.rank_metrics import RankMetrics

__all__ = [
    "Alert",
    "Prometheus",
    "Query",
    "RankMetrics",
    "Sample",
    "dashboard",
    "dcgm_fields",
    "missing",
    "queries",
    "rules",
]
