"""A class name stands for one idea, in all of worldsize and autograder."""

import ast
from collections import defaultdict
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def names_of_two_classes(root: Path) -> list[str]:
    """One line for every class name that is defined more than once, private and nested ones included."""
    files: dict[str, list[str]] = defaultdict(list)
    for path in (path for top in ("autograder", "worldsize") for path in sorted((root / top).rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
            if isinstance(node, ast.ClassDef):
                files[node.name].append(f"{path.relative_to(root)}:{node.lineno}")
    return [f"{name}: {', '.join(where)}" for name, where in sorted(files.items()) if len(where) > 1]


def test_a_class_name_stands_for_one_idea():
    assert names_of_two_classes(REPOSITORY) == []


def test_a_name_given_to_two_classes_is_named_with_both_places(tmp_path):
    for top, source in (
        ("autograder", "class Plan: ...\n\n\nclass _Row: ...\n"),
        ("worldsize", "def made():\n    class _Row: ...\n\n\nclass Planned: ...\n"),
    ):
        (tmp_path / top).mkdir()
        (tmp_path / top / "a.py").write_text(source)
    assert names_of_two_classes(tmp_path) == ["_Row: autograder/a.py:4, worldsize/a.py:2"]
