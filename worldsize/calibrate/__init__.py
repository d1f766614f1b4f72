"""This machine, measured by its own ranks and described as a cluster on which programs are priced."""

from worldsize.calibrate.result import Calibration
from worldsize.calibrate.runner import calibrate

__all__ = ["Calibration", "calibrate"]
