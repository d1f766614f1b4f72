"""The capstone: the design of a whole training system, its contradictions, and what it achieves and costs."""

from worldsize.capstone.design import EXAMPLES, Design, changed, example, load, loads
from worldsize.capstone.figures import Figures, run
from worldsize.capstone.impossible import check
from worldsize.capstone.sensitivity import Gain, gains

__all__ = ["EXAMPLES", "Design", "Figures", "Gain", "changed", "check", "example", "gains", "load", "loads", "run"]
