"""What the autograder patches in nbgrader, or overrides of its private methods; docs/patches.md is the list.

Each test fails when its patch is no longer needed, or no longer reaches what it patches.
"""

import importlib.util
import inspect
from datetime import datetime
from types import SimpleNamespace

import pytest
from nbgrader import preprocessors
from nbgrader.apps.zipcollectapp import ZipCollectApp
from nbgrader.converters.base import BaseConverter
from nbgrader.exchange.default import ExchangeCollect


def unpatched(name):
    """A module of nbgrader as it comes, whatever another test has done to the one that is loaded."""
    spec = importlib.util.find_spec(name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_nbgrader_believes_the_time_that_a_student_writes_down(tmp_path):
    (tmp_path / "timestamp.txt").write_text("2020-01-01 00:00:00 UTC")
    course = unpatched("nbgrader.coursedir").CourseDirectory()
    assert course.get_existing_timestamp(str(tmp_path)) == datetime(2020, 1, 1)


def test_the_formgrader_keeps_the_exporter_that_it_was_started_with():
    handler = unpatched("nbgrader.server_extensions.formgrader.base").BaseHandler
    started_with = object()
    assert handler.exporter.fget(SimpleNamespace(settings={"nbgrader_exporter": started_with})) is started_with


@pytest.mark.parametrize(
    ("owner", "method"),
    [
        (preprocessors.GetGrades, "_get_score"),
        (preprocessors.SaveAutoGrades, "_add_score"),
        (preprocessors.SaveCells, "_create_notebook"),
        (BaseConverter, "init_notebooks"),
        (BaseConverter, "convert_notebooks"),
        (ExchangeCollect, "_path_to_record"),
        (ZipCollectApp, "_clear_existing_files"),
        (ZipCollectApp, "_transfer_files"),
    ],
)
def test_nbgrader_calls_the_private_methods_that_are_overridden(owner, method):
    assert method in vars(owner)
    assert f"self.{method}(" in inspect.getsource(owner)
