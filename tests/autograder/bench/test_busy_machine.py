"""`autograder bench` on a busy machine: it warns, goes on, and names what has to be measured again."""

from contextlib import nullcontext
from unittest.mock import Mock

import pytest
from test_leaderboard import MACHINE, result
from typer.testing import CliRunner

from autograder.bench.batch import Kept, SubmissionOutcome
from autograder.bench.commands import app

WARNING = "1.9 of 2 cores are busy with other work: times of real ranks that are taken meanwhile are not to be trusted"


@pytest.fixture
def busy_cores(monkeypatch):
    """The reading of a machine with two cores, 1.9 of them busy."""
    monkeypatch.setattr("worldsize.bench.machine.num_cores", lambda: 2)
    busy_cores = Mock(return_value=1.9)
    monkeypatch.setattr("worldsize.bench.machine.busy_cores", busy_cores)
    return busy_cores


@pytest.fixture
def a_class(monkeypatch):
    """A class of two, one of which was timed on a busy machine."""
    results = {"anna": result("a", 0.02), "ben": result("b", 0.01, busy_cores=1.9)}
    outcomes = [SubmissionOutcome(student, None, Kept(fingerprint="", result=one)) for student, one in results.items()]
    class_ = Mock()
    class_.lab.named.return_value, class_.refused.return_value = [*results], []
    monkeypatch.setattr("autograder.bench.commands._batch", lambda *_: class_)
    monkeypatch.setattr("autograder.bench.commands._place", Mock())
    monkeypatch.setattr("autograder.bench.commands._progress", lambda _: nullcontext((Mock(), Mock())))
    monkeypatch.setattr("autograder.bench.commands._outcomes", lambda *_: (one for one in outcomes))


@pytest.mark.usefixtures("a_class")
def test_a_batch_warns_of_a_busy_node_goes_on_and_names_what_was_disturbed(busy_cores):
    done = CliRunner().invoke(app, ["project9", "--submissions=handed in"])
    assert done.exit_code == 0, done.output
    assert done.output.startswith(WARNING) and "measured" in done.output
    assert "leaves them out: ben." in done.output
    command = "autograder bench project9 '--submissions=handed in' --no-grade --again --student=ben"
    assert f"    {command}\n" in done.output


@pytest.mark.usefixtures("a_class")
@pytest.mark.parametrize("reading", [0.4, None])
def test_an_idle_machine_and_one_that_cannot_be_read_are_not_warned_of(busy_cores, reading):
    busy_cores.return_value = reading
    done = CliRunner().invoke(app, ["project9"])
    assert done.exit_code == 0 and "cores are busy" not in done.output


@pytest.mark.usefixtures("a_class")
def test_on_ray_the_machine_of_the_command_does_not_matter(busy_cores):
    done = CliRunner().invoke(app, ["project9", "--engine=ray"])
    assert done.exit_code == 0 and "cores are busy" not in done.output and not busy_cores.called


@pytest.mark.parametrize(("busy_at_the_end", "is_named"), [(1.9, True), (0.1, False)])
def test_ones_own_measurement_says_when_it_was_disturbed(tmp_path, monkeypatch, busy_cores, busy_at_the_end, is_named):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    measured = result("a", 0.01, machine=MACHINE, busy_cores=busy_at_the_end)
    monkeypatch.setattr("worldsize.bench.measure", Mock(return_value=measured))
    done = CliRunner().invoke(app, ["train.py"])
    assert done.exit_code == 0 and WARNING in done.output, done.output
    assert ("Other work kept up to 1.9 of 2 cores busy meanwhile" in done.output) is is_named
