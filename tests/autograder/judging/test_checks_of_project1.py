"""What a check of project 1 makes of odd numbers, in this process and without a sandbox."""

import importlib.util
import math
import sys

import pytest
import torch
from repository import ROOT

from worldsize.check import CheckFailed


def test_nan_is_no_serial_fraction():
    spec = importlib.util.spec_from_file_location("checks_of_project1", ROOT / "solutions/project1/checks.py")
    checks = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(checks)

    class Student:
        """Who returns this, whatever is asked."""

        def run(self, *_, **__):
            return [math.nan]

    with pytest.raises(CheckFailed, match="the serial fraction"):
        checks.check_amdahl_fit(Student(), torch.Generator().manual_seed(0))
