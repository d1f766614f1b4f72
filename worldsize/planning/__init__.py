"""Every legal layout of a model on a cluster, priced with the caller's cost function."""

from worldsize.planning.layout import Plan
from worldsize.planning.plans import Plans, PricedPlan
from worldsize.planning.search import plan

__all__ = ["Plan", "Plans", "PricedPlan", "plan"]
