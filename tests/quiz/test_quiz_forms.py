"""Forms for a class: equally hard, the same for the same key, different for everybody; wrong rosters and keys."""

from collections import Counter
from itertools import combinations

import pytest

from autograder.quiz.blueprint import Blueprint, BlueprintCell, read_blueprints, shares
from autograder.quiz.forms import MOST_SHARED, deal
from autograder.quiz.key import key_of, printed, read_key
from autograder.tables.roster import Student, read_roster
from worldsize.quiz.bank import Quiz

KEY = b"a secret"
CLASS = [Student(f"s{number:03}", f"Student {number}") for number in range(40)]


def question(week, difficulty, number, minutes=2.0, high=400):
    return {
        "id": f"w{week}-d{difficulty}-{number}",
        "kind": "numeric",
        "pool": "weekly",
        "text": "Twice {{ n }}?",
        "parameters": {"n": {"low": 1, "high": high}},
        "answer": "2 * n",
        "low": 1,
        "high": 1000,
        "feedback": "Add it to itself.",
        "week": week,
        "objective": "Double a number." if number else "Halve a number.",
        "difficulty": difficulty,
        "minutes": minutes,
        "source": "arithmetic",
    }


def bank(*questions):
    return Quiz.model_validate({"title": "a test", "question": list(questions)}).question


@pytest.fixture(scope="module")
def questions():
    """Three weeks, of which the first has many easy questions."""
    easy = [question(1, 1, number) for number in range(6)]
    return bank(*easy, *(question(week, hard, n) for week in (1, 2, 3) for hard in (2, 3) for n in range(2)))


def cells(form):
    return Counter(BlueprintCell.of(variant.question) for variant in form.variants)


def test_weeks_get_equal_parts_and_difficulties_parts_like_the_banks(questions):
    assert shares(Blueprint(title="t", count=9), questions) == {
        (1, 1, False): 2, (1, 2, False): 1, (2, 2, False): 2, (2, 3, False): 1, (3, 2, False): 2, (3, 3, False): 1,
    }  # fmt: skip


def test_every_form_is_as_hard_as_every_other_and_none_asks_twice(questions):
    blueprint = Blueprint(title="t", count=9)
    forms = list(deal(blueprint, questions, CLASS, KEY))
    assert [form.student for form in forms] == CLASS
    assert all(cells(form) == shares(blueprint, questions) for form in forms)
    assert all(len({variant.question.id for variant in form.variants}) == 9 for form in forms)
    orders = {tuple(variant.question.week for variant in form.variants) for form in forms}
    assert len(orders) > 30  # weeks are mixed, and not alike for two neighbours


def test_same_key_gives_the_same_forms_and_another_key_others(questions):
    blueprint = Blueprint(title="t", count=9)
    first, again, other = (list(deal(blueprint, questions, CLASS, key)) for key in (KEY, KEY, b"another"))
    assert first == again
    assert all(one.variants != two.variants for one, two in zip(first, other, strict=True))


def test_another_title_or_student_gives_another_form(questions):
    forms = [
        next(deal(Blueprint(title=title, count=9), questions, [Student(id)], KEY))
        for title, id in (("t", "ann"), ("u", "ann"), ("t", "bob"))
    ]
    for one, other in combinations(forms, 2):
        assert {variant.id for variant in one.variants}.isdisjoint({variant.id for variant in other.variants})


def test_no_two_forms_share_many_variants_where_there_are_enough():
    questions = bank(*(question(1, 1, number, high=40) for number in range(12)))
    forms = list(deal(Blueprint(title="t", count=12), questions, CLASS, KEY))
    taken = [{variant.id for variant in form.variants} for form in forms]
    assert max(len(one & other) / 12 for one, other in combinations(taken, 2)) < MOST_SHARED


def test_minutes_are_kept():
    questions = bank(*(question(1, 1, number, minutes=1 + number % 3) for number in range(12)))
    forms = list(deal(Blueprint(title="t", count=4, minutes=7), questions, CLASS, KEY))
    assert max(form.minutes for form in forms) <= 7
    with pytest.raises(ValueError, match="No form of 4 questions took 3 minutes or less"):
        next(deal(Blueprint(title="t", count=4, minutes=3), questions, CLASS, KEY))


@pytest.mark.parametrize(
    ("wanted", "num"), [({"weeks": (2,)}, 4), ({"difficulties": (1,)}, 6), ({"objectives": ("halve",)}, 7)]
)
def test_questions_are_chosen_by_week_difficulty_and_objective(questions, wanted, num):
    assert sum(Blueprint(title="t", count=num, **wanted).allows(question) for question in questions) == num
    with pytest.raises(ValueError, match=f"asks for {num + 1} questions, and the bank has {num} that fit"):
        shares(Blueprint(title="t", count=num + 1, **wanted), questions)


def essay(number, worth=(1, 1), **more):
    asked = {**question(1, 2, number), "id": f"e-{number}", "kind": "essay", "num_words": 50, **more}
    rubric = [{"points": points, "text": "It says so."} for points in worth]
    return {name: asked[name] for name in asked if name not in ("parameters", "answer", "low", "high")} | {
        "text": "Explain.",
        "rubric": rubric,
    }


def test_questions_are_only_of_the_pools_that_a_blueprint_names(questions):
    pools = ("self-check", "weekly", "exam")
    asked = [question.model_copy(update={"pool": pools[n % 3]}) for n, question in enumerate(questions)]
    for wanted in (("weekly",), ("exam",), ("exam", "weekly")):
        forms = deal(Blueprint(title="t", count=4, pools=wanted), asked, CLASS, KEY)
        assert {variant.question.pool for form in forms for variant in form.variants} == set(wanted)
    assert Blueprint(title="t", count=4).pools == ("weekly",)
    with pytest.raises(ValueError, match="the bank has 6 that fit in the pools exam: ask for fewer, or for more pools"):
        shares(Blueprint(title="t", count=7, pools=("exam",)), asked)


def test_every_form_has_as_many_essays_and_they_stand_at_the_end(questions):
    asked = [*bank(*(essay(number) for number in range(3))), *questions]
    forms = list(deal(Blueprint(title="t", count=6, essays=2), asked, CLASS, KEY))
    for form in forms:
        assert [variant.question.kind for variant in form.variants] == ["numeric"] * 4 + ["essay"] * 2
        assert form.out_of == 4 + 2 * 2
    assert len({form.variants[-1].id for form in forms}) == 3
    (without,) = deal(Blueprint(title="t", count=6), asked, CLASS[:1], KEY)
    assert {variant.question.kind for variant in without.variants} == {"numeric"}
    with pytest.raises(ValueError, match="asks for 4 essays, and the bank has 3 that fit"):
        shares(Blueprint(title="t", count=6, essays=4), asked)
    with pytest.raises(ValueError, match="7 of 6 questions cannot be essays"):
        Blueprint(title="t", count=6, essays=7)


def test_essays_that_are_worth_different_points_are_not_dealt_together(questions):
    asked = [*bank(essay(0), essay(1, worth=(2, 1.5))), *questions]
    with pytest.raises(ValueError, match=r"those that fit are worth 2, 3\.5 points: forms would not be equal"):
        shares(Blueprint(title="t", count=6, essays=1), asked)


def test_blueprints_lie_beside_the_bank(tmp_path):
    assert read_blueprints(tmp_path) == {}
    (tmp_path / "blueprints.toml").write_text('[final]\ntitle = "Final"\ncount = 30\nweeks = [1, 2]\n')
    assert read_blueprints(tmp_path) == {"final": Blueprint(title="Final", count=30, weeks=(1, 2))}
    (tmp_path / "blueprints.toml").write_text('[final]\ntitle = "Final"\ncuont = 30\n')
    with pytest.raises(ValueError, match=r"blueprints\.toml, in a blueprint: count: Field required; cuont: Extra"):
        read_blueprints(tmp_path)


def test_a_key_gives_the_same_forms_again(questions, tmp_path):
    forms = list(deal(Blueprint(title="t", count=9), questions, CLASS[:3], KEY))
    file = tmp_path / "key.json"
    file.write_text(key_of(forms).model_dump_json())
    assert read_key(file, questions) == forms
    assert KEY.decode() not in file.read_text()


def test_a_key_of_another_bank_is_refused(questions, tmp_path):
    forms = list(deal(Blueprint(title="t", count=9), questions, CLASS[:3], KEY))
    file = tmp_path / "key.json"
    file.write_text(key_of(forms).model_dump_json())
    asked = forms[0].variants[0].question.id
    changed = [q.model_copy(update={"answer": "3 * n"}) if q.id == asked else q for q in questions]
    for other in (changed, [q for q in questions if q.id != asked]):
        with pytest.raises(ValueError, match=f"{asked}: the bank has changed since key.json was made"):
            read_key(file, other)
    file.write_text("{}")
    with pytest.raises(ValueError, match="cannot be read as the key of a quiz"):
        read_key(file, questions)


def test_a_key_prints_numbers_with_their_tolerance(questions):
    (form,) = deal(Blueprint(title="t", count=1, weeks=(2,)), questions, CLASS[:1], KEY)
    n = form.variants[0].parameters["n"]
    assert printed(form.variants[0].answer).startswith(f"{2 * n:.0f}"[:1])
    assert "(± " in printed(form.variants[0].answer)


def roster(tmp_path, text):
    file = tmp_path / "roster.csv"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def test_a_roster_is_read_with_or_without_names(tmp_path):
    text = "\N{BYTE ORDER MARK}ID,Name,section\nann,Ann  Åström,1\n\nbob@uni.edu,,2\n"
    assert read_roster(roster(tmp_path, text)) == [
        Student("ann", "Ann Åström", section="1"),
        Student("bob@uni.edu", section="2"),
    ]
    assert read_roster(roster(tmp_path, "id\n007\n")) == [Student("007")]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", r"has the columns \(none\): it needs one called `id`"),
        ("name\nAnn\n", "has the columns name: it needs one called `id`"),
        ("id,name\n", "names no students"),
        ("id,name\nann,A\nANN,B\n", "roster.csv, line 3: the id 'ANN' is that of line 2"),
        ("id,name\n,Ann\n", "line 2: Ann has no id"),
        ("id\n../ann\n", "line 2: the id '../ann' cannot be a file name"),
        ("id\n=1+1\n", "line 2: the id '=1\\+1' cannot be a file name"),
        (b"id\n\xff\xfe\n", "roster.csv, line 2: not in UTF-8"),
    ],
)
def test_a_roster_that_is_wrong_is_refused_with_its_line(tmp_path, text, reason):
    with pytest.raises(ValueError, match=reason):
        read_roster(roster(tmp_path, text))


def test_all_mistakes_of_a_roster_are_reported_at_once(tmp_path):
    with pytest.raises(ValueError, match="ann") as caught:
        read_roster(roster(tmp_path, "id,name\nann,A\n,B\nann,C\n"))
    assert len(str(caught.value).splitlines()) == 2
