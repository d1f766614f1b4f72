"""What makes no difference to the similarity of two works, what does, and what the command shows of it."""

import random
import re
import shutil

import nbformat
import pytest
from planted_copies import copied, independent, pool
from repository import ROOT
from typer.testing import CliRunner

from autograder.authoring.known_answers import compose
from autograder.cli import app
from autograder.course import open_course
from autograder.similarity.fingerprints import LENGTH, WINDOW, fingerprints
from autograder.similarity.pairs import ComparedWork, compare
from autograder.similarity.tokens import Token, imported_names, own_attributes, tokens
from autograder.similarity.works import given
from autograder.terminal import console

CODE = '''\
import torch


def total(values, weights=None):
    """The weighted sum."""
    # begin with nothing
    result = torch.zeros(1)
    for value in values:
        result += value.sum() * 2
    return f(result, "text", [1, 2])
'''


def texts(source):
    return [one.text for one in tokens(source)]


@pytest.mark.parametrize(
    "other",
    [
        CODE.replace("result", "everything").replace("values", "xs").replace("value", "x").replace("total", "add_up"),
        CODE.replace("    # begin with nothing\n", "\n\n"),
        CODE.replace('    """The weighted sum."""\n', "    '''Adds\n    a lot'''\n"),
        CODE.replace('"text"', "'another text'"),
        CODE.replace("[1, 2])", "[\n        1,\n        2,\n    ],\n    )"),
        CODE.replace(" = ", "=").replace("    ", "  "),
        CODE.replace("\n", "  # why\n"),
    ],
)
def test_what_makes_no_difference(other):
    assert other != CODE
    assert texts(other) == texts(CODE)


@pytest.mark.parametrize(
    "change", [("torch.zeros", "torch.ones"), ("* 2", "* 3"), ("+=", "-="), ("for value in values", "while values")]
)
def test_what_makes_a_difference(change):
    assert texts(CODE.replace(*change)) != texts(CODE)


def test_an_attribute_counts_unless_the_source_binds_it():
    assert texts("x.grad.sum()") != texts("x.data.sum()")
    bound = "class A:\n    def put(self):\n        self.{0}, self.b = 1, 2\n        return self.{0}\n"
    assert texts(bound.format("left")) == texts(bound.format("right"))
    assert own_attributes(bound.format("left")) == {"A", "put", "left", "b"}


def test_imports_with_odd_blanks_name_what_they_bind():
    source = "from torch import (nn,\t\n    optim)\nimport os.path as path, json ,\r\nimport a,\xa0\n"
    assert imported_names(source) == {"nn", "path", "json", "a"}


def test_tokens_carry_their_lines_and_end_where_python_ends():
    assert [one.line for one in tokens("a = 1\n\nb = 2\n") if one.text == "="] == [1, 3]
    assert texts("a = 1\nb = (2,\n")[:3] == ["name", "=", "1"]
    assert texts("a = 1\n    b = 2\n  c = 3\n")[:3] == ["name", "=", "1"]
    assert len(texts("(" * 5000)) <= 5000


def sequence(seed, length):
    chance = random.Random(seed)
    return [Token(f"t{chance.randrange(10**6)}", place) for place in range(length)]


@pytest.mark.parametrize("seed", range(20))
def test_no_match_of_the_guaranteed_length_is_missed(seed):
    shared = sequence(seed, LENGTH + WINDOW - 1)
    one = sequence(seed + 100, 30) + shared + sequence(seed + 200, 30)
    other = sequence(seed + 300, 50) + shared
    assert fingerprints(one).keys() & fingerprints(other).keys()
    short = shared[: LENGTH - 1]
    assert not fingerprints(sequence(1, 30) + short).keys() & fingerprints(sequence(2, 30) + short).keys()


def test_winnowing_keeps_a_part_of_all_hashes():
    kept = sum(len(spans) for spans in fingerprints(sequence(0, 3000)).values())
    assert 2 / (WINDOW + 1) * 0.85 < kept / 3000 < 2 / (WINDOW + 1) * 1.15  # the density that the paper derives


def test_the_order_of_functions_changes_nothing():
    one, other = (f"def f{n}(x):\n" + f"    y = x + {n}\n" * 20 for n in (1, 2))
    assert fingerprints(tokens(one + other)).keys() == fingerprints(tokens(other + one)).keys()


def test_a_decorator_moves_with_its_function_and_what_follows_one_stays():
    methods = [f"    @{name}\n    def f{n}(x):\n" + f"        y = x + {n}\n" * 20 for n, name in enumerate("ab")]
    after = "\n".join(f"z = g({n}, z)" for n in range(9))
    one, other = (f"class A:\n{''.join(order)}\n{after}\n" for order in (methods, methods[::-1]))
    assert fingerprints(tokens(one)).keys() == fingerprints(tokens(other)).keys()
    firsts = [token.text for token in tokens(one) if token.is_first]
    assert firsts == ["class", "@", "@", "name"]
    nested = "def f():\n    def g():\n        pass\n    return g\n\nasync def h():\n    pass\n"
    assert [(token.text, token.line) for token in tokens(nested) if token.is_first] == [
        ("def", 1), ("def", 2), ("return", 4), ("async", 6),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def lab():
    return pool(ROOT / "solutions/lab03"), given(open_course(ROOT), "lab03").sources


def test_planted_copies_are_above_the_line_and_independent_works_below(lab):
    answers, sources = lab
    works = [ComparedWork(f"honest{n}", independent(answers, n)) for n in range(24)]
    works += [ComparedWork(f"copy{n}", copied(works[n].parts, n)) for n in (0, 5, 9)]
    found = compare(works, sources)
    assert {(pair.one.name, pair.other.name) for pair in found.pairs} == {(f"honest{n}", f"copy{n}") for n in (0, 5, 9)}
    assert not found.too_small


def test_what_was_given_counts_for_nothing(lab):
    answers, sources = lab
    as_solved = {name: variants[0] for name, variants in answers.items()}
    others = [ComparedWork(f"honest{n}", independent(answers, n)) for n in range(6)]
    found = compare([ComparedWork("ada", as_solved), ComparedWork("ben", as_solved), *others], sources)
    assert set(found.too_small) >= {"ada", "ben"} and not found.pairs


def test_works_of_earlier_years_are_compared_with_this_years_only(lab):
    answers, sources = lab
    parts = independent(answers, 1)
    old = [ComparedWork("2025/zoe", parts, is_past=True), ComparedWork("2024/yan", copied(parts, 3), is_past=True)]
    others = [ComparedWork(f"honest{n}", independent(answers, n)) for n in range(2, 9)]
    assert not compare([*old, *others], sources).pairs
    found = compare([*old, *others, ComparedWork("ada", copied(parts, 2))], sources)
    assert {frozenset((pair.one.name, pair.other.name)) for pair in found.pairs} == {
        frozenset(("2025/zoe", "ada")),
        frozenset(("2024/yan", "ada")),
    }


@pytest.fixture(scope="module")
def course(tmp_path_factory, lab):
    """A class of eight with lab 3: ben has copied from ada, dan from last year, and eve's file is damaged."""
    root = tmp_path_factory.mktemp("course")
    shutil.copy(ROOT / "nbgrader_config.py", root)
    for folder in ("labs/lab03", "solutions/lab03"):
        shutil.copytree(ROOT / folder, root / folder)
    release = nbformat.read(root / "labs/lab03/lab03.ipynb", as_version=4)

    def hand_in(student, cells, place="submitted"):
        folder = root / place / student / "lab03"
        folder.mkdir(parents=True)
        (folder / "lab03.ipynb").write_text(nbformat.writes(compose(release, cells)))

    answers, _ = lab
    for number, student in enumerate(("ada", "cy", "fay", "gus", "hal")):
        hand_in(student, independent(answers, number))
    hand_in("ben", copied(independent(answers, 0), 1))
    hand_in("zoe", independent(answers, 77), "last/2025")
    hand_in("dan", {**copied(independent(answers, 77), 2), "average_flat": "def average_flat(m):\n    '</pre><b>'\n"})
    (root / "submitted/eve/lab03").mkdir(parents=True)
    (root / "submitted/eve/lab03/lab03.ipynb").write_text("{")
    return root


def run(course, monkeypatch, *words):
    monkeypatch.chdir(course)
    monkeypatch.setattr(console, "_width", 200)  # one may have been made already, by COLUMNS as it was
    return CliRunner().invoke(app, ["similar", *words])


def test_the_command_names_the_pairs_and_writes_the_page(course, monkeypatch):
    done = run(course, monkeypatch, "lab03", "--past", "last/2025", "--line", "0.7")
    assert done.exit_code == 0, done.output
    assert re.search(r"ada +ben +[01]\.\d\d", done.output) and re.search(r"dan +2025/zoe +0\.\d\d", done.output)
    assert "7 works compared, with one another and 1 of earlier years: 2 pairs of similarity 0.7" in done.output
    assert "Could not be read: eve." in done.output
    page = (course / "similar-lab03.html").read_text(encoding="utf-8")
    assert page.count("<section>") == 2 and "<mark>" in page and "<script" not in page and "http" not in page
    assert "</pre><b>" not in page and '<html lang="en">' in page
    assert page.count("color-scheme: light dark") == 1 and "prefers-color-scheme: dark" in page
    marked = re.findall(r"<mark>(.*?)</mark>", page)
    assert len(marked) > 60, "what both have is marked"


def test_nobody_is_suspected_without_a_copy(course, monkeypatch):
    (course / "submitted/ben").rename(course / "ben")
    try:
        done = run(course, monkeypatch, "lab03", "--to", "page.html")
    finally:
        (course / "ben").rename(course / "submitted/ben")
    assert done.exit_code == 0 and "0 pairs of similarity 0.94 or more" in done.output
    assert "No pair has a similarity of 0.94 or more." in (course / "page.html").read_text()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["lab99"], "only the labs and projects of this course can be compared"),
        (["lab03", "--past", "nowhere"], "nowhere holds no STUDENT/lab03: name a folder that is laid out like"),
    ],
)
def test_what_cannot_be_compared_is_refused(course, monkeypatch, words, reason):
    done = run(course, monkeypatch, *words)
    assert done.exit_code == 1 and reason in done.output
