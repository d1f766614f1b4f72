"""What week 11's cell prints of the traces that Holistic Trace Analysis has read."""

import re


def expect_read_by_hta(said: str) -> None:
    """Assert that HTA saw who was late, and the same overlap of the emulated step as Timeline."""
    measured = re.findall(r"^rank \d, measured: (\d+) all-reduces, ([\d.]+ \S+)$", said, flags=re.MULTILINE)
    overlaps = re.findall(
        r"^rank \d, emulated: overlap ([\d.]+)% by HTA, Timeline ([\d.]+)%$", said, flags=re.MULTILINE
    )
    (num_early, early), (num_late, late) = measured
    assert num_early == num_late == "2"  # HTA leaves out the last step
    assert _seconds(early) > 0.03 > _seconds(late)
    assert len(overlaps) == 4
    for by_hta, by_timeline in overlaps:
        assert 30 < float(by_hta) < 70 and abs(float(by_hta) - float(by_timeline)) < 0.1


def _seconds(text: str) -> float:
    number, unit = text.split()
    return float(number) * {"s": 1, "ms": 1e-3, "µs": 1e-6}[unit]
