"""The report of every failure in the bank: the right rank first, the cause in words, the student's line."""

import time

import pytest
from failures import CASES, NUM_RANKS, TIMEOUT_S

import worldsize as ws


@pytest.mark.parametrize("name", CASES)
def test_the_report_names_the_culprit_and_says_why(name):
    case = CASES[name]
    start_s = time.monotonic()
    with pytest.raises(ws.RunTimeout if case.hangs else ws.RunError) as caught:
        ws.run(case.fn, world_size=NUM_RANKS, backend="gloo", timeout_s=TIMEOUT_S, echo=False)
    took_s = time.monotonic() - start_s
    report = str(caught.value)
    print(report)  # pytest shows it when something is missing
    assert caught.value.failures[0].rank in case.culprits
    assert [words for words in case.words if words not in report] == []
    assert case.with_cause in report
    assert "site-packages" not in report and "launch/" not in report
    assert not case.hangs or took_s < TIMEOUT_S + 10
