"""A layer of Megatron-LM on paper beside what its authors measured; `make bench` has all published rows."""

import cloudpickle
import gpt_layers
import published_memory
import published_steps
import pytest


@pytest.mark.parametrize("row", ["kor22_t4_layer_none", "kor22_t4_layer_selsp"])
def test_a_layers_time_is_near_the_published(row):
    cloudpickle.register_pickle_by_value(gpt_layers)
    (found,) = [published_steps.on_paper(one) for one in published_steps.rows() if one["id"] == row]
    assert abs(found.error_fraction) < 0.1


def test_what_a_layer_keeps_is_korthikantis():
    """Equation 4 of arXiv 2205.05198: 34 s b h / t bytes with sequence parallelism and selective recomputation."""
    sizes = published_memory._OF_22B
    kept = published_memory._activation_bytes(sizes, "selective", True, 1)
    formula = 34 * sizes.length * sizes.micro_batch * sizes.width / sizes.tp
    assert kept == pytest.approx(formula, rel=0.001)


def test_rows_without_a_figure_say_why():
    left = {published_steps.why_left_out(row) for row in published_steps.rows()} - {None}
    assert all("source" in why or "catalogue" in why or "known" in why for why in left)
    with pytest.raises(ValueError, match="does not say the micro-batch"):
        published_steps.on_paper(next(row for row in published_steps.rows() if row["source"].startswith("Llama 3")))


def test_an_error_is_that_of_a_source_left_out():
    steps = [
        published_steps.Step("a1", "a", 2.0, 1.0, 1.0),
        published_steps.Step("a2", "a", 4.0, 2.0, 2.0),
        published_steps.Step("b1", "b", 1.0, 1.0, 1.0),
    ]
    a, b = published_steps.errors(steps)
    assert (a.median, a.bias, a.corrected, a.anchored, a.constant) == (0.5, -0.5, 0.5, 0.0, 0.5)
    assert (b.median, b.corrected, b.anchored, b.constant) == (0.0, 1.0, None, 1.0)


def step(name, source, published_s, paper_s, hfu_flops, in_series_s=None):
    return published_steps.Step(name, source, published_s, paper_s, hfu_flops, in_series_s)


def test_a_source_that_one_hfu_guesses_better_says_why():
    steps = [
        *(step(f"a{n}", "a", 2.0 * n, 1.0 * n, 1.0 * n) for n in (1, 2, 3)),  # twice as long, each of them
        *(step(f"b{n}", "b", 1.0 * n, 0.5 * n, 0.5 * n, 0.8 * n) for n in (1, 2, 3)),
        *(step(f"c{n}", "c", 1.0, 1.0, 1.0) for n in (1, 2, 3)),
    ]
    a, b, c = published_steps.errors(steps)
    assert a.why_worse == "its level alone: 0.0% off with a factor of its own, 0.0% with its own HFU"
    assert b.why_worse.startswith("-20% with nothing side by side")
    assert c.why_worse == ""


def test_calculons_error_stands_beside_ours():
    steps = [step("a1", "vTrain", 2.0, 1.0, 1.0), step("b1", "b", 2.0, 2.0, 2.0)]
    lines = published_steps.beside(published_steps.errors(steps))
    assert any(line.startswith("vTrain") and "9.1% of 103" in line for line in lines)
    assert any("Calculon, all that it takes: 22.6% of 312 rows" in line for line in lines)
