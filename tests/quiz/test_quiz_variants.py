"""Questions with parameters: drawn by seed, computed, distinguished, and marked with partial credit, in every kind."""

import pytest
from quiz_samples import CLOZE, FIGURE, NUMERIC, ORDERING, SINGLE, WORDS, question

from worldsize import draw as pictures
from worldsize.quiz import draw, mark
from worldsize.quiz.answer_form import page
from worldsize.quiz.bank import load
from worldsize.quiz.question_text import as_text, png
from worldsize.quiz.variant import Amount, TimelinePicture


def test_same_seed_gives_the_same_variant_and_others_differ():
    bound = question(SINGLE)
    assert draw(bound, 3) == draw(bound, 3)
    assert len({draw(bound, seed).id for seed in range(200)}) == 7 + 5 + 1  # what `require` leaves of 3 x 8


def test_choices_are_computed_and_what_is_required_holds():
    for seed in range(50):
        variant = draw(question(SINGLE), seed)
        n, size_mb = variant.parameters["num_ranks"], variant.parameters["size_mb"]
        assert n * 50 <= size_mb
        (right,) = [option for option in variant.answer.options if option.correct]
        assert right.value == pytest.approx(2 * (n - 1) / n * size_mb)
        assert f"{n} ranks all-reduce {size_mb} MB" in variant.text and r"\frac{2(N-1)}{N}" in variant.text
        assert "{{" not in variant.text + "".join(option.text + option.feedback for option in variant.answer.options)


def test_choices_stand_in_another_order_for_another_seed():
    assert (
        len({tuple(option.correct for option in draw(question(SINGLE), seed).answer.options) for seed in range(40)})
        == 3
    )


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (
            "size_mb / 8",
            "size_mb / speed",
            "'size_mb / speed' cannot be computed with size_mb = .*'speed' is undefined",
        ),
        ("size_mb / 8", "size_mb / 0", "division by zero"),
        ("size_mb / 8", "'much'", "which is not a finite number"),
        ("high = 200", "high = 1.1", "is not between 1 and 1.1"),
        ('value = "size_mb"', 'value = "size_mb / 8.1"', "cannot be distinguished"),
        ("{{ size_mb }} MB", "{{ sizes }} MB", "the text .* cannot be filled in"),
    ],
)
def test_what_cannot_be_computed_names_the_question_and_the_reason(old, new, reason):
    assert old in NUMERIC
    with pytest.raises(ValueError, match=f"question t-time: .*{reason}"):
        draw(question(NUMERIC.replace(old, new)), 0)


@pytest.mark.parametrize(
    ("text", "old", "new", "reason"),
    [
        (NUMERIC, "size_mb / 8", "size_mb /", "is not well formed"),
        (NUMERIC, "{{ size_mb }}", "{{ size_mb", "is not well formed"),
        (SINGLE, "low = 50", "low = 500", "its high, 400, is below its low, 500"),
        (SINGLE, '{share = "', '{size_mb = "', "size_mb is both a parameter and computed"),
        (SINGLE, 'value = "share * size_mb", ', "", "either a text or a value"),
        (
            SINGLE,
            "correct = true, ",
            'correct = true, misconception = "none", ',
            "a correct choice cannot have a misconception",
        ),
        (CLOZE, "[[what]]", "what", r"its text has the gaps \['kind', 'steps'\]"),
        (ORDERING, ', value = "log2(n)"', "", "either all items must have a value, or none"),
        (WORDS, 'text = "broadcast"', 'value = "2"', "a mistake of a text must have a text and no value"),
        (NUMERIC, 'value = "size_mb"', 'text = "2"', "a mistake of a number must have a value and no text"),
    ],
)
def test_malformed_questions_are_refused(tmp_path, text, old, new, reason):
    assert old in text
    with pytest.raises(ValueError, match=reason):
        question(text.replace(old, new))


def test_a_mistake_deep_in_a_file_is_found_by_its_line(tmp_path):
    lines = ['title = "a test"', "", "[[question]]", *SINGLE.strip().splitlines()]
    lines += [
        "",
        "[[question]]",
        *CLOZE.replace("high = 100", "hihg = 100").replace("[gap", "[question.gap").strip().splitlines(),
    ]
    (tmp_path / "week02.toml").write_text("\n".join(lines), encoding="utf-8")
    wanted = next(place for place, line in enumerate(lines, start=1) if "hihg" in line)
    with pytest.raises(
        ValueError, match=rf"week02.toml, line {wanted}, question 2 \(t-cloze\), gap, steps, hihg: Extra"
    ):
        load("week02", tmp_path)


def test_a_parameter_that_nothing_fulfils_is_reported():
    with pytest.raises(ValueError, match="none of 1000 draws satisfied every condition in `require`: "):
        draw(question(SINGLE.replace("num_ranks * 50 <= size_mb", "num_ranks > 8")), 0)


def test_choices_that_come_to_the_same_text_are_refused():
    with pytest.raises(ValueError, match="two of its choices have the same text"):
        draw(question(SINGLE.replace('"2 * num_ranks * size_mb"', '"2.0001 * share * size_mb"')), 0)


def test_things_that_come_to_the_same_cannot_be_ordered():
    with pytest.raises(ValueError, match="have about the same value"):
        draw(question(ORDERING.replace("2 * (n - 1)", "2 * log2(n)")), 0)


@pytest.mark.parametrize("seed", range(5))
def test_a_number_counts_within_its_tolerance(seed):
    variant = draw(question(NUMERIC), seed)
    value, unit = variant.answer.value, variant.answer.unit
    for right in (value, f"{value:g}", f"{value * 1.015:.6g} {unit}", variant.answer.text):
        assert mark(variant, right).is_right, right
    for wrong in (value * 1.03, -value, "about so much", f"{value:g} kg"):
        assert mark(variant, wrong).share == 0, wrong
    mixed_up = mark(variant, 8 * value)
    assert mixed_up.misconceptions == ("bits for bytes",) and mixed_up.feedback == ("A byte has 8 bits.", "Divide.")


@pytest.mark.parametrize("seed", range(3))
def test_bits_earn_nothing_where_bytes_are_asked_for(seed):
    variant = draw(question(NUMERIC.replace('unit = "ms"', 'unit = "GB"')), seed)
    right = variant.answer.text
    assert mark(variant, right).is_right and mark(variant, right.replace("GB", "gB")).is_right
    for wrong in (right.replace("GB", "Gb"), right.replace("GB", "gb")):
        marked = mark(variant, wrong)
        assert marked.share == 0 and marked.feedback[0].endswith("` is not a number in GB: b is a bit, B a byte.")


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(28, "", "28"), (72, "GB", "72 GB"), (100 / 3, "%", "33.3%"), (1269.8, "µs", "1,270 µs")],
)
def test_a_whole_number_is_printed_without_decimals(value, unit, text):
    assert Amount(value, 0.1, 3, unit).text == text


def test_single_choice_is_all_or_nothing_and_names_what_was_mixed_up():
    variant = draw(question(SINGLE), 1)
    options = variant.answer.options
    for place, option in enumerate(options):
        marked = mark(variant, [place])
        assert marked.share == option.correct
        assert marked.misconceptions == ((option.misconception,) if option.misconception else ())
    assert mark(variant, list(range(3))).share == 0
    assert mark(variant, []).share == 0 and mark(variant, None).feedback == ()
    with pytest.raises(ValueError, match="not numbers of its 3 options"):
        mark(variant, [3])


def test_order_counts_by_place_and_is_computed():
    variant = draw(question(ORDERING), 0)
    assert variant.answer.in_order == ("recursive doubling", "tree", "ring")
    assert variant.answer.shown != variant.answer.in_order
    assert mark(variant, variant.answer.places).is_right
    first, second, third = variant.answer.places
    assert mark(variant, [second, first, third]).share == pytest.approx(1 / 3)
    with pytest.raises(ValueError, match="does not order its 3 items"):
        mark(variant, [0, 0, 1])


@pytest.mark.parametrize("given", ["all-gather", " ALL-Gather. ", "allgather", "all\N{NON-BREAKING HYPHEN}gather"])
def test_words_count_whatever_their_case_and_spaces(given):
    variant = draw(question(WORDS), 0)
    assert mark(variant, given).is_right
    assert mark(variant, "gather").share == 0
    assert mark(variant, "Broadcast").misconceptions == ("one to all",)


def test_gaps_count_equally():
    variant = draw(question(CLOZE), 0)
    steps = 2 * (variant.parameters["n"] - 1)
    few = [option.text for option in variant.answer.gaps["kind"].options].index("few")
    assert mark(variant, {"steps": steps, "what": "A chunk", "kind": [few]}).is_right
    assert mark(variant, {"steps": steps}).share == pytest.approx(1 / 3)
    with pytest.raises(ValueError, match="there is no gap 'colour'"):
        mark(variant, {"colour": "red"})
    assert "takes \\_\\_\\_(1)\\_\\_\\_ steps of \\_\\_\\_(2)" in as_text("t", [variant])


def test_gaps_are_numbered_as_in_the_text_whatever_their_order_in_the_file():
    head, *tables = CLOZE.split("[gap.")
    reversed_tables = "".join(f"\n[gap.{table}" for table in reversed(tables))
    assert list(draw(question(head + reversed_tables), 0).answer.gaps) == ["steps", "what", "kind"]


def test_an_option_knows_its_place_in_the_bank():
    asked = question(SINGLE)
    for option in draw(asked, 3).answer.options:
        assert asked.choice[option.place].misconception == option.misconception


def test_what_was_typed_does_not_leave_its_code_marks():
    (message, _) = mark(draw(question(NUMERIC), 0), "` <b>\n\n<script>").feedback
    assert message == "`' <b> <script>` is not a number in ms."


def test_a_figure_is_drawn_from_its_events():
    variant = draw(question(ORDERING + FIGURE), 0)
    assert png(variant.picture).startswith(b"\x89PNG")
    assert "[A pipeline: Stages one after the other]" in as_text("t", [variant])
    crooked = draw(question(ORDERING + FIGURE.replace("main, forward", "main")), 0)
    with pytest.raises(ValueError, match="it must be rank, stream, kind, name, start_s, end_s"):
        png(crooked.picture)


def test_a_figure_shows_every_stream_and_leaves_shares_to_the_reader(monkeypatch):
    drawn, original = [], pictures.timeline
    monkeypatch.setattr(
        pictures, "timeline", lambda *given, **options: drawn.append(original(*given, **options)) or drawn[-1]
    )
    events = "0, main, forward, f, 0, 1\n0, communication, communication, all-reduce, 1, 3"
    png(TimelinePicture(events, "A step of one rank", "two bars"))
    (picture,) = drawn
    words = [axes.get_title(loc="left") for axes in picture.axes] + [picture.alt]
    assert words == ["A step of one rank", "Timeline (A step of one rank) of 1 rank over 3.00 s."]


def test_a_form_marks_every_kind():
    for text, give in [(NUMERIC, type_right), (WORDS, type_right), (ORDERING, put_in_order), (CLOZE, fill_gaps)]:
        variant = draw(question(text), 0)
        _, *fields, check, feedback = page(variant).children
        check.click()
        assert "Choose an answer first" in feedback.value
        give(variant, fields)
        check.click()
        assert "✓ Right." in feedback.value and variant.feedback in feedback.value


def type_right(variant, fields):
    answer = variant.answer
    fields[0].value = answer.text if hasattr(answer, "text") else answer.accepted[0]


def put_in_order(variant, fields):
    for place, shown in enumerate(variant.answer.places):
        fields[shown].children[0].value = place


def fill_gaps(variant, fields):
    gaps = variant.answer.gaps
    fields[0].value, fields[1].value = gaps["steps"].text, gaps["what"].accepted[0]
    fields[2].value = next(iter(gaps["kind"].right))
