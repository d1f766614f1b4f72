"""Every known answer of every lab gets the score that it declares, and the words that it needs."""

from pathlib import Path

import pytest

from autograder.build import find_sources
from autograder.sandbox import probe
from autograder.verify import Case, cases, try_case

ROOT = Path(__file__).parent.parent
BANK = [case for path in find_sources(ROOT).labs for case in cases(ROOT, path.stem)]


@pytest.mark.parametrize("case", BANK, ids=[f"{case.lab}-{case.name}" for case in BANK])
def test_answer_gets_its_score(case: Case) -> None:
    assert probe().is_trusted, "this machine gives no sandbox, and a bank is only proven in one"
    assert try_case(ROOT, case).problems == []


def test_bank_is_wide_enough() -> None:
    for lab in {case.lab for case in BANK}:
        names = [case.name for case in BANK if case.lab == lab]
        assert sum(name.startswith("wrong/") for name in names) >= 6
        assert sum(name.startswith("right/") for name in names) >= 3
