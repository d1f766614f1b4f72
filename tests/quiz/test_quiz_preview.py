"""The bank as a page: every question with its answer, mistakes by file and line, and what the server answers."""

import json
import re
from contextlib import contextmanager
from http.client import HTTPConnection
from threading import Thread

import pytest
from quiz_class import KINDS, bank_text, write_bank
from quiz_samples import CLOZE, NUMERIC, SINGLE
from typer.testing import CliRunner

from autograder.cli import app
from autograder.quiz import preview
from autograder.quiz.page_html import asked, inline, shown
from worldsize.quiz import draw, load


@contextmanager
def served(folder):
    """Asks a running server for a path; gives status, text and headers."""
    server = preview.open_server(folder, 0)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()

    def get(path, host=None):
        connection = HTTPConnection("127.0.0.1", server.server_port, timeout=60)
        connection.request("GET", path, headers={"Host": host or f"127.0.0.1:{server.server_port}"})
        answer = connection.getresponse()
        found = answer.status, answer.read().decode(), answer.headers
        connection.close()
        return found

    try:
        yield get
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def bank(tmp_path):
    return write_bank(tmp_path / "quizzes")


def test_a_formula_is_mathml_and_markup_in_it_is_left_alone():
    text = shown(r"**Send** $a_1 * b_2 * \frac{2(N-1)}{N}$ of `$HOME` & <b>")
    assert text.count("<math") == 1 and "<mfrac>" in text and "<em>" not in text
    assert "<code>$HOME</code>" in text and "<strong>Send</strong>" in text and "&amp;" in text
    assert inline("one `two`") == "one <code>two</code>" and inline("a\n\nb").count("<p>") == 2


def test_gaps_are_numbered_blanks(bank):
    variant = draw(next(one for one in load("week02", bank).question if one.kind == "cloze"), 0)
    assert re.findall(r'aria-label="gap (\d)"', asked(variant)) == ["1", "2", "3"] and "[[" not in asked(variant)


def test_the_static_page_has_all_questions_and_several_variants_of_templates(bank, tmp_path):
    out = tmp_path / "new" / "page.html"
    result = CliRunner().invoke(app, ["quiz", "preview", "--bank", str(bank), "--out", str(out), "--variants", "3"])
    assert result.exit_code == 0, result.output
    page = out.read_text(encoding="utf-8")
    assert page.count("<article") == len(KINDS)
    assert page.count('<div class="variant"') == 4 * 3 + 2  # two have no parameters
    assert page.count("data:image/png") == 3 and "connect-src 'none'" in page and "const isLive = false" in page
    assert "://" not in re.sub(r'xmlns="[^"]*"', "", page)
    assert "{{" not in page
    for words in (
        "half of the way",
        "bits for bytes",
        "odd is even",
        "one to all",
        "Right within ±",
        "Give",
        "Divide.",
    ):
        assert words in page or words == "Give"


def test_the_server_gives_the_page_and_other_variants(bank):
    with served(bank) as get:
        status, page, headers = get("/")
        assert (status, page.count('<div class="variant"')) == (200, len(KINDS)) and "const isLive = true" in page
        assert headers["Cache-Control"] == "no-store" and "connect-src 'self'" in page
        status, text, _ = get("/variant?key=week02%2Ft-time&seed=7")
        variant = draw(load("week02", bank).question[2], 7)
        assert status == 200 and f"Seed 7: size_mb = {variant.parameters['size_mb']}" in text
        assert f"<strong>Right:</strong> {variant.answer.text}" in text
        for path in ("/variant?key=week02%2Fnone&seed=1", "/variant?key=week02%2Ft-time&seed=-1", "/../week02.toml"):
            assert get(path)[0] == 404


def test_only_this_machine_may_ask(bank):
    with served(bank) as get:
        assert get("/", host="evil.example:80")[0] == 403
        assert get("/version", host="127.0.0.1.evil.example:80")[0] == 403
        assert get("/version", host="localhost:80")[0] == 200


def test_a_changed_file_has_another_version_and_is_read_again(bank):
    with served(bank) as get:
        before = json.loads(get("/version")[1])
        assert json.loads(get("/version")[1]) == before
        (bank / "week02.toml").write_text(bank_text([NUMERIC.replace("at 8 GB/s", "at 9 GB/s")]), encoding="utf-8")
        assert json.loads(get("/version")[1]) != before
        page = get("/")[1]
        assert page.count("<article") == 1 and "at 9 GB/s" in page


def test_mistakes_are_shown_with_file_and_line_and_the_rest_stays(bank):
    broken = bank_text([SINGLE, CLOZE.replace("high = 100", "hihg = 100")])
    line = next(n for n, text in enumerate(broken.splitlines(), start=1) if "hihg" in text)
    (bank / "week03.toml").write_text(broken, encoding="utf-8")
    (bank / "week04.toml").write_text("title = ", encoding="utf-8")
    page = preview.page(bank)
    assert f"week03.toml, line {line}, question 2 (t-cloze), gap, steps, hihg: Extra" in page
    assert "week04.toml is not valid TOML" in page and page.count("<article") == len(KINDS)
    assert page.count('class="error" role="alert"') == 3  # a gap without `high` is a second mistake


def test_a_question_that_cannot_be_drawn_says_so_in_its_place(bank):
    text = bank_text([NUMERIC.replace("size_mb / 8", "size_mb / speed"), SINGLE])
    (bank / "week02.toml").write_text(text, encoding="utf-8")
    line = next(n for n, one in enumerate(text.splitlines(), start=1) if 't-time"' in one)
    page = preview.page(bank)
    assert f"week02.toml, line {line}: question t-time: " in page and "&#39;speed&#39; is undefined" in page
    assert page.count("<article") == 2 and page.count("Answer and feedback") == 1


def test_an_id_in_two_files_is_reported(bank):
    text = bank_text([NUMERIC])
    (bank / "week03.toml").write_text(text, encoding="utf-8")
    line = next(n for n, one in enumerate(text.splitlines(), start=1) if 't-time"' in one)
    assert f"week03.toml, line {line}: t-time is the id of a question in week02.toml too." in preview.page(bank)


def test_a_folder_without_a_bank_and_a_port_in_use_are_reported(bank, tmp_path):
    run = CliRunner().invoke
    result = run(app, ["quiz", "preview", "--bank", str(tmp_path)])
    assert result.exit_code == 1 and "holds no questions" in result.output
    taken = preview.open_server(bank, 0)
    try:
        result = run(app, ["quiz", "preview", "--bank", str(bank), "--port", str(taken.server_port)])
    finally:
        taken.server_close()
    assert result.exit_code == 1 and "is not available" in result.output and "0 for a free one" in result.output
    result = run(
        app, ["quiz", "preview", "--bank", str(bank), "--out", str(tmp_path / "quizzes" / "week02.toml" / "p")]
    )
    assert result.exit_code == 1 and "cannot be written" in result.output


def test_the_course_s_own_bank_has_no_mistakes():
    from worldsize.quiz.bank import find_folder

    page = preview.page(find_folder(), 2)
    assert 'class="error"' not in page and "\uf8f0" not in page and page.count("<article") >= 15
