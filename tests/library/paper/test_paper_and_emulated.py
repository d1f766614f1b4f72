"""The same program on paper and with real data on the emulated cluster: the same bytes, memory and time."""

import pytest

import worldsize as ws
from tests.library.paper import programs

N = 4
PIPELINES = [
    programs.by_stages,
    programs.by_stages_of_gpipe,
    programs.by_interleaved_stages,
    programs.by_zero_bubble,
    programs.by_zero_bubble_in_a_v,
    programs.by_dual_pipe,
]
NUM_RANKS = dict.fromkeys(PIPELINES, 2)
CLUSTER = "dgx-h100"
MESHES_BYTES = 256  # the lists of ranks of meshes, which the emulated run counts, and on paper are the host's
PROGRAMS = [
    *PIPELINES,
    programs.by_autocast,
    programs.by_compiled_layers,
    programs.by_context_parallelism,
    programs.by_converted_parameters,
    programs.by_ddp,
    programs.by_ddp_that_accumulates,
    programs.by_empty_parameters,
    programs.by_experts,
    programs.by_fsdp,
    programs.by_functional_collectives,
    programs.by_hand_over,
    programs.by_hsdp,
    programs.by_kept_gradients,
    programs.by_loaded_batches,
    programs.by_monitored_barriers,
    programs.by_recomputing_fsdp,
    programs.by_resharding_to_pairs,
    programs.by_scaled_losses,
    programs.by_scatter,
    programs.by_selective_checkpointing,
    programs.by_static_graph,
    programs.by_tagged_messages,
    programs.by_tp,
    programs.by_tp_and_fsdp,
]
# a few tensors live a little longer on paper than with data, or less long, or count as another kind; the bytes on the
# wire are the same
MEMORY_DIFFERS = [programs.by_context_parallelism, programs.by_ddp_that_accumulates, programs.by_tp_and_fsdp]

TIME_DIFFERS = {programs.by_static_graph: 0.006}  # by the start of a call, in the first backward alone


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_is_the_same_on_paper_and_with_data(program):
    num_ranks = NUM_RANKS.get(program, N)
    real = ws.run(program, world_size=num_ranks, cluster=CLUSTER, memory=True, echo=False)
    paper = ws.paper(program, world_size=num_ranks, cluster=CLUSTER, echo=False)
    for rank in (one.rank for one in paper.records):
        assert paper.timeline.bytes_sent(rank) == real.timeline.bytes_sent(rank)
        assert paper.timeline.bytes_sent_by_axis(rank) == real.timeline.bytes_sent_by_axis(rank)
        assert calls(paper.timeline, rank) == calls(real.timeline, rank)
    for one, use in zip(paper.records, paper.memory, strict=True):
        if program in MEMORY_DIFFERS:
            assert use.most_bytes == pytest.approx(real.memory[one.rank].most_bytes, rel=0.05)
            continue
        with_data = real.memory[one.rank]
        assert {**use.peak, "temporaries": 0} == {**with_data.peak, "temporaries": 0}
        assert {**use.held, "temporaries": 0} == {**with_data.held, "temporaries": 0}
        assert 0 <= with_data.most_bytes - use.most_bytes <= MESHES_BYTES
    assert paper.timeline.end_s == pytest.approx(real.timeline.end_s, rel=TIME_DIFFERS.get(program, 0.001))


def calls(timeline, rank):
    """The communication of a rank in the order in which it starts."""
    return [(e.name, e.size_bytes, e.peers) for e in timeline.of(rank) if e.kind == "communication"]
