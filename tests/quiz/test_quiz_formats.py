"""Every format says what was asked and what is right: files are read back, compared, and judged by others' readers."""

import io
import re
import xml.etree.ElementTree as ET
import zipfile

import pytest
import quiz_readers as readers
from hypothesis import given, settings
from hypothesis import strategies as st
from quiz_qti21 import check_package
from quiz_readers import BLANK, Read, plain
from quiz_samples import CLOZE, FIGURE, HEAD, NUMERIC, ORDERING, SINGLE, WORDS, question
from quiz_tools import (  # noqa: F401 - fixtures
    fetched,
    pyslet_source,
    qti12_dtd,
    qti21_engine,
)

from autograder.markdown import platform_markup
from autograder.quiz.blueprint import Blueprint
from autograder.quiz.formats import FORMATS, platform_text
from autograder.quiz.forms import AskedQuestion, Form
from autograder.tables.roster import Student
from worldsize.quiz import draw, mark
from worldsize.quiz.bank import Quiz
from worldsize.quiz.question_text import html, png
from worldsize.quiz.variant import Amount, Gaps, Options, Order, Phrase

MULTIPLE = f"""
id = "t-many"
kind = "multiple"
{HEAD}
text = "Which scale with `N`?"
parameters = {{unused = [1, 2, 3]}}
choice = [
    {{text = "the ring's **steps**", correct = true, feedback = "$2(N-1)$."}},
    {{text = "the bytes of a rank", correct = false, misconception = "all", feedback = "At most $2S$."}},
    {{text = "the ring's messages", correct = true, feedback = "One a step."}},
    {{text = "a tree's messages", correct = true, feedback = "$2(N-1)$ too."}},
]
"""
MENUS = f"""
id = "t-menus"
kind = "cloze"
{HEAD}
text = "A ring is [[speed]] for large messages and a tree is [[other]]."
feedback = "Bandwidth and latency."
[gap.speed]
kind = "single"
choice = [
    {{text = "fast", correct = true, feedback = "Yes."}},
    {{text = "slow", correct = false, misconception = "the other way", feedback = "No."}},
]
[gap.other]
kind = "single"
choice = [
    {{text = "not $\\\\frac{{1}}{{2}}$", correct = false, misconception = "x", feedback = "No."}},
    {{text = "half, $\\\\frac{{1}}{{2}}$", correct = true, feedback = "Yes."}},
]
"""
UNITS = f"""
id = "t-units"
kind = "cloze"
{HEAD}
text = "Sending {{{{ s }}}} MB takes [[time]], or [[more]] ms."
parameters = {{s = [8, 80]}}
feedback = "Divide."
[gap.time]
kind = "numeric"
answer = "s / 8"
unit = "ms"
low = 1
high = 100
mistake = [{{value = "s", misconception = "bits", feedback = "A byte has 8 bits: ~50% #1."}}]
[gap.more]
kind = "numeric"
answer = "s / 4"
unit = "ms"
low = 1
high = 100
"""
# what means something to a format, to Markdown or to XML, in every place where words can be
NASTY = (
    "= <&>\"' ~=} #: a\\*b [[X]] ]]> C:\\dir %50% -> {1:SA:=x} `code & <b>` $\\frac{a}{b} < c$ "
    "\U0001f680 \u05e9\u05dc\u05d5\u05dd\tand\nmore\n\n&amp; // \\$CATEGORY: *emphasis* 5 < 6"
)
NASTY_WORDS = "= <&>\"' ~=} #: a*b [[X]] ]]> C:\\dir %50% -> {1:SA:=x} \U0001f680 \u05e9\u05dc\u05d5\u05dd * // |"


def nasty(kind, **more):
    head = {"pool": "weekly", "week": 1, "objective": "o", "difficulty": 1, "minutes": 1, "source": "s"}
    asked = {"id": f"n-{kind}", "kind": kind, "text": f"{NASTY} {kind}", "feedback": f"{NASTY} general", **head, **more}
    return Quiz.model_validate(
        {"title": "t", "question": [{name: value for name, value in asked.items() if value}]}
    ).question[0]


def options(num_right):
    options = [(f"{NASTY} {n}", n < num_right, f"{NASTY} feedback {n}") for n in range(4)]
    return [
        {"text": text, "correct": is_right, "feedback": why, "misconception": None if is_right else NASTY}
        for text, is_right, why in options
    ]


def nasty_questions():
    mistake = {"misconception": "m", "feedback": f"{NASTY} mistake"}
    number = {"answer": "12.5", "low": 1, "high": 99, "unit": "GB/s", "mistake": [{"value": "25", **mistake}]}
    words = {"accepted": [NASTY_WORDS, "plain"], "mistake": [{"text": f"{NASTY_WORDS} not", **mistake}]}
    gaps = {
        "a": {"kind": "numeric", **number},
        "b": {"kind": "text", **words},
        "c": {"kind": "single", "choice": options(1)},
    }
    return [
        nasty("single", choice=options(1), feedback=None),
        nasty("multiple", choice=options(2), feedback=None),
        nasty("numeric", **number),
        nasty("text", **words),
        nasty("ordering", item=[{"text": f"{NASTY} {n}"} for n in range(4)]),
        nasty("cloze", gap=gaps, text=f"{NASTY} [[a]] and [[b]] and [[c]] {NASTY}"),
    ]


def form_of(variants, student="ann@example.edu"):
    asked = tuple(AskedQuestion("seed", variant) for variant in variants)
    return Form(Student(student, "Ann <&> Bo"), Blueprint(title="Weeks 1/2 <&> ]]>", count=len(asked)), asked)


@pytest.fixture(scope="module")
def variants():
    """A variant of every kind, one of them with a figure, and again with every nasty text."""
    texts = (SINGLE, MULTIPLE, NUMERIC, ORDERING + FIGURE, WORDS, CLOZE, MENUS, UNITS)
    return [draw(question(text), 3) for text in texts] + [draw(one, 3) for one in nasty_questions()]


@pytest.fixture(scope="module")
def form(variants):
    return form_of(variants)


def said(markdown):
    """Markdown as the notebook shows it, as plain text."""
    return plain(html(markdown)) if markdown else ""


def typed(text):
    return " ".join(text.split())


def wanted(variant):
    """What a format with everything must say."""
    read = Read(variant.id, said(variant.text), "", feedback=said(variant.feedback))
    fill(read, variant.answer)
    if isinstance(variant.answer, Amount):
        read.text += f" (Give a number, in {variant.answer.unit}.)" if variant.answer.unit else ""
    if isinstance(variant.answer, Gaps):
        text = variant.text
        for name, gap in variant.answer.gaps.items():
            has_unit = isinstance(gap, Amount) and gap.unit and f"[[{name}]] {gap.unit}" not in text
            text = text.replace(f"[[{name}]]", f"GAP {gap.unit}" if has_unit else "GAP")
            read.gaps.append(Read("", "", ""))
            fill(read.gaps[-1], gap)
        read.text = said(text).replace("GAP", BLANK)
    read.images = [png(variant.picture)] if variant.picture else []
    return read


def fill(read, answer):
    match answer:
        case Options(options=options, single=single):
            read.kind = "single" if single else "multiple"
            share = 1 / sum(one.correct for one in options)
            read.options = [
                (said(one.text), share if one.correct else 0 if single else -share, said(one.feedback))
                for one in options
            ]
        case Amount():
            read.kind = "numeric"
            read.numbers = [(answer.value - answer.tolerance, answer.value + answer.tolerance, 1, "")]
            for m in answer.mistakes:
                reach = abs(m.value) * answer.tolerance / abs(answer.value)
                read.numbers.append((m.value - reach, m.value + reach, 0, said(m.feedback)))
        case Phrase():
            read.kind = "text"
            read.words = [(typed(text), 1, "") for text in answer.accepted]
            read.words += [(typed(m.text), 0, said(m.feedback)) for m in answer.mistakes]
        case Order():
            read.kind = "ordering"
            read.order = [said(text) for text in answer.in_order]
        case Gaps():
            read.kind = "cloze"


def assert_same(read, want):
    for name in ("id", "text", "kind", "order", "feedback", "images"):
        assert getattr(read, name) == getattr(want, name), name
    for name in ("options", "words"):
        one, other = getattr(read, name), getattr(want, name)
        assert [(text, feedback) for text, _, feedback in one] == [(text, feedback) for text, _, feedback in other]
        assert [share for _, share, _ in one] == pytest.approx([share for _, share, _ in other], abs=1e-5)
    assert [n[3] for n in read.numbers] == [n[3] for n in want.numbers]
    for one, other in zip(read.numbers, want.numbers, strict=True):
        assert one[:3] == pytest.approx(other[:3])
    assert len(read.gaps) == len(want.gaps)
    for one, other in zip(read.gaps, want.gaps, strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("name", FORMATS)
def test_a_form_is_the_same_bytes_every_time_and_another_for_another_student(form, name):
    render = FORMATS[name].render
    assert render(form) == render(form)
    other = form_of([draw(variant.question, 5) for variant in form.variants], "bo")
    assert render(form) != render(other)


@pytest.mark.parametrize("name", ["canvas", "qti21"])
def test_a_package_says_no_time_of_its_making(form, name):
    with zipfile.ZipFile(io.BytesIO(FORMATS[name].render(form))) as archive:
        assert {info.date_time for info in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert {info.create_system for info in archive.infolist()} == {3}


def test_formats_have_names_and_suffixes_of_their_own():
    assert len({one.suffix for one in FORMATS.values()}) == len(FORMATS)
    assert all(name == one.name and one.suffix.startswith(".") for name, one in FORMATS.items())


def test_moodle_says_what_was_asked(form):
    category, questions = readers.read_moodle(FORMATS["moodle"].render(form))
    assert category == "$course$/top/Weeks 1//2 <&> ]]>/ann@example.edu"
    for read, variant in zip(questions, form.variants, strict=True):
        assert_same(read, wanted(variant))


def test_qti21_says_what_was_asked(form):
    for (_, read), variant in zip(readers.read_qti21(FORMATS["qti21"].render(form)), form.variants, strict=True):
        want = wanted(variant)
        if isinstance(variant.answer, Amount) and variant.answer.unit:
            want.text += f" {BLANK} {variant.answer.unit}"
        elif isinstance(variant.answer, Amount | Phrase):
            want.text += f" {BLANK}"
        for gap in want.gaps:  # a menu holds no markup: LaTeX stands there without its dollars
            gap.options = [(text.replace("$", ""), *rest) for text, *rest in gap.options]
        for gap in read.gaps:
            gap.options = [(text.replace("$", ""), *rest) for text, *rest in gap.options]
        assert_same(read, want)


def test_qti21_is_as_the_specification_wants_it(form):
    check_package(FORMATS["qti21"].render(form))


def responses(variant):
    """Responses as the course marks them, and as an item has them, with names of its fields."""
    answer = variant.answer
    match answer:
        case Options(options=options, single=True):
            for place in range(len(options)):
                yield [place], {"RESPONSE": f"C{place + 1}"}
        case Options(options=options):
            for chosen in range(1, 2 ** len(options)):
                places = [place for place in range(len(options)) if chosen >> place & 1]
                yield places, {"RESPONSE": [f"C{place + 1}" for place in places]}
        case Amount(value=value, tolerance=tolerance):
            for given in (
                value,
                value + 0.99 * tolerance,
                value - 1.01 * tolerance,
                *(m.value for m in answer.mistakes),
            ):
                yield given, {"RESPONSE": float(given)}
        case Phrase():
            for given in (*answer.accepted, answer.accepted[0].upper(), "nothing", *(m.text for m in answer.mistakes)):
                yield given, {"RESPONSE": typed(given)}
        case Order(places=places):
            for turn in range(len(places)):
                order = [*places[turn:], *places[:turn]]
                yield order, {"RESPONSE": [f"I{place + 1}" for place in order]}
            swapped = [places[1], places[0], *places[2:]]
            yield swapped, {"RESPONSE": [f"I{place + 1}" for place in swapped]}
        case Gaps(gaps=gaps):
            for num_right in range(len(gaps) + 1):
                ours, theirs = {}, {}
                for name, gap in list(gaps.items())[:num_right]:
                    match gap:
                        case Options():
                            ours[name], theirs[f"RESPONSE-{name}"] = list(gap.right), f"C{min(gap.right) + 1}"
                        case Amount():
                            ours[name], theirs[f"RESPONSE-{name}"] = gap.value, gap.value
                        case Phrase():
                            ours[name], theirs[f"RESPONSE-{name}"] = gap.accepted[0], typed(gap.accepted[0])
                yield ours, theirs


def test_qti21_scores_itself_as_the_course_does(form, qti21_engine):  # noqa: F811
    items = readers.read_qti21(FORMATS["qti21"].render(form))
    num_partial = 0
    for (item, _), variant in zip(items, form.variants, strict=True):
        assert qti21_engine(item, {}) == (0, set())
        for ours, theirs in responses(variant):
            marked = mark(variant, ours)
            score, feedback = qti21_engine(item, theirs)
            assert score == pytest.approx(marked.share), (variant.id, ours)
            assert len(feedback) == len(marked.feedback), (variant.id, ours)
            num_partial += 0 < marked.share < 1
    assert num_partial > 10


def test_canvas_package_says_what_was_asked(form):
    _, items = readers.read_canvas(FORMATS["canvas"].render(form))
    for read, variant in zip(items, form.variants, strict=True):
        want = wanted(variant)
        about_mistakes = [one[-1] for one in [*want.numbers, *want.words][1:] if one[-1]]
        if isinstance(variant.answer, Gaps):
            assert_canvas_gaps(read, variant)
            want.text = read.text
            read.kind, want.gaps, read.gaps = "cloze", [], []
        for comment in about_mistakes:
            assert comment in [*read.numbers, *read.words][0][-1]
        want.numbers = [(*one[:3], read.numbers[0][3]) for one in want.numbers if one[2]]
        want.words = [(*one[:2], read.words[0][2]) for one in want.words if one[1]]
        assert_same(read, want)


def assert_canvas_gaps(read, variant):
    are_menus = all(isinstance(gap, Options) for gap in variant.answer.gaps.values())
    assert read.kind == ("multiple_dropdowns_question" if are_menus else "fill_in_multiple_blanks_question")
    blanks = iter(variant.answer.gaps.items())
    text = wanted(variant).text
    while BLANK in text:
        name, gap = next(blanks)
        blank = f"[{name}]"
        if isinstance(gap, Options) and not are_menus:
            texts = [said(option.text).replace("$", "") for option in gap.options]
            blank += f" ({', '.join(f'{letter}: {text}' for letter, text in zip('ABCD', texts, strict=False))})"
        text = text.replace(BLANK, blank, 1)
    assert read.text.replace("$", "") == text.replace("$", "")
    for one, (name, gap) in zip(read.gaps, variant.answer.gaps.items(), strict=True):
        assert one.text == name
        right = [text for text, share, _ in one.words if share]
        match gap:
            case Options(options=options) if are_menus:
                assert [bool(share) for _, share, _ in one.words] == [option.correct for option in options]
                assert [text for text, *_ in one.words] == [said(option.text).replace("$", "") for option in options]
            case Options(options=options):
                place = min(gap.right)
                texts = ["ABCD"[place], said(options[place].text)]
                assert [text.replace("$", "") for text in right] == [text.replace("$", "") for text in texts]
            case Amount():
                assert gap.text in right
                for given in right:
                    assert mark_gap(variant, name, given), given
            case Phrase():
                assert right == [typed(text) for text in gap.accepted]


def mark_gap(variant, name, given):
    return mark(variant, {name: given}).share == pytest.approx(1 / len(variant.answer.gaps))


def test_canvas_package_is_valid_qti12(form, qti12_dtd):  # noqa: F811
    from lxml import etree

    text, _ = readers.read_canvas(FORMATS["canvas"].render(form))
    assert qti12_dtd.validate(etree.fromstring(text.encode())), qti12_dtd.error_log.filter_from_errors()


@pytest.mark.parametrize(
    ("value", "tolerance", "some", "none"),
    [
        (24.0, 0.48, ["24", "24.0", "23.6", "24.4"], ["23.5", "24.5"]),
        (1234.0, 24.68, ["1,230", "1230", "1220", "1250"], ["1200", "1260"]),
        (0.00125, 0.00001, ["0.00125", "0.00124", "0.00126"], ["0.001", "0.00127"]),
        (-3.0, 0.1, ["-3", "-3.00", "-3.0", "-2.9"], ["3", "-2.89"]),
        (0.0, 0.0, ["0"], ["1"]),
        (100.0, 40.0, ["100", "100 MB"], ["140.1"]),
    ],
)
def test_numbers_for_platforms_that_compare_texts_are_those_within_the_tolerance(value, tolerance, some, none):
    found = platform_text.spellings(Amount(value, tolerance, 3, "MB"))
    assert set(some) <= set(found) and not set(none) & set(found)
    assert found[0] == some[0] and len(found) < 70


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60))
def test_markdown_becomes_wellformed_xml_whatever_it_is(text):
    for converted in (platform_markup.html(text), platform_markup.html_with_mathml(text)):
        ET.fromstring(f"<div>{converted}</div>")
    assert "\n" not in platform_markup.line(text)


@pytest.mark.parametrize(
    ("markdown", "wanted"),
    [
        ("a **b** $c_d$", r"<p>a <strong>b</strong> \(c_d\)</p>"),
        ("List<int> x <br> y", "<p>List&lt;int&gt; x <br/> y</p>"),
        ("<script>alert(1)</script>", "&lt;script&gt;alert(1)&lt;/script&gt;"),
        ('<p onclick="x">a</p>', "<p>a</p>"),
        ("~~gone~~ <u>under</u>", "<p>gone under</p>"),
        ("a <em>b", "<p>a <em>b</em></p>"),
        ("costs \\$5 or \\$6", "<p>costs $5 or $6</p>"),
        ("`$x$`", "<p><code>$x$</code></p>"),
        ("$$a\n+b$$", "<p>\\[a\n+b\\]</p>"),
        ("x\x00\x0by", "<p>xy</p>"),
    ],
)
def test_markdown_becomes_plain_xhtml(markdown, wanted):
    assert re.sub(r"\s+", " ", platform_markup.html(markdown)) == re.sub(r"\s+", " ", wanted)


def test_a_formula_that_mathml_cannot_show_stays_latex():
    text = platform_markup.html_with_mathml(r"$\unknown{x}$ and $x^2$")
    assert r"\(\unknown{x}\)" in text and text.count("<math ") == 1


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1, max_size=30).filter(str.strip))
def test_words_to_type_survive_every_format(text):
    brace = text.replace("{", "(")  # a template's beginning
    cloze = {"kind": "text", "accepted": [brace]}
    asked = [nasty("text", accepted=[brace]), nasty("cloze", text="x [[a]] y [[b]]", gap={"a": cloze, "b": cloze})]
    form = form_of([draw(one, 0) for one in asked])
    word = typed(form.variants[0].answer.accepted[0])
    _, (one, gaps) = readers.read_moodle(FORMATS["moodle"].render(form))
    found = [one.words[0][0], gaps.gaps[0].words[0][0]]
    (_, one), (_, gaps) = readers.read_qti21(FORMATS["qti21"].render(form))
    found += [one.words[0][0], gaps.gaps[1].words[0][0]]
    _, (one, gaps) = readers.read_canvas(FORMATS["canvas"].render(form))
    found += [one.words[0][0], gaps.gaps[0].words[0][0]]
    assert {typed(one) for one in found} == {word}


def test_texts_that_differ_only_by_case_are_accepted_once():
    assert platform_text.distinct(Phrase(("All-Gather", "all-gather", "all  gather", "allgather"))) == [
        "All-Gather",
        "all gather",
        "allgather",
    ]


def test_identifiers_of_two_students_stay_two():
    names = ["a.b", "a_b", "a-b", "a@b", "a+b", "1a", "A"]
    assert len({platform_text.identifier(name) for name in names}) == len(names)
    assert all(re.fullmatch(r"[A-Za-z][\w.-]*", platform_text.identifier(name)) for name in names)
