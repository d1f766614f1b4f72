"""A bank as large as a course's, of questions of every kind, each with hundreds of variants; and a class to ask."""

from __future__ import annotations

from pathlib import Path

_HEAD = """
id = "{id}"
pool = "weekly"
week = {week}
objective = "Compute what an all-reduce costs."
difficulty = {difficulty}
minutes = 2
source = "Week {week}, section 4; a made-up source of the usual length, with a title (2009)"
parameters = {{num_ranks = {{low = 4, high = 64, step = 4}}, size_mb = {{low = 50, high = 2000, step = 50}}}}
"""
_ASKED = """
**{{ num_ranks }} ranks** all-reduce {{ size_mb }} MB by a ring over links of $\\\\beta$ = 25 GB/s, in chunks of \
`size / num_ranks` bytes. With $t = \\\\frac{2 (N-1)}{N} \\\\cdot \\\\frac{S}{\\\\beta}$ and no latency: """
_WHY = 'feedback = "Each rank sends $2 (N-1)/N \\\\cdot S$: {{ (2 - 2 / num_ranks) | significant }} of it."'
_BODIES = {
    "single": f"""
kind = "single"
text = \"\"\"{_ASKED} how long does it take?\"\"\"
unit = "ms"
choice = [
    {{value = "2 * (num_ranks - 1) / num_ranks * size_mb / 25", correct = true, {_WHY}}},
    {{value = "(1 - 1 / num_ranks) * size_mb / 25", correct = false, misconception = "half of the way", {_WHY}}},
    {{value = "2 * num_ranks * size_mb / 25", correct = false, misconception = "the server's link", {_WHY}}},
    {{value = "2.5 * size_mb * 8 / 25", correct = false, misconception = "bits for bytes", {_WHY}}},
]
""",
    "multiple": f"""
kind = "multiple"
text = \"\"\"{_ASKED} what holds?\"\"\"
choice = [
    {{text = "It takes {{{{ 2 * (num_ranks - 1) }}}} steps", correct = true, {_WHY}}},
    {{text = "It takes {{{{ num_ranks }}}} steps, one latency", correct = false, misconception = "a round", {_WHY}}},
    {{text = "Each rank sends more than {{{{ size_mb }}}} MB", correct = true, {_WHY}}},
    {{text = "One rank has the sum first and hands it out", correct = false, misconception = "a server", {_WHY}}},
]
""",
    "numeric": f"""
kind = "numeric"
text = \"\"\"{_ASKED} how long does it take?\"\"\"
answer = "2 * (num_ranks - 1) / num_ranks * size_mb / 25"
unit = "ms"
low = 0.1
high = 1000
{_WHY}
mistake = [{{value = "(num_ranks - 1) / num_ranks * size_mb / 25", misconception = "half of the way", {_WHY}}}]
""",
    "ordering": f"""
kind = "ordering"
text = \"\"\"{_ASKED} order these by what one link carries, from the least to the most.\"\"\"
item = [
    {{text = "a broadcast's first chunk", value = "size_mb / num_ranks"}},
    {{text = "a reduce-scatter", value = "1.2 * size_mb * (num_ranks - 1) / num_ranks"}},
    {{text = "an all-reduce", value = "2 * size_mb"}},
    {{text = "a server's link", value = "num_ranks * size_mb"}},
]
{_WHY}
""",
    "text": f"""
kind = "text"
text = \"\"\"{_ASKED} a reduce-scatter is done; which collective is to come?\"\"\"
accepted = ["all-gather", "allgather"]
{_WHY}
mistake = [{{text = "broadcast", misconception = "one to all", {_WHY}}}]
""",
    "cloze": f"""
kind = "cloze"
text = \"\"\"{_ASKED} it takes [[steps]] steps, each of [[chunk]] MB, and is limited by its [[limit]].\"\"\"
{_WHY}
[gap.steps]
kind = "numeric"
answer = "2 * (num_ranks - 1)"
low = 1
high = 1000
[gap.chunk]
kind = "numeric"
answer = "size_mb / num_ranks"
low = 0.1
high = 1000
[gap.limit]
kind = "single"
choice = [
    {{text = "bandwidth", correct = true, {_WHY}}},
    {{text = "latency", correct = false, misconception = "small messages", {_WHY}}},
]
""",
}
_FIGURE = """
[figure]
title = "{{ size_mb }} MB"
alt = "Four ranks of which one is slower than the others by a part that depends on the size"
events = '''
{% for rank in range(4) %}{% for step in range(6) %}
{{ rank }}, main, forward, {{ step }}, {{ 2 * step }}, {{ 2 * step + 1 + rank * size_mb / 9000 }}
{% endfor %}{% endfor %}
'''
"""


def write_bank(folder: Path, num_weeks: int = 5, num_each: int = 2, num_figures: int = 1) -> Path:
    """Files of questions of six kinds, `num_each` of a kind a week; in `num_figures` of the weeks one has a picture."""
    folder.mkdir(parents=True, exist_ok=True)
    place = 0
    for week in range(1, num_weeks + 1):
        questions = [f'title = "week {week}"\n']
        for kind, body in _BODIES.items():
            for number in range(num_each):
                has_figure = kind == "numeric" and number == 0 and week <= num_figures
                head = _HEAD.format(id=f"w{week:02}-{kind}-{number}", week=week, difficulty=1 + place % 3)
                tables = (body + _FIGURE * has_figure).replace("[gap.", "[question.gap.")
                questions.append("[[question]]" + head + tables.replace("[figure]", "[question.figure]"))
                place += 1
        (folder / f"week{week:02}.toml").write_text("\n".join(questions), encoding="utf-8")
    return folder


def write_roster(file: Path, num_students: int) -> Path:
    """A class."""
    rows = [f"s{number:04},Student Number {number}" for number in range(num_students)]
    file.write_text("\n".join(["id,name", *rows]) + "\n", encoding="utf-8")
    return file
