"""The worst patterns of English stay out of docstrings, comments, names, messages and pages."""

import re
from pathlib import Path

import pytest
from repository import ROOT as REPOSITORY
from test_files import committed

READ = (
    *(
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "README.md",
        "autograder",
        "docs",
        "jupyter_lab_config.py",
        "nbgrader_config.py",
        "solutions",
        "tests/house",
        "weeks",
    ),
    "worldsize",
)
SUFFIXES = (".diff", ".j2", ".md", ".py", ".toml")
THIRD_PERSON = "Adds|Gives|Joins|Keeps|Lets|Makes|Passes|Puts|Raises|Refuses|Removes|Returns|Sends|Takes|Writes"
TELL_APART = r"[\s_]+(?:\w+[\s_]+){0,4}?(?:apart|from|the[\s_]+difference)(?![a-z])"
ADVICE = {
    r'"""Nothing\b': "begin with the imperative, or say what comes back",
    rf'"""(?:{THIRD_PERSON})\b': "use the imperative for a function, a noun phrase for a class",
    rf"(?<![a-z])(?:told|tells?)(?![a-z]|\(\))(?!{TELL_APART})": "use says, reports, shows, describes or names",
    r"\bas\s+of\s+(?:`|an?\b)": "use like, or the same as",
    r"\bwhoever\b": "use whichever rank, or anyone who",
    r",\s+for\s+(?:it|they|there|nobody|no\s+one|he|she|we)\b": "use because",
    r"\b(?:would|could|might|may|will)\s+else\b": "use otherwise",
    r"\bthat\s+very\b": "use the same, or this",
    r"\bwhat\s+(?:is|are)\s+no\b": "use what is not, or name the rest",
    r"\bbut\s+for\s+(?:their|its)\b": "use except for",
    r"(?<!\bthere )\b(?:is|are)\s+no\s+(?:fault|flag|entry|folder|zero|list|product)\b": "use is not a",
    r"\bmend(?:s|ed)?\b": "use fix",
    r"\bfrom\s+[01]\s+(?:up|on)\b": "use 1 or more, or counted from 0",
    r"\bstands?\s+above\b|\bheld\s+against\b|\bcome\s+up;": "use is above, compared with, or start",
    r",\s+for\s+(?:a|an|the)\s+\w+\s+(?:is|has|can)\b": "use because",
}
PATTERNS = {re.compile(pattern, re.IGNORECASE): advice for pattern, advice in ADVICE.items()}


def bad_english(root: Path) -> list[str]:
    """Each phrase that matches a pattern, with its file, its line and what to write instead."""
    found = []
    for path in committed(root):
        name = path.relative_to(root).as_posix()
        if name.startswith(READ) and path.suffix in SUFFIXES and path.name != Path(__file__).name:
            text = path.read_text(encoding="utf-8")
            # a sentence goes on in the next line of a comment or a string; the length stays, for the line's number
            joined = re.sub(r"\n[ #+]*", lambda gap: " " * len(gap[0]), text)
            for pattern, advice in PATTERNS.items():
                for match in pattern.finditer(joined):
                    line = text.count("\n", 0, match.end()) + 1
                    found.append(f"{name}:{line}: {' '.join(match[0].split())!r}: {advice}")
    return sorted(found)


def test_the_course_keeps_the_rule():
    assert bad_english(REPOSITORY) == []


@pytest.mark.parametrize(
    "text",
    [
        '"""The mean over all ranks, in place."""\n\nNothing; and as of version 2 it tells two ranks apart.',
        "def check_tells_right_from_wrong(): ...",
        "# waits for an hour, for a link\n# that is slow, but for the most part it works",
        "retold, foretell, whatever, elsewhere",
        "# amend, recommend, mending; from 0 to 1; this is no longer a list; there is no flag --x; what comes up",
        "size_bytes = file.tell()",
    ],
)
def test_good_english_keeps_the_rule(tmp_path, text):
    (tmp_path / "weeks").mkdir()
    (tmp_path / "weeks/week01.py").write_text(text)
    assert bad_english(tmp_path) == []


@pytest.mark.parametrize(
    "text",
    [
        '"""Nothing; afterwards the tensor is a sum."""',
        '"""Raises ValueError unless it is a sum."""',
        "def tell_failure(): ...",
        "told = 1",
        "# it tells\n# what it saw",
        "# as of `run`",
        "# for whoever waits",
        "# the rank waits, for\n    # it has no gradient",
        "# which would else be lost",
        "# none of that very file",
        "# what is no tensor",
        "# the same, but for its name",
        "# what is given is no flag",
        "# two of these are\n# no zero",
        "MESSAGE = 'Mend this one first'",
        "# it was mended",
        "# a number from 1 up",
        "# counted from 0\n# on",
        "# its message stands above",
        "# held against a reference",
        "# it did not come up; try again",
        "# it waits, for a rank has left",
    ],
)
def test_a_planted_phrase_is_caught(tmp_path, text):
    (tmp_path / "weeks").mkdir()
    (tmp_path / "weeks/week01.py").write_text(f"import os\n{text}\n")
    (line,) = bad_english(tmp_path)
    assert re.match(r"weeks/week01\.py:[23]: '", line)


def test_other_folders_are_not_read_yet(tmp_path):
    (tmp_path / "told.py").write_text("told = 1\n")
    assert bad_english(tmp_path) == []
