"""What a cell's source shows without being run: what it defines, what it names, whether it is written."""

import pytest
from repository import ROOT

from autograder.authoring import programs
from autograder.authoring.known_answers import compose
from autograder.grading.verify import cases
from autograder.submissions.cell_facts import facts
from autograder.submissions.student_code import student_code


def sightings(*sources):
    return [one for cell in facts(list(sources)) for one in cell.sightings]


@pytest.mark.parametrize(
    ("source", "seen"),
    [
        ("import sys\nsys._getframe(1).f_back.f_locals", ["_getframe", "f_back", "f_locals"]),
        ("import gc\ngc.freeze()", ["gc.freeze"]),
        ("import gc as g\ng.get_objects()", ["get_objects"]),
        ("from gc import freeze as cold\ncold()", ["gc.freeze"]),
        ("import gc\ngetattr(gc, 'freeze')()", ["gc.freeze"]),
        ("import sys\ndel sys.modules['torch']", ["sys.modules"]),
        ("import worldsize as ws\nws.emulate.wire", ["worldsize.emulate"]),
        ("from worldsize.launch.protocol import codec", ["worldsize.launch"]),
        ("import ctypes.util", ["ctypes"]),
        ("open('/dev/shm/x')", ["/dev/shm"]),
        ("open(b'/proc/self/maps')", ["/proc"]),
        ("f'/proc/{1}/mem'", ["/proc"]),
        ("object.__subclasses__()", ["__subclasses__"]),
        ("import os\nos.fork()", ["os.fork"]),
        ("__import__('o' + 's')", ["__import__"]),
        ("exec('1')", ["exec"]),
        ("import torch\ntorch.equal = lambda *_: True", ["torch.equal is set"]),
        ("import torch.distributed as dist\ndist.Reducer.__init__ = f", ["dist.Reducer.__init__ is set"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_name_by_which_code_looks_beyond_its_task_is_seen(source, seen):
    assert set(seen) <= set(sightings(source))


def test_a_module_keeps_its_short_name_in_later_cells():
    assert sightings("import gc as g", "g.freeze()") == ["gc.freeze"]


@pytest.mark.parametrize(
    "source",
    [
        "model.eval()\ntorch.compile(model)",
        "def f():\n    '''Reads nothing in /proc.'''",
        "self.sys.modules = 3",
        "frozen = gc_freeze",
        "import os\nos.path.join('process', 'a')",
        "optimiser.param_groups[0]['lr'] = 1",
    ],
)
def test_ordinary_code_is_not_listed(source):
    assert sightings("import torch", source) == []


LABS = ["lab01", "lab02", "lab03", "lab04", "lab05", "lab06", "lab07", "lab09", "project1", "project2"]


@pytest.mark.parametrize("lab", LABS)
def test_no_right_answer_is_listed_and_every_cheat_by_a_patch_is(lab):
    release = verify_release(lab)
    listed = {case.name: code_of(lab, case, release).look_at for case in cases(ROOT, lab)}
    right = [name for name in listed if name in ("solution", "untouched") or name.startswith("right/")]
    assert len(right) > 2 and not any(listed[name] for name in right)
    wanted = {"lab01": "wrong/cheat_sends_a_forged_result", "project1": "wrong/cheat_lets_another_process_ask"}
    assert lab not in wanted or listed[wanted[lab]]


def verify_release(lab):
    from autograder.grading.verify import _release

    return _release(ROOT, lab)


def code_of(lab, case, release):
    paths = programs.authored(ROOT / "solutions" / lab)
    beside = {title: path for path in paths for title in programs.titles(path)}
    notebook = compose(release, {name: text for name, text in case.cells.items() if name not in beside})
    own = {name: text for name, text in case.cells.items() if name in beside}
    sources = {path.name: programs.solved(path, own) if own else programs.released(path) for path in paths}
    return student_code(notebook, release, sources)


@pytest.mark.parametrize(
    ("source", "is_unwritten"),
    [
        ("def f():\n    'What it does.'\n    raise NotImplementedError('Replace this line.')", True),
        ("def f():\n    raise NotImplementedError", True),
        ("class A:\n    def f(self):\n        raise NotImplementedError()", True),
        ("async def f():\n    raise NotImplementedError", True),
        ("def f(x):\n    if x:\n        raise NotImplementedError\n    return 1", False),
        ("def f():\n    raise ValueError", False),
        ("def f():\n    pass", False),
        ("not python", False),
    ],
)
def test_a_function_that_only_raises_is_not_written_yet(source, is_unwritten):
    assert next(facts([source])).is_unwritten == is_unwritten
