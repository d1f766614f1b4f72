"""A small question of every kind, as text of the bank."""

import tomllib

from worldsize.quiz.bank import Quiz

HEAD = """
pool = "weekly"
week = 2
objective = "Compute."
difficulty = 2
minutes = 2
source = "arithmetic"
"""
SINGLE = f"""
id = "t-bound"
kind = "single"
{HEAD}
text = "{{{{ num_ranks }}}} ranks all-reduce {{{{ size_mb }}}} MB. What, $\\\\frac{{2(N-1)}}{{N}} S$, is sent?"
unit = "MB"
parameters = {{num_ranks = [2, 4, 8], size_mb = {{low = 50, high = 400, step = 50}}}}
where = {{share = "(num_ranks - 1) / num_ranks"}}
require = ["num_ranks * 50 <= size_mb"]
choice = [
    {{value = "2 * share * size_mb", correct = true, feedback = "{{{{ (2 * share) | significant }}}} of it."}},
    {{value = "share * size_mb", correct = false, misconception = "half of the way", feedback = "No."}},
    {{value = "2 * num_ranks * size_mb", correct = false, misconception = "the server's link", feedback = "No."}},
]
"""
NUMERIC = f"""
id = "t-time"
kind = "numeric"
{HEAD}
text = "{{{{ size_mb }}}} MB at 8 GB/s?"
unit = "ms"
parameters = {{size_mb = {{low = 10, high = 990, step = 10}}}}
answer = "size_mb / 8"
low = 1
high = 200
feedback = "Divide."
mistake = [{{value = "size_mb", misconception = "bits for bytes", feedback = "A byte has 8 bits."}}]
"""
ORDERING = f"""
id = "t-order"
kind = "ordering"
{HEAD}
text = "From the fewest steps to the most, with {{{{ n }}}} ranks:"
parameters = {{n = [16, 64]}}
item = [
    {{text = "ring", value = "2 * (n - 1)"}},
    {{text = "recursive doubling", value = "log2(n)"}},
    {{text = "tree", value = "2 * log2(n)"}},
]
feedback = "Count."
"""
WORDS = f"""
id = "t-word"
kind = "text"
{HEAD}
text = "A reduce-scatter and then?"
accepted = ["all-gather", "allgather"]
feedback = "Both make an all-reduce."
mistake = [{{text = "broadcast", misconception = "one to all", feedback = "That has one sender."}}]
"""
CLOZE = f"""
id = "t-cloze"
kind = "cloze"
{HEAD}
text = "A ring of {{{{ n }}}} takes [[steps]] steps of [[what]], which is [[kind]]."
parameters = {{n = [4, 8]}}
feedback = "Twice N - 1."
[gap.steps]
kind = "numeric"
answer = "2 * (n - 1)"
low = 1
high = 100
[gap.what]
kind = "text"
accepted = ["one chunk", "a chunk"]
[gap.kind]
kind = "single"
choice = [
    {{text = "few", correct = true, feedback = "Yes."}},
    {{text = "many", correct = false, misconception = "the other way", feedback = "No."}},
]
"""
ESSAY = f"""
id = "t-essay"
kind = "essay"
{HEAD}
text = "Explain **why** $2(N-1)$ <steps>."
num_words = 60
feedback = "A model answer: sums & copies, <twice>."
rubric = [
    {{points = 1.5, text = "It names the *reduce-scatter*, $N-1$ & more."}},
    {{points = 0.5, text = "It names the all-gather."}},
]
"""
FIGURE = """
[figure]
title = "A pipeline"
alt = "Stages one after the other"
events = '''
{% for stage in range(n) %}
{{ stage }}, main, forward, 1, {{ stage }}, {{ stage + 1 }}
{% endfor %}
'''
"""


def question(text):
    return Quiz.model_validate({"title": "a test", "question": [tomllib.loads(text)]}).question[0]
