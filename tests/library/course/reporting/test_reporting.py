"""A report's numbers, planted: those from nowhere are found, and computed, cited and harmless ones are left alone."""

import json
import re
import time

import pytest

from worldsize.course import reporting
from worldsize.course.reporting.__main__ import main

OUTPUTS = """
GPUs                  384 A100 SXM 80 GB, 4 nodes in spare
model                 176B parameters
plan                  tp4 pp12 dp8, micro-batch 2, recompute full, ZeRO-1
memory                25.4 GB of 80.0 GB
step                  1.33 min, 4.19M tokens
throughput            52.6K tokens/s
MFU                   47.5%
a failure             every 7.00 days, in the mean
goodput               98.3%
days                  81.9 for 366B tokens, 80.5 of them if nothing failed
energy                0.8 GWh
cost                  1.6 million dollars
the pipeline's bubble 0.0763
kernels, TFLOP/s      149.217
bytes of a gradient   1258291200
step_s                79.68
hours                 1082990.4
"""
TABLE = "<table><tr><td>dp</td><td>16</td><td>112.50 s</td></tr><tr><td>rate &amp; peak</td><td>312</td></tr></table>"
# each number was computed; it is written as a report would
COMPUTED = [
    "The job has 384 GPUs and a model of 176 billion parameters.",
    "A step takes 79.7 s, or 1.33 minutes.",
    "A step takes 80 s.",
    "That is 52,600 tokens/s, or 52.6 thousand tokens a second.",
    "The MFU is 47.5%, so that 0.475 of the peak is used.",
    "The bubble is 7.6% of a step, about 8%.",
    "The gradient has 1.26 GB, or 1,258,291,200 bytes: 1.17 GiB.",
    "It took 1.08 million GPU-hours, or 1 082 990.",
    "| run | 16 | 112.5 s | 312 |",
    "At 149 TFLOP/s it needs 81.9 days, and **80.5** without failures.",
    "With 366 · 10^9 tokens the job takes about 80 days and 0.8 GWh.",
    "The bill is 1.6 million dollars; 98.3 percent is goodput.",
    "$M = 25.4$ GB of 80 GB are held, for $4.19$M tokens.",
]
CITED = [
    "The team reports 105.22 s [1].",
    "The model card names [1,082,990 hours](https://example.org/card) and 433 tonnes.",
    "Of 466 failures, 58.7% were of GPUs (arXiv 2407.21783).",
    "| published | 117.5 days | 3.3 GWh | [1] |",
    "A save took 41 s, says doi:10.5555/3648699.3648952.",
    "[^paper]: Narayanan et al. 2021: 502 PFLOP/s, [arXiv](https://arxiv.org/abs/2104.04473).",
    "It lost 77.7 h that way.[^paper]",
]
HARMLESS = [
    "## 3. The bottleneck",
    "3. In 2022 the team trained BLOOM 176B on A100 and H100.",
    "Llama 3 405B, GPT-3 175B, GPT-530B, PaLM 540B and the 175B model all used bf16.",
    "As section 3.3, Table 2, Figures 4 and 5, and week 14 say, ZeRO-3 gathers.",
    "1F1B with `micro_batch = 37` in 3rd place; see Narayanan et al. (2021) and Luccioni et al. 2023.",
    "$T = 6 N D / (p \\cdot 8)$ has two terms, and each of 2 ranks sends 1 message.",
    "On 23 November 2022 it ended; the log is dated 2022-11-23.",
    "```\nx = 4711\n```",
    "Between 2022 and 2023, and again from 2024 to 2025, it ran with dp 16 x tp 4, then with pp = 12.",
    "Ten GPUs in four nodes: tp4, fp16, PCIe 5, NVLink 4.",
]
# nothing computed these and nobody is cited: each is one number
PLANTED = [
    "A step takes 93.4 s.",
    "The MFU is 52%.",
    "It sustains 61,200 tokens/s.",
    "The bubble takes 11.4% of a step.",
    "That costs 4.7 million dollars.",
    "It would take 64 days.",
    "A gradient has 2.6 GB.",
    "It holds 31 GB.",
    "Failures come every 5.5 days.",
    "The efficiency is 0.87.",
    "It needs 1,536 GPUs.",
    "It needs 2048 GPUs.",
    "NVLink carries 600 GB/s.",
    "The adapters carry 100 Gb/s.",
    "A kernel reaches 204 TFLOP/s.",
    "That is 1.7 times faster.",
    "The power is 0.55 MW.",
    "It saves 120 thousand dollars.",
    "It saves $230,000.",
    "About 40% of all time is lost.",
    "Nearly 700 kW are drawn.",
    "The latency is 25 µs.",
    "The batch has 3.2M tokens.",
    "A checkpoint has 2.3 TB.",
    "It is written in 36 s.",
    "A restart takes 27 minutes.",
    "It emits 25 tonnes.",
    "| ours | 133 s |",
    "- Raising dp to 32 helps.",
    "The gain is 3.9%.",
    "One more replica brings 9.3 days.",
    "With 24 stages the bubble doubles.",
    "The rent is 1.89 dollars an hour.",
    "It trains on 1.4 trillion tokens.",
    "Its goodput is 91.2%.",
    "A node draws 6.5 kW.",
    "It has 5 switches.",
    "A collective has 235 MB.",
    "The model needs 3.14e23 FLOP.",
    "It repeats 33% of the work.",
    "The pipeline idles for 9 s.",
    "A stage holds 6 layers.",
    "It pays after 14 months.",
    "The error is 24%.",
    "Of these, 217 failed [7].",
    "A 3-fold gain is out of reach.",
    "$\\eta = 0.71$ at that size.",
    "In the mean 13 hours are lost.",
]


def report(*texts, outputs=(OUTPUTS, TABLE)):
    plain, table = outputs or ("", "")
    cells = [
        {"cell_type": "code", "source": "print(1)", "outputs": [{"output_type": "stream", "text": [plain]}]},
        {
            "cell_type": "code",
            "source": "x",
            "outputs": [{"output_type": "display_data", "data": {"text/html": table}}],
        },
    ]
    cells += [{"cell_type": "markdown", "source": text} for text in texts]
    return {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


SOURCES = "[1] BigScience, chronicles: https://example.org/chronicles"


def found_in(text):
    return [one.number for one in reporting.check(report(text, SOURCES, CITED[5])).findings]


@pytest.mark.parametrize("text", [*COMPUTED, *CITED, *HARMLESS])
def test_what_is_computed_cited_or_harmless_is_left_alone(text):
    assert not found_in(text)


def test_numbers_from_nowhere_are_found():
    found = [text for text in PLANTED if len(found_in(text)) == 1]
    assert len(PLANTED) >= 40
    assert len(found) >= 0.95 * len(PLANTED), sorted({*PLANTED} - {*found})


def test_most_of_what_is_reported_was_planted():
    sound = [*COMPUTED, *CITED, *HARMLESS]
    checked = reporting.check(report("\n\n".join([*sound, SOURCES]), "\n\n".join(PLANTED)))
    planted = [one for one in checked.findings if one.cell == 4]
    assert len(planted) >= 0.95 * len(PLANTED)
    assert len(planted) >= 0.98 * len(checked.findings)
    assert checked.num_numbers == checked.num_computed + checked.num_cited + len(checked.findings)
    assert checked.num_computed + checked.num_cited >= 40


def test_a_finding_names_the_cell_the_sentence_and_what_is_nearest():
    (one,) = reporting.check(report("First.\n\nA step takes 78.9 s. It ends.")).findings
    assert (one.cell, one.number, one.sentence) == (3, "78.9 s", "A step takes 78.9 s.")
    assert (one.nearest, one.nearest_cell) == ("79.68", 1)


def test_more_digits_than_the_output_shows_are_not_computed():
    assert found_in("The MFU is 47.53%.") == ["47.53%"]
    assert not found_in("The MFU is 47.5%.")


def test_a_reference_counts_only_where_the_report_defines_it():
    assert found_in("It lost 13.7 h [9].") == ["13.7 h"]
    assert not found_in("It lost 13.7 h [1].")


def test_a_source_covers_its_own_sentence_and_row_alone():
    assert found_in("It took 117.5 days [1]. It could take 93.5 days.") == ["93.5 days"]
    assert found_in("| a | 117.5 | [1] |\n| b | 93.5 | |") == ["93.5"]


def test_units_of_another_kind_do_not_support_a_number():
    assert found_in("A step takes 25.4 s.") == ["25.4 s"]


def test_a_rubric_is_not_the_report():
    assert not found_in("All is computed.\n\n**Rubric**\n\n- a point (1), and 17 more")


def test_the_command_reads_an_executed_notebook_as_data(tmp_path, capsys):
    sound, wrong, empty = (tmp_path / f"{name}.ipynb" for name in ("sound", "wrong", "empty"))
    sound.write_text(json.dumps(report(COMPUTED[0])))
    wrong.write_text(json.dumps(report(PLANTED[0])))
    empty.write_text(json.dumps(report(COMPUTED[0], outputs=())))
    assert main(["check", str(sound)]) == 0
    assert "2 numbers: 2 computed, 0 cited, 0 neither" in capsys.readouterr().out
    assert main(["check", str(wrong)]) == 1
    assert re.search(r"cell 3 from the top: 93\.4 s is neither computed nor cited", capsys.readouterr().out)
    assert main(["check", str(empty)]) == 1
    assert "run all cells" in capsys.readouterr().out
    (tmp_path / "torn.ipynb").write_text("{")
    assert main(["check", str(tmp_path / "torn.ipynb")]) == 1
    assert "torn.ipynb cannot be read as a notebook" in capsys.readouterr().err


@pytest.mark.parametrize("piece", ["9", "1,", "1 ", "<", "[", "$", "`", "A", "a-", "*", "10.1234/", "1.", "Of "])
def test_no_text_and_no_output_stops_the_check(piece):
    text = piece * (19_999 // len(piece))
    start_s = time.process_time()
    reporting.check(report(text, outputs=(text, text)))
    assert time.process_time() - start_s < 5


def test_a_text_that_is_too_long_is_named():
    with pytest.raises(ValueError, match="cell 3 from the top has 20,001 characters of text: split it"):
        reporting.check(report("x" * 20_001))
