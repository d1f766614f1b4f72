"""Every legal way to lay a model out on a cluster, priced by a cost function that the caller gives."""

from worldsize.planning.layout import Plan
from worldsize.planning.plans import Plans, PricedPlan
from worldsize.planning.search import plan

__all__ = ["Plan", "Plans", "PricedPlan", "plan"]
