"""The range that published programs give a figure on paper, and the kind of program that it is looked up for."""

import dataclasses

import cloudpickle
import gpt_layers
import large_programs
import programs
import published_ranges
import pytest
from published_ranges import BOUND, DATA, KINDS, PEAK, SERIAL, STEP, TENSOR_OR_PIPELINE
from repository import ROOT

import worldsize as ws
from worldsize import hardware, published
from worldsize.paper.family import family_of

COMPARED = published_ranges.read()
SAMPLE = published_ranges.steps()[::9]


def test_the_ranges_are_those_of_all_published_rows():
    rebuilt = [published_ranges.range_of(kind, COMPARED) for kind in KINDS]
    assert published_ranges.RANGES_CSV.read_text() == published_ranges.table(rebuilt)
    assert published.ranges() == tuple(rebuilt)
    assert published_ranges.least_hfu_fraction(COMPARED) == published.LEAST_HFU_FRACTION
    assert published_ranges.ratio_error_fraction(COMPARED) == published.RATIO_ERROR_FRACTION


def test_every_published_row_was_recorded():
    steps, peaks = ([row.id for row in COMPARED if row.figure == figure] for figure in (STEP, PEAK))
    assert steps == [row["id"] for row in published_ranges.steps()] and len(peaks) == 11
    plans = [row for row in COMPARED if row.figure in (BOUND, SERIAL)]
    assert published_ranges.table(list(published_ranges.compare_plans())) == published_ranges.table(plans)
    assert len(plans) == 2 * 70


@pytest.mark.parametrize("row", SAMPLE, ids=[row["id"] for row in SAMPLE])
def test_a_row_is_recorded_again_with_the_same_result(row):
    cloudpickle.register_pickle_by_value(gpt_layers)
    (kept,) = [one for one in COMPARED if (one.id, one.figure) == (row["id"], STEP)]
    again = published_ranges.compare_step(row)
    assert (again.on_paper, again.hfu_fraction) == pytest.approx((kept.on_paper, kept.hfu_fraction), rel=1e-5)
    assert dataclasses.replace(again, on_paper=0, hfu_fraction=0) == dataclasses.replace(
        kept, on_paper=0, hfu_fraction=0
    )


def test_a_range_is_of_five_rows_and_two_sources_at_least():
    for one in published.ranges():
        assert one.num_rows >= 5 and len(one.sources) >= 2
        assert all(round(20 * end, 6) == round(20 * end) for end in (one.low, one.high))
    of_mosaicml = (STEP, (DATA,), ("hopper",), 1, 4096)
    with pytest.raises(ValueError, match="has 6 rows of 1 sources; merge it"):
        published_ranges.range_of(of_mosaicml, COMPARED)
    of_four = (STEP, (DATA,), ("ampere",), 1, 4)
    with pytest.raises(ValueError, match="has 1 rows of 1 sources; merge it"):
        published_ranges.range_of(of_four, COMPARED)


@pytest.mark.parametrize(
    ("factors", "ends"),
    [
        ([1.01, 1.02, 1.32], (1.0, 1.35)),
        ([1.01, *[1.11] * 17, 1.41], (1.0, 1.45)),  # of 19 rows none is left out,
        ([1.01, *[1.11] * 18, 1.41], (1.1, 1.15)),  # of 20 one at each end
    ],
)
def test_a_twentieth_of_the_rows_is_outside_at_each_end(factors, ends):
    assert published_ranges.central(factors) == ends


def test_a_range_holds_nine_of_ten_rows_and_the_docs_say_how_many():
    page = " ".join((ROOT / "docs/paper.md").read_text().split())
    for kind in KINDS:
        one, held = published_ranges.range_of(kind, COMPARED), published_ranges.coverage(kind, COMPARED)
        assert held.num_inside >= 0.9 * held.num_rows
        tried = f"{held.num_inside_without_source} of {held.num_tried}" if held.num_tried else "none can be"
        assert (
            f"| {one.low:.2f} to {one.high:.2f} | {held.num_inside} of {held.num_rows} | {tried} | "
            f"{one.high / one.low:.2f} |" in page
        )


def test_a_ratio_is_of_two_steps_of_one_publication_and_family():
    def row(source, family, factor):
        return published_ranges.Compared("", STEP, source, family, "ampere", 8, factor, 1.0, 0.5)

    rows = [row("a", DATA, 1.0), row("a", DATA, 1.17), row("b", DATA, 9.0), row("a", TENSOR_OR_PIPELINE, 5.0)]
    assert published_ranges.ratio_error_fraction(rows) == 0.15


def test_left_out_are_the_rows_of_one_publication():
    def row(source, factor):
        return published_ranges.Compared("", STEP, source, DATA, "ampere", 8, factor, 1.0, 0.5)

    kind = (STEP, (DATA,), ("ampere",), 1, 8)
    rows = [*[row("a", 1.22)] * 5, row("b", 1.23), row("b", 1.43)]
    assert published_ranges.coverage(kind, rows) == published_ranges.Coverage(7, 7, 2, 1)


FAMILIES = {
    "by_fsdp": DATA,
    "by_hsdp": DATA,
    "by_ddp_that_accumulates": DATA,
    "by_tp": TENSOR_OR_PIPELINE,
    "by_tp_and_fsdp": TENSOR_OR_PIPELINE,
    "by_stages": TENSOR_OR_PIPELINE,
    "by_experts": "",
    "by_context_parallelism": "",
    "by_scatter": "",
}


@pytest.mark.parametrize(("name", "family"), FAMILIES.items())
def test_a_program_is_of_the_family_of_its_layout(name, family):
    cloudpickle.register_pickle_by_value(programs)
    world_size = 2 if name == "by_stages" else 4
    run = ws.paper(getattr(programs, name), world_size=world_size, cluster="dgx-h100", echo=False)
    assert run.family == family
    assert sum(run.step_parts_s.values()) == pytest.approx(run.step_s)


@pytest.fixture(scope="module")
def split():
    """A layer of GPT-22B over eight A100, as in Korthikanti et al. 2022."""
    cloudpickle.register_pickle_by_value(gpt_layers)
    (row,) = [row for row in published_ranges.steps() if row["id"] == "kor22_t4_layer_sp"]
    sizes = dataclasses.replace(published_ranges.published_steps._sizes(row), has_ends=False)
    return ws.paper(gpt_layers.micro_batch, 1, sizes, world_size=8, cluster="dgx-a100", echo=False)


def test_layers_without_gradients_in_the_forward_pass_are_known_by_their_recomputation():
    cloudpickle.register_pickle_by_value(gpt_layers)
    (row,) = [row for row in published_ranges.steps() if row["id"] == "kor22_t4_layer_full"]
    sizes = dataclasses.replace(published_ranges.published_steps._sizes(row), has_ends=False)
    run = ws.paper(gpt_layers.micro_batch, 1, sizes, world_size=8, cluster="dgx-a100", echo=False)
    assert run.family == TENSOR_OR_PIPELINE


def test_a_figure_has_the_range_of_its_kind(split):
    step, peak, *of_plans = (one for one in published.ranges() if one.has(TENSOR_OR_PIPELINE, "ampere", 8))
    assert [one.figure for one in (step, peak, *of_plans)] == [STEP, PEAK, BOUND, SERIAL]
    assert split.step_range_s == (step.low * split.step_s, step.high * split.step_s)
    assert split.peak_range_bytes == (peak.low * split.peak_bytes, peak.high * split.peak_bytes)
    assert split.mfu_range_fraction == (split.mfu_fraction / step.high, split.mfu_fraction / step.low)
    assert "; published programs of this kind took 1.00 to 1.45 times as long (50 rows), published peaks" in repr(split)


def test_a_layout_that_nobody_published_has_no_family(split):
    (record,) = split.records
    groups = [group._replace(name="cp 0") for group in record.groups]
    exchanging = [post._replace(op="all_to_all") for post in record.posts]
    assert family_of([dataclasses.replace(record, groups=groups)]) == ""
    assert family_of([dataclasses.replace(record, posts=exchanging)]) == ""


def test_a_sum_of_a_few_numbers_is_not_tensor_parallelism(split):
    (record,) = split.records
    small = [post._replace(size_bytes=4) for post in record.posts]
    assert family_of([dataclasses.replace(record, posts=small)]) == DATA


def test_a_run_says_what_its_step_waits_for(split):
    parts_s = split.step_parts_s
    share = parts_s["compute"] / split.step_s
    assert 0.7 < share < 0.9 and parts_s["exposed communication"] > 0.1 * split.step_s
    assert f" ({share:.0%} compute), MFU " in repr(split)


def test_a_peak_whose_range_is_larger_than_the_gpu_may_not_fit(split):
    of_size = dataclasses.replace(split.cluster.gpu, memory_bytes=int(1.1 * split.peak_bytes))
    small = split.on(dataclasses.replace(split.cluster, gpu=of_size))
    assert small.fits and "which may not fit on" in repr(small) and "which fits on" in repr(split)
    cure = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True. (docs/troubleshooting.md#out-of-memory))"
    assert repr(small).endswith(cure) and "What to do" not in repr(split)


@pytest.mark.parametrize(
    ("kind", "cure"),
    [
        (
            "activations",
            "activation checkpointing (torch.utils.checkpoint, checkpoint_wrapper), a smaller micro-batch, ",
        ),
        ("weights", "shard it with FSDP over more ranks"),
        ("gradients", "shard it with FSDP over more ranks"),
        ("optimizer state", "shard it with FSDP over more ranks"),
        ("temporaries", "compute the loss in chunks or in parallel"),
        ("communication", "gather less at once"),
    ],
)
def test_a_peak_that_does_not_fit_says_what_helps_by_what_holds_most(split, kind, cure):
    of_size = dataclasses.replace(split.cluster.gpu, memory_bytes=int(0.9 * split.peak_bytes))
    (record,) = split.records
    sizes = {name: [100 * split.peak_bytes if name == kind else 1] for name in record.memory.sizes}
    memory = dataclasses.replace(record.memory, operations=[1], sizes=sizes)
    full = dataclasses.replace(split, records=[dataclasses.replace(record, memory=memory)])
    said = repr(full.on(dataclasses.replace(split.cluster, gpu=of_size)))
    assert "which does not fit on" in said and f". What to do: most of the peak is {kind}: {cure}" in said
    assert said.endswith(" (docs/troubleshooting.md#out-of-memory))")


def test_on_a_gpu_without_published_steps_only_the_peak_has_a_range(split):
    run = split.on("dgx-h100")
    assert run.step_range_s is None and run.mfu_range_fraction is None and run.peak_range_bytes
    assert "; no published step like this was compared, published peaks were 0.95 to 1.30 times" in repr(run)


def test_where_nothing_was_compared_a_run_says_so(split):
    volta = split.on(hardware.DGX_1V)
    assert volta.step_range_s is volta.peak_range_bytes is volta.mfu_range_fraction is None
    assert "; nothing like this was compared with published programs" in repr(volta)


def test_a_program_that_mostly_waits_is_like_none():
    assert published.find_range(STEP, DATA, "hopper", 8, 0.15) is not None
    assert published.find_range(STEP, DATA, "hopper", 8, 0.149) is None
    assert published.find_range(STEP, "", "hopper", 8, 0.5) is None


def test_the_nearest_range_is_of_the_same_family_and_about_as_many_gpus():
    assert published.find_range(STEP, TENSOR_OR_PIPELINE, "hopper", 8) is None
    assert published.nearest_range(STEP, TENSOR_OR_PIPELINE, 8).architectures == ("ampere",)
    assert published.nearest_range(STEP, "", 8) == published.nearest_range(STEP, TENSOR_OR_PIPELINE, 8)
    assert published.nearest_range(STEP, DATA, 64).most_gpus == 128
    assert published.nearest_range(STEP, DATA, 100_000).most_gpus == 4096
    with pytest.raises(LookupError, match="no step of a program with the moon was compared"):
        published.nearest_range(STEP, "the moon", 8)


def test_the_narrowest_kind_counts():
    on_a100, on_h100, on_many = (
        published.find_range(STEP, DATA, *program, 0.5)
        for program in [("ampere", 128), ("hopper", 128), ("ampere", 129)]
    )
    assert on_a100.high < on_h100.high < on_many.high
    assert published.find_range(STEP, DATA, "ampere", 4097, 0.5) is None


def test_layers_that_are_not_recorded_have_ranges_too():
    cloudpickle.register_pickle_by_value(large_programs)
    args = (large_programs.fully_sharded, 32, "llama-3-8b", 2, "operators")
    run = ws.paper(*args, world_size=8, cluster="dgx-h100", depths=(1, 2), echo=False)
    low_s, high_s = run.step_range_s
    assert low_s == pytest.approx(1.05 * run.step_s) and high_s == pytest.approx(2.15 * run.step_s)
    assert sum(run.step_parts_s.values()) == pytest.approx(run.step_s)
    assert "(19 rows)" in repr(run) and "% compute)" in repr(run)
