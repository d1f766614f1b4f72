"""Where a class can be judged, and what is said where it cannot."""

import socket
import sys
from types import SimpleNamespace

import pytest
import torch
from tiny_class import hand_in
from tiny_lab import NAME, make_course
from typer.testing import CliRunner

from autograder.cli import app
from autograder.grading.engines import LocalPool, open_engine


@pytest.mark.parametrize(("num_gpus", "jobs"), [(0, 8), (1, 4), (2, 2), (0.25, 8), (3, 1), (0.7, 4), (0.6, 4)])
def test_this_machine_judges_as_many_at_once_as_it_has_gpus_for(monkeypatch, num_gpus, jobs):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert LocalPool(8, num_gpus).jobs == jobs


def test_a_machine_with_too_few_gpus_says_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ValueError, match=r"Judging takes 2 GPUs .* this machine has 1\..*--engine ray"):
        open_engine("local", num_gpus=2)


@pytest.mark.parametrize("num_gpus", [1.5, 2.25])
def test_a_gpu_that_would_belong_to_two_submissions_is_refused(monkeypatch, num_gpus):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    with pytest.raises(
        ValueError, match="so two submissions would share one: give a whole number, or a fraction below 1"
    ):
        open_engine("local", num_gpus=num_gpus)


def test_without_ray_the_command_says_how_to_install_it(monkeypatch, tmp_path):
    hand_in(make_course(tmp_path), "anna")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "ray", None)
    done = CliRunner().invoke(app, ["grade", NAME, "--engine", "ray"])
    assert (done.exit_code, done.output) == (1, "Ray is not installed here: pip install -e '.[ray]'\n")


def test_without_a_cluster_it_says_how_to_start_one(monkeypatch):
    def no_cluster(*_, **__):
        raise ConnectionError("Could not find any running Ray instance.\nPlease specify one.")

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(init=no_cluster))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(
        ValueError, match=r"on this machine.*ray start --head.*RAY_ADDRESS.* any running Ray instance\.$"
    ):
        open_engine("ray")


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_at_which_nobody_listens_is_told_at_once(monkeypatch, scheme):
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(init=lambda *_, **__: pytest.fail("Ray would wait")))
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"{scheme}127.0.0.1:{server.getsockname()[1]}"
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ValueError, match=rf"No Ray cluster can be reached at {address}\..*refused"):
        open_engine("ray")
