"""What a lab says about itself in its lab.toml, and what is said where it cannot be read."""

import pytest

from autograder.course import LabSettings, lab_settings


@pytest.fixture
def write(tmp_path):
    def written(text, name="lab01"):
        (folder := tmp_path / name).mkdir(exist_ok=True)
        (folder / "lab.toml").write_bytes(text.encode("latin-1"))
        return folder

    return written


def test_a_lab_without_a_file_has_the_usual_settings(tmp_path):
    assert lab_settings(tmp_path / "lab01") == LabSettings()
    assert LabSettings().model_dump() == {
        **{"call_s": None, "total_s": None, "limits": {}, "num_gpus": 0},
        **{"has_real_jobs": False, "is_timed": False, "has_teams": False},
    }


def test_a_project_has_real_jobs_is_timed_and_has_teams_unless_its_file_says_otherwise(write, tmp_path):
    settings = lab_settings(tmp_path / "project1")
    assert settings.has_real_jobs and settings.is_timed and settings.has_teams
    settings = lab_settings(write("has_teams = false\ncall_s = 90\n", "project1"))
    assert settings.has_real_jobs and not settings.has_teams and settings.call_s == 90


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "call = 60",
            r"lab01/lab\.toml: there is no key call; a lab can set call_s, total_s, limits, num_gpus, ",
        ),
        ("call_s = '60'", r"lab01/lab\.toml: call_s is '60': Input should be a valid number"),
        ("call_s = 0", r"lab01/lab\.toml: call_s is 0: Input should be greater than 0"),
        ("has_real_jobs = 1", r"lab01/lab\.toml: has_real_jobs is 1: Input should be a valid boolean"),
        ("call_s = ", r"lab01/lab\.toml cannot be read: Invalid value \(at end of document\)"),
        ("# \xe9", r"lab01/lab\.toml cannot be read: 'utf-8' codec"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_the_key_and_what_is_right(write, text, sentence):
    with pytest.raises(ValueError, match=sentence):
        lab_settings(write(text))
