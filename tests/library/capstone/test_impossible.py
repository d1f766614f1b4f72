"""Every kind of impossibility is refused with the sentence that says why; what was built is not refused."""

import ast
import inspect

import pytest

from autograder.capstone.step_times import cost_of
from worldsize import capstone
from worldsize.capstone import impossible
from worldsize.units import GB, TB

GOOD = capstone.example("ten_thousand_h100")
LEAF, SPINE, CORE = GOOD.model_dump(exclude_none=True)["network"]["levels"]
MIXTRAL = {"model__shape": "mixtral-8x7b", "model__num_layers": 40, "data__length": 8192}

IMPOSSIBLE = {
    "not_all_gpus": (
        {"plan__dp": 100, "data__global_batch": 2000},
        "dp 100 x tp 8 x pp 10 x cp 1 are 8,000 ranks, and 1,250 nodes have 10,000 GPUs",
    ),
    "tp_leaves_its_node": (
        {"plan__tp": 16, "nodes__num_nodes": 1250, "plan__pp": 5, "plan__num_chunks": 8, "model__num_kv_heads": 16},
        "plan.tp: 16 does not divide the 8 GPUs of a node",
    ),
    "tp_cuts_heads": ({"model__num_kv_heads": 4}, "8 does not divide 128 heads and 4 key/value heads"),
    "stages_are_unequal": ({"model__num_layers": 119}, "119 layers, or 121 with the embedding and the head, cannot be"),
    "batch_is_not_cut": (
        {"data__global_batch": 2600},
        "2,600 sequences cannot be cut into micro-batches of 1 on each of 125 replicas; it must be a multiple of 125",
    ),
    "sequence_is_not_cut": ({"data__length": 8191}, "8,191 tokens cannot be cut by tp 8"),
    "experts_are_not_shared": (
        {**MIXTRAL, "plan__ep": 8},
        "8 must divide the 8 experts of a layer and the dp x cp = 125 ranks",
    ),
    "nothing_to_shard": (
        {"plan__dp": 1, "nodes__num_nodes": 10, "data__global_batch": 20},
        "ZeRO-1 shards over dp x cp ranks, and there is 1",
    ),
    "schedule_is_another": (
        {"software__schedule": "1f1b"},
        '"1f1b" cannot run pp 10 with 4 chunks a stage; that takes "interleaved"',
    ),
    "rounds_are_not_whole": (
        {"data__global_batch": 2375},
        "rounds of pp 10, and a replica has 19; data.global_batch must be a multiple of dp x micro_batch x pp = 1,250",
    ),
    "gpu_lacks_precision": (
        {"nodes__cluster": "dgx-1v", "nodes__num_nodes": 1, "network": None}
        | {"plan__dp": 1, "plan__pp": 1, "plan__num_chunks": 1, "plan__zero_stage": 0, "software__schedule": "none"},
        "the V100 SXM2 32 GB computes in float64, float32, float16, not in bfloat16",
    ),
    "states_do_not_fit": (
        {"plan__zero_stage": 0},
        "optimizer state 60.5 GB on a GPU are more than its 80.0 GB, before any activation",
    ),
    "activations_do_not_fit": ({"plan__recompute": "none"}, "of a GPU's 80.0 GB, and activations take"),
    "host_holds_no_copy": (
        {"plan__dp": 1, "plan__zero_stage": 0, "plan__pp": 2, "nodes__num_nodes": 2, "data__global_batch": 20},
        "a node's share of a save, 2.71 TB, does not fit in its host's 2.00 TB",
    ),
    "sequence_is_too_long": ({"data__length": 16384}, "sequences of 16,384 tokens are longer than the model's context"),
    "batch_is_larger_than_any": (
        {"data__global_batch": 12_500},
        "a step of 102M tokens; the largest that we know of has 62.9M (DeepSeek-V3",
    ),
    "steps_are_too_few": (
        {"data__num_tokens": 2e10},
        "data.num_tokens: they are 977 steps; in Llama 2's training, the learning rate alone rose for 2,000",
    ),
    "nics_are_faster_than_their_bus": (
        {"nodes__nic_bytes_per_s": 5e12},
        "8 NICs of a node carry 40.0 TB/s, and its 8 GPUs reach them over PCIe 5 x16 to the host, 504 GB/s in all",
    ),
    "nics_are_faster_than_ports": (
        {"nodes__nic_bytes_per_s": 60e9},
        "a NIC of 60.0 GB/s is faster than a port of a Quantum-2 QM9700, 50.0 GB/s",
    ),
    "switches_are_of_another_network": (
        {"nodes__cluster": "h100-roce"},
        "the ports of a Quantum-2 QM9700 are InfiniBand, and the NICs of h100-roce are RoCE 400 Gb/s",
    ),
    "spines_reach_too_few_leaves": (
        {
            "network__levels": [
                {**LEAF, "num_switches": 3200},
                {"name": "spine", "num_switches": 1600, "num_down": 64, "num_up": 0},
            ],
            **{"nodes__num_nodes": 12_500, "nodes__num_spares": 300, "plan__dp": 1250, "site__power_w": 2e8},
        },
        "400 leaf switches a rail are below each spine, which has 64 ports down: it cannot reach them all",
    ),
    "tokens_are_too_few": ({"data__dataset_tokens": 1e12}, "8.0 epochs over data.dataset_tokens"),
    "identifiers_do_not_fit": (
        {"data__bytes_per_token": 2},
        "2 bytes have 65,536 values, and the vocabulary has 128,256",
    ),
    "switch_has_too_few_ports": (
        {"network__levels": [LEAF, {**SPINE, "num_up": 40}, CORE]},
        "a spine has 32 ports down and 40 up, and a Quantum-2 QM9700 has 64 in all",
    ),
    "leaves_have_too_few_ports": (
        {"nodes__num_spares": 40},
        "320 leaf switches have 10,240 ports down, and 1,290 nodes, spares among them, have 10,320 NICs",
    ),
    "leaf_has_too_many_nodes": (
        {"network__levels": [{**LEAF, "num_nodes": 64}, SPINE, CORE]},
        "a leaf has 32 ports down, and the NICs of 64 nodes below it, 1 of each",
    ),
    "cables_lead_nowhere": (
        {"network__levels": [LEAF, SPINE, {**CORE, "num_switches": 150}]},
        "spine switches have 10,240 ports up in all, and core switches 9,600 ports down",
    ),
    "top_joins_too_few": (
        {"network__levels": [LEAF, SPINE, {**CORE, "num_nodes": 1024}]},
        "the highest switches, core, join 1,024 nodes, and there are 1,280",
    ),
    "bisection_is_less": (
        {"network__levels": [LEAF, {**SPINE, "num_up": 16}, {**CORE, "num_switches": 80}]},
        "240 TB/s are said to pass between two halves of the network; its 2,560 cables between them carry 123 TB/s",
    ),
    "store_is_too_small": (
        {"storage__capacity_bytes": 100 * TB},
        "10 saves of 5.41 TB and 60.0 TB of tokens do not fit in 100 TB",
    ),
    "saves_overtake_each_other": (
        {"storage__write_bytes_per_s": 5 * GB},
        "a save takes 18.0 min to write at the rates of storage, and the next one begins after 15.0 min",
    ),
    "tokens_come_too_slowly": ({"storage__read_bytes_per_s": 4e6}, "4.12 MB/s of tokens must be read"),
    "rates_are_unknown": ({"failures__rates": "Llama 4"}, "no failures are known from 'Llama 4'; choose one of"),
    "spares_are_too_few": (
        {"nodes__num_spares": 2},
        "4.74 nodes are away for repair at a time, in the mean, and 2 stand by",
    ),
    "failures_come_before_saves": (
        {"checkpoint__every_s": 30_000},
        "a node fails every 5.07 h, in the mean, and a save comes only after 8.33 h of training",
    ),
    "failures_come_before_the_start": ({"failures__restart_s": 20_000}, "to start again and to load takes 5.56 h"),
    "node_is_unknown": (
        {"nodes__cluster": "h200-ndr"},
        "a node with H200 SXM are not known; give nodes.power_w and prices.node_usd, or take one of A100",
    ),
    "site_has_too_little_power": (
        {"site__power_w": 16e6},
        "17.02 MW at most, with a PUE of 1.2, and the site gives 16.00 MW",
    ),
    "rack_has_too_little_power": (
        {"site__nodes_per_rack": 5},
        "5 x DGX H100 draw 51.0 kW, and a rack gives 45 kW",
    ),
}


def said_of(change, sentence):
    """The whole sentence that refuses the good design with this change."""
    (said,) = [said for said in capstone.check(capstone.changed(GOOD, **change)) if sentence in said]
    return said


@pytest.mark.parametrize("kind", IMPOSSIBLE)
def test_an_impossible_design_is_refused_with_the_sentence_that_says_why(kind):
    change, sentence = IMPOSSIBLE[kind]
    said = said_of(change, sentence)
    assert said.endswith(".")
    assert not [said for said in capstone.check(GOOD) if sentence in said]


def test_every_sentence_is_tried():
    written = [node for node in ast.walk(ast.parse(inspect.getsource(impossible))) if isinstance(node, ast.Yield)]
    assert len(written) == len(IMPOSSIBLE) >= 20


def test_a_network_of_one_level_is_asked_like_any_other():
    alone = {**LEAF, "num_down": 64, "num_up": 0}
    (said,) = capstone.check(capstone.changed(GOOD, network__levels=[alone]))
    assert "the highest switches, leaf, join 32 nodes, and there are 1,280" in said
    said, _ = capstone.check(capstone.changed(GOOD, network__levels=[LEAF]))
    assert said == "network.levels: leaf has 32 ports up, but there are no switches above it."


def test_too_few_spares_are_refused_unless_a_policy_decides():
    design = capstone.changed(GOOD, **IMPOSSIBLE["spares_are_too_few"][0])
    named = design.model_copy(update={"programs": {"file": "step.py"}})  # a file may have a cost alone
    assert [said for said in capstone.check(named) if "nodes.num_spares" in said]
    assert capstone.check(named, policy=lambda _: 3600.0) == []


@pytest.mark.parametrize("path", sorted(capstone.EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_what_was_built_is_not_refused(path):
    design = capstone.load(path)
    assert capstone.check(design) == []
    assert capstone.check(design, cost_of(design)) == []


def test_a_sentence_begins_with_the_keys_to_change():
    whole = GOOD.model_dump()
    for change, sentence in IMPOSSIBLE.values():
        said = said_of(change, sentence)
        section, _, key = said.partition(":")[0].partition(".")
        assert section in whole and (not key or key in whole[section])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"budget__days": 20}, "budget.days: it takes 23.6 days even without a failure, with its products at the H100"),
        (
            {"budget__usd": 1e6},
            "in bfloat16 cost 11.7 million dollars",
        ),
    ],
)
def test_a_budget_is_refused_that_no_program_keeps(change, sentence):
    (said,) = capstone.check(capstone.changed(GOOD, **change))
    assert sentence in said


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"budget__days": 44}, "budget.days: it takes 45.2 days with saves and failures; the budget has 44."),
        ({"budget__usd": 20e6}, "for its share of the equipment, operation and electricity; the budget has 20.0."),
        ({"budget__usd": 30e6, "budget__pays": "rent"}, "cost 32.7 million dollars for rented GPUs"),
    ],
)
def test_a_budget_is_refused_that_the_cost_exceeds(change, sentence):
    design = capstone.changed(GOOD, **change)
    assert capstone.check(design) == []
    (said,) = capstone.check(design, cost_of(design))
    assert sentence in said


def test_rent_that_nobody_knows_is_asked_for():
    design = capstone.changed(GOOD, nodes__cluster="b200-ndr", site__power_w=30e6, site__rack_power_w=60e3)
    assert capstone.check(design) == []
    (said,) = capstone.check(capstone.changed(design, budget__pays="rent"))
    assert said == "prices.usd_per_gpu_hour: the rent of a B200 SXM is not known; give it here."
    paid = capstone.changed(design, budget__pays="rent", prices__usd_per_gpu_hour=4)
    assert capstone.check(paid) == []


def test_a_node_of_ones_own_needs_its_power_and_price():
    known = capstone.changed(
        GOOD, nodes__cluster="h200-ndr", nodes__power_w=10_200, prices__node_usd=400_000, budget__usd=7e7
    )
    assert capstone.check(known) == []
    assert capstone.bill.node(known).power_w == 10_200 and capstone.bill.node(known).price_usd == 400_000
    dearer = capstone.changed(GOOD, nodes__power_w=12_000)
    assert capstone.bill.node(dearer).power_w == 12_000
    assert capstone.bill.node(dearer).price_usd == capstone.bill.node(GOOD).price_usd
