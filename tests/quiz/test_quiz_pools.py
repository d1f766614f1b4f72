"""One import a class: slots that are equally hard, with as many variants as asked for, read back from each system."""

import io
import re
import stat
import xml.etree.ElementTree as ET
import zipfile
from collections import Counter

import pytest
import quiz_readers as readers
from quiz_banks import write_bank
from quiz_tools import amc2moodle, fetched, pyslet_source, qti2latex, qti12_dtd  # noqa: F401 - fixtures
from repository import ROOT
from typer.testing import CliRunner

from autograder.cli import app
from autograder.markdown.platform_markup import html
from autograder.quiz.blueprint import Blueprint, BlueprintCell, read_blueprints, shares
from autograder.quiz.formats import canvas, moodle
from autograder.quiz.pools import fill_slots, longest_minutes
from autograder.quiz.whole_bank import read_bank
from worldsize.quiz.variant import Amount, Options, Prose

BANK = ROOT / "quizzes"
XMLNS = ' xmlns="http://www.imsglobal.org/xsd/ims_qtiasiv1p2"'


@pytest.fixture(scope="module")
def questions():
    return read_bank(BANK)


@pytest.fixture(scope="module")
def module(questions):
    """The module quiz of the course's own bank, six variants a slot."""
    blueprint = read_blueprints(BANK)["module"]
    return blueprint, fill_slots(blueprint, questions, 6, b"secret")


def test_slots_have_the_blueprints_shares_and_share_no_question(module, questions):
    blueprint, slots = module
    assert len(slots) == blueprint.count == 24
    cells = [slot.cell for slot in slots]
    assert {cell: cells.count(cell) for cell in cells} == shares(blueprint, questions)
    asked = [question.id for slot in slots for question in slot.questions]
    assert len(asked) == len(set(asked)) > 40
    assert all(BlueprintCell.of(question) == slot.cell for slot in slots for question in slot.questions)
    assert longest_minutes([slot.questions for slot in slots]) <= blueprint.minutes


def test_a_slot_has_different_variants_of_its_own_questions(module):
    _, slots = module
    for slot in slots:
        ids = [variant.id for variant in slot.variants]
        assert len(ids) == len(set(ids)) <= 6
        assert {variant.question.id for variant in slot.variants} <= {question.id for question in slot.questions}
    assert sum(len(slot.variants) == 6 for slot in slots) >= 16, "most questions have so many variants"


def test_the_key_decides_and_nothing_else(questions):
    blueprint = Blueprint(title="t", count=6, weeks=(1, 2))

    def ids(key):
        return [[one.id for one in slot.variants] for slot in fill_slots(blueprint, questions, 3, key)]

    assert ids(b"a") == ids(b"a") != ids(b"b")


def test_essays_come_last_and_kinds_are_kept(questions):
    blueprint = Blueprint(title="t", count=8, essays=2, pools=("exam", "weekly"), kinds=("single", "numeric"))
    slots = fill_slots(blueprint, questions, 3, b"secret")
    kinds = [{question.kind for question in slot.questions} for slot in slots]
    assert kinds[-2:] == [{"essay"}, {"essay"}] and set().union(*kinds[:-2]) <= {"single", "numeric"}


def test_too_little_time_is_refused(questions):
    with pytest.raises(ValueError, match=r"24 questions take [\d.]+ minutes, and 20 are allowed"):
        fill_slots(Blueprint(title="t", count=24, minutes=20), questions, 2, b"")


def test_moodle_gets_a_category_for_each_slot(module):
    blueprint, slots = module
    root = ET.fromstring(moodle.render_pools(blueprint.title, [slot.variants for slot in slots]))
    found: list[list[str]] = []
    for one in root:
        if one.get("type") == "category":
            assert one.findtext("category/text") == f"$course$/top/Module quiz/slot {len(found) + 1:02}"
            found.append([])
        else:
            readers._moodle_question(one)  # strict about its parts
            found[-1].append(one.findtext("idnumber"))
    assert found == [[variant.id for variant in slot.variants] for slot in slots]


def test_canvas_gets_a_group_for_each_slot_that_picks_one(module, qti12_dtd):  # noqa: F811
    blueprint, slots = module
    data = canvas.render_groups(blueprint.title, [slot.variants for slot in slots])
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        files = {name: file.read(name) for name in file.namelist()}
    (name,) = [name for name in files if re.fullmatch(r"(quiz-[^/]+)/\1\.xml", name)]
    text = files[name].decode().replace(XMLNS, "")
    from lxml import etree

    # Canvas's own, within the extension that the standard provides for
    document = etree.fromstring(re.sub(r"<points_per_item>[^<]*</points_per_item>", "", text).encode())
    assert qti12_dtd.validate(document), qti12_dtd.error_log
    sections = ET.fromstring(text.encode()).findall("assessment/section/section")
    assert len(sections) == 24 and not ET.fromstring(text.encode()).findall("assessment/section/item")
    seen: set[str] = set()
    for section, slot in zip(sections, slots, strict=True):
        selection = section.find("selection_ordering/selection")
        assert selection.findtext("selection_number") == "1"
        assert float(selection.findtext("selection_extension/points_per_item")) == 1
        items = section.findall("item")
        assert [item.get("title").split(" ", 1)[1] for item in items] == [variant.id for variant in slot.variants]
        for item in items:
            readers._canvas_item(item, files)
            idents = {label.get("ident") for label in item.iter("response_label")} - {"answer1"}
            assert not idents & seen
            seen |= idents
    assert ET.fromstring(files[f"{name.split('/')[0]}/assessment_meta.xml"])[5].text == "24.0"


def variants_of(slots, kind):
    return {one.id: one for slot in slots for one in slot.variants if isinstance(one.answer, kind)}


def same(shown, options):
    """True if a reader, which keeps the markup, shows the texts of these options in their order."""
    return [readers.plain(one) for one in shown] == [readers.plain(html(one.text)) for one in options]


def test_a_reader_of_moodle_xml_that_is_not_ours_finds_the_same_answers(questions, amc2moodle):  # noqa: F811
    blueprint = Blueprint(title="t", count=30, essays=3, pools=("exam", "weekly"))
    slots = fill_slots(blueprint, questions, 4, b"secret")
    seen = Counter()
    for read in amc2moodle(moodle.render_pools(blueprint.title, [slot.variants for slot in slots]).decode()):
        kind, id = read["kind"], read["id"]
        seen[kind] += 1
        if kind == "multichoice":
            answer = variants_of(slots, Options)[id].answer
            assert read["type"] == ("question" if answer.single else "questionmult")
            is_right = [choice["tag"] == "correctchoice" for choice in read["choices"]]
            assert is_right == [option.correct for option in answer.options]
            assert same([choice["text"] for choice in read["choices"]], answer.options)
        elif kind == "numerical":
            assert float(read["target"]) == variants_of(slots, Amount)[id].answer.value
        else:
            assert id in variants_of(slots, Prose) and read["tag"] == "open"
    assert seen["multichoice"] > 9 and seen["numerical"] > 9 and seen["essay"] >= 3


def test_a_reader_of_canvas_packages_that_is_not_ours_finds_the_same_groups_and_choices(module, qti2latex):  # noqa: F811
    blueprint, slots = module
    data = canvas.render_groups(blueprint.title, [slot.variants for slot in slots])
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        (name,) = [name for name in file.namelist() if re.fullmatch(r"(quiz-[^/]+)/\1\.xml", name)]
        # Canvas itself writes points with a decimal, which this reader does not take
        xml = file.read(name).decode().replace("<points_per_item>1.0<", "<points_per_item>1<")
    num_choices = 0
    for group, slot in zip(qti2latex(xml), slots, strict=True):
        assert (group["num_picked"], group["points"], len(group["items"])) == (1, 1, len(slot.variants))
        for item, variant in zip(group["items"], slot.variants, strict=True):
            if not isinstance(variant.answer, Options):
                continue
            num_choices += 1
            assert (item["type"] == "multiple_choice_question") == variant.answer.single
            is_right = [ident in item["right"] for ident, _ in item["choices"]]
            assert is_right == [option.correct for option in variant.answer.options]
            assert same([text for _, text in item["choices"]], variant.answer.options)
    assert num_choices > 9


def run(*words):
    return CliRunner().invoke(app, ["quiz", "pools", *map(str, words)])


def test_the_command_writes_one_file_for_each_system_that_only_its_owner_reads(tmp_path):
    write_bank(tmp_path / "bank", num_weeks=2, num_figures=0)
    usual = ("--bank", tmp_path / "bank", "--key-file", tmp_path / "key", "--count", 6, "--variants", 4)
    done = run(*usual, "--out", tmp_path / "quiz")
    assert done.exit_code == 0, done.output
    files = sorted(path.name for path in (tmp_path / "quiz").iterdir())
    assert files == ["quiz.canvas.zip", "quiz.moodle.xml", "summary.txt"]
    assert stat.S_IMODE((tmp_path / "quiz").stat().st_mode) == 0o700
    assert "6 slots" in done.output and "slot 06" in done.output
    again = run(*usual, "--out", tmp_path / "other", "--system", "moodle")
    assert again.exit_code == 0 and not (tmp_path / "other/quiz.canvas.zip").exists()
    both = [(tmp_path / folder / "quiz.moodle.xml").read_bytes() for folder in ("quiz", "other")]
    assert both[0] == both[1]
    refused = run(*usual, "--out", tmp_path / "quiz")
    assert refused.exit_code == 1 and "is not an empty folder" in refused.output
    unknown = run(*usual, "--out", tmp_path / "third", "--system", "blackboard")
    assert unknown.exit_code == 1 and "There is no system 'blackboard' that draws from slots" in unknown.output
