"""Runs on paper: a program runs on fake tensors, is recorded once, and is priced on any described cluster."""

from worldsize.paper.declared import declared
from worldsize.paper.depth import DeepRun
from worldsize.paper.result import Kind, PaperRun
from worldsize.paper.runner import paper
from worldsize.paper.scripts import torchrun

__all__ = ["DeepRun", "Kind", "PaperRun", "declared", "paper", "torchrun"]
