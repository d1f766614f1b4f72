"""A training run watched from outside: what its ranks export, who collects it, and what must be reported."""

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
