"""The page of a cluster's cost: what its text claims, the library's bill, week 14's exercise, and what is published."""

import sys

import pytest
from repository import ROOT

sys.path.insert(0, str(ROOT / "website"))

from calculators import calculator, cluster_cost

from worldsize import capstone, hardware
from worldsize.capstone import bill
from worldsize.units import DAY, YEAR

DESIGNS = ROOT / "worldsize/capstone/designs"
TEN = capstone.load(DESIGNS / "ten_thousand_h100.toml")
ON_DEMAND_USD, CONTRACT_USD = 2.95, 2.35


def hourly(num_gpus=16384, pue=1.2, usd_per_kwh=0.0806, years=4, interest_percent=0, operations_percent=10, items=None):
    """The dollars of an H100-hour by part, at full utilization."""
    items = items or cluster_cost.equipment(num_gpus)
    return cluster_cost.dollars(items, num_gpus, pue, usd_per_kwh, years, interest_percent, operations_percent)


def owned_usd(**chosen):
    return sum(hourly(**chosen).values())


def table(**chosen):
    return {row[0]: row[1:] for row in cluster_cost.answer(**chosen).rows}


def it_w(num_gpus=16384):
    return sum(item.power_w for item in cluster_cost.equipment(num_gpus).values())


def network_usd(num_gpus):
    items = cluster_cost.equipment(num_gpus)
    return sum(item.price_usd for name, item in items.items() if name != "nodes") / num_gpus


def claims(*claimed):
    """Whether the page's text has all of this, in any line breaks."""
    text = " ".join(calculator.text("cluster_cost").replace("\\", "").split())
    return [claim for claim in claimed if claim not in text] == []


# what others published


@pytest.mark.parametrize(
    ("num_gpus", "counts"),
    [
        (512, [16, 8]),
        (1024, [32, 16]),
        (2048, [64, 32]),
        (4096, [128, 128, 64]),
        (8192, [256, 256, 128]),
        (16384, [512, 512, 256]),
    ],
)
def test_switches_are_those_of_nvidias_superpod(num_gpus, counts):
    """DGX SuperPOD reference architecture, B200 (2025): leaf, spine and core switches of 2 to 64 scalable units."""
    assert cluster_cost.levels(num_gpus, 64) == counts
    assert cluster_cost.equipment(num_gpus)["switches"].count == sum(counts)


@pytest.mark.parametrize(
    ("num_gpus", "nodes_usd", "switches_usd", "connectors_usd"),
    [(1024, 39_680_000, 1_728_000, 2_621_440), (2048, 79_360_000, 3_456_000, 5_242_880)],
)
def test_two_levels_cost_what_a_public_sheet_has(num_gpus, nodes_usd, switches_usd, connectors_usd):
    """The sheet linked from "H100 Freakonomics" (substack.tech-talk-cto.com), August 2024: 128 and 256 nodes.

    The page's prices of a node and a switch are its own, those of transceivers are not; its connectors include cables.
    From 512 nodes on it has two levels of switches, where 64 ports need three.
    """
    items = cluster_cost.equipment(num_gpus)
    assert items["nodes"].price_usd == nodes_usd and items["switches"].price_usd == switches_usd
    transceivers_usd = items["switch transceivers"].price_usd + items["NIC transceivers"].price_usd
    assert transceivers_usd == pytest.approx(connectors_usd, rel=0.02)


def test_a_node_in_training_drew_less_than_its_rating():
    """Latif et al., IEEE Access 13 (2025), 61740: about 8.4 kW at most, 18% below the rated 10.2 kW."""
    nodes = cluster_cost.equipment(16384)["nodes"]
    assert nodes.one.power_w == 10_200 and 1 - 8_400 / nodes.one.power_w == pytest.approx(0.18, abs=0.005)
    assert nodes.count * (10_200 - 8_400) / it_w() == pytest.approx(0.16, abs=0.005)
    assert claims("at most 8.4 kW", "(rated 10.2 kW", "by 16%")


@pytest.mark.parametrize(
    ("years", "interest_percent", "factor"), [(4, 10, 0.31547), (5, 8, 0.25046), (3, 12, 0.41635), (4, 0, 0.25)]
)
def test_a_year_is_due_as_in_tables_of_capital_recovery_factors(years, interest_percent, factor):
    assert cluster_cost.annuity(years, interest_percent) == pytest.approx(factor, abs=1e-5)


def test_llamas_gpus_draw_tens_of_megawatts():
    """Llama team 2024, section 3.3.4: fluctuations on the order of tens of megawatts."""
    assert 10 <= cluster_cost.answer().value < 100


def test_the_contract_is_that_of_the_survey():
    """SemiAnalysis, 2 April 2026, as quoted: 1.70 dollars in October 2025, 38% less than 2.35 in March 2026."""
    assert cluster_cost.CONTRACT.usd_per_hour == CONTRACT_USD and round(100 * (CONTRACT_USD / 1.70 - 1)) == 38
    assert claims("$1.70 in October 2025 and $2.35 in March 2026", "rose by 38%")
    assert "on demand" in cluster_cost.ON_DEMAND.source and cluster_cost.ON_DEMAND.usd_per_hour == ON_DEMAND_USD


# the course's own numbers


def test_the_library_bills_ten_thousand_gpus_alike():
    items, power_w, price_usd = cluster_cost.equipment(10_240), bill.power_w(TEN), bill.equipment_usd(TEN)
    for part, names in {
        "nodes": ["nodes"],
        "switches": ["switches"],
        "plugs": ["switch transceivers", "NIC transceivers"],
    }.items():
        assert sum(items[name].power_w for name in names) == power_w[part]
        assert sum(items[name].price_usd for name in names) == price_usd[part]
    assert cluster_cost.answer(num_gpus=10_240).value == pytest.approx(sum(power_w.values()) / 1e6)
    without_store = capstone.changed(TEN, prices__storage_usd=0)
    a_year = bill.owned_usd(without_store, YEAR / DAY)
    of_a_year = {name: usd * 10_240 * cluster_cost.HOURS_PER_YEAR for name, usd in hourly(10_240).items()}
    assert sum(of_a_year[name] for name in items) == pytest.approx(a_year["equipment"])
    assert of_a_year["operations"] == pytest.approx(a_year["operation"])
    assert of_a_year["electricity"] == pytest.approx(a_year["electricity"])
    assert of_a_year["interest"] == 0


def test_ten_thousand_gpus_draw_what_the_numbers_to_remember_say():
    """17 MW, and 19 GWh in 46 days: docs/numbers.md."""
    megawatts = cluster_cost.answer(num_gpus=10_240).value
    assert round(megawatts) == 17 and round(megawatts * 46 * 24 / 1000) == 19


def test_break_even_without_the_network_is_that_of_week_14s_exercise():
    nodes = {"nodes": cluster_cost.equipment(16384)["nodes"]}
    usd = sum(cluster_cost.dollars(nodes, 16384, 1.2, cluster_cost.ELECTRICITY_USD_PER_KWH, 4, 0, 10).values())
    said = f"break-even is {usd / cluster_cost.ON_DEMAND.usd_per_hour:.0%} there instead of 66%"
    assert said in " ".join(calculator.text("cluster_cost").split())


def test_a_node_costs_what_week_14s_exercise_answers():
    """1.67 dollars an hour, 57% of the rent, without network and storage: weeks/week14_capstone.py, problem 4."""
    usd = owned_usd(num_gpus=8, items={"nodes": cluster_cost.Item(1, hardware.NODES[hardware.H100.name])})
    assert round(usd, 2) == 1.67 and round(100 * usd / ON_DEMAND_USD) == 57
    assert 1.67 < owned_usd(num_gpus=64) < owned_usd(), "with a network it is more"


@pytest.mark.parametrize(("num_nics", "counts"), [(64, [1]), (128, [4, 2]), (10_240, [320, 320, 160])])
def test_a_full_fat_tree_has_as_few_levels_as_reach_all(num_nics, counts):
    assert cluster_cost.levels(num_nics, 64) == counts


def test_three_levels_are_full_where_the_slider_ends():
    largest = cluster_cost.RANGES["num_gpus"][1]
    assert cluster_cost.levels(largest, 64) == [2048, 2048, 1024]
    assert len(cluster_cost.levels(largest + 1, 64)) == 4


@pytest.mark.parametrize(("num_spine", "is_enough"), [(32, True), (31, False)])
def test_two_levels_of_these_counts_add_up_as_a_design(num_spine, is_enough):
    leaf, spine = cluster_cost.levels(2048, 64)
    assert (leaf, spine) == (64, 32)
    levels = [
        {"name": "leaf", "num_switches": leaf, "num_down": 32, "num_up": 32, "num_nodes": 32},
        {"name": "spine", "num_switches": num_spine, "num_down": 64, "num_up": 0},
    ]
    small = capstone.changed(
        TEN,
        nodes={**TEN.model_dump()["nodes"], "num_nodes": 250, "num_spares": 6},
        plan__dp=25,
        network__levels=levels,
        network__bisection_bytes_per_s=0.9 * 2048 / 2 * 48e9,
        budget={"days": 1000, "usd": 1e9, "pays": "own"},
    )
    assert (not [problem for problem in capstone.check(small) if "network" in str(problem)]) == is_enough


def test_switches_have_the_rate_of_the_nics():
    assert cluster_cost.SWITCH.port_bytes_per_s == cluster_cost.CLUSTER.inter.peak_bytes_per_s == 400e9 / 8


# what the text says


def test_prices_in_the_text_are_the_librarys():
    node, switch, at_switch, at_nic = (item.one.price_usd for item in cluster_cost.equipment(16384).values())
    assert claims(f"${node:,} for 8 H100s", f"${switch:,} for a switch")
    assert claims(f"${at_switch:,} for 800 Gb/s", f"${at_nic:,} for 400 Gb/s")
    assert claims(f"${hardware.ELECTRICITY_USD_PER_KWH} per kWh", f"on demand: ${ON_DEMAND_USD}")


def test_the_answer_to_the_question_is_explained_and_not_given_away():
    why = cluster_cost.QUESTION.why
    items, gpus_w = cluster_cost.equipment(16384), 16384 * hardware.H100.power_w
    site_w = 1e6 * cluster_cost.answer().value
    assert f"{gpus_w / 1e6:.1f} MW, {gpus_w / site_w:.0%} of it" in why
    assert f"are {items['nodes'].power_w / 1e6:.1f} MW" in why
    assert f"add {(it_w() - items['nodes'].power_w) / 1e6:.1f} MW" in why and f"1.2 · {it_w() / 1e6:.1f}." in why
    assert not claims("27 MW") and not claims("27.2")


def test_low_utilization_makes_owning_dearer_than_on_demand_but_not_than_a_contract():
    for percent, owned in ((80, 2.43), (50, 3.89), (100, 1.95)):
        rows = table(used_percent=percent)
        assert float(rows["owned"][-1]) == owned == round(owned_usd() * 100 / percent, 2)
        assert float(rows["on demand, May 2026"][-1]) == ON_DEMAND_USD
        contract = float(rows["one-year contract, March 2026"][-1])
        assert contract == round(CONTRACT_USD * 100 / percent, 2) > owned
        assert (owned > ON_DEMAND_USD) == (percent == 50)
    assert 1.70 < owned_usd() < CONTRACT_USD and claims("Owning costs $1.95")


@pytest.mark.parametrize(
    ("changed", "percent"),
    [
        ({}, 66),
        ({"used_percent": 50}, 66),
        ({"interest_percent": 10}, 77),
        ({"years": 6}, 51),
        ({"years": 3}, 81),
        ({"operations_percent": 5}, 57),
    ],
)
def test_break_even_moves_as_the_text_says(changed, percent):
    assert cluster_cost.answer(**changed).sentence.endswith(f"the same at a utilization of about {percent}%.")
    assert claims(f"{percent}%")


def test_there_is_no_break_even_where_owning_costs_more_at_any_utilization():
    dear = cluster_cost.answer(operations_percent=20, years=3, usd_per_kwh=0.24)
    assert dear.sentence.endswith("Renting on demand is cheaper at any utilization.")
    assert len(dear.chart["layer"]) < len(cluster_cost.answer().chart["layer"]), "no line at break-even"


def test_interest_costs_more_than_twice_the_electricity():
    parts = hourly(interest_percent=10)
    assert parts["interest"] == pytest.approx(0.34, abs=0.005) and parts["interest"] > 2 * parts["electricity"]
    assert sum(parts.values()) - owned_usd() == pytest.approx(parts["interest"])


def test_the_sheets_operations_are_a_third_of_the_assumption():
    """The sheet has 102.4 million dollars for facility and operations of 2,048 nodes."""
    items = cluster_cost.equipment(16384)
    percent = 100 * 102.4e6 / 4 / sum(item.price_usd for item in items.values())
    assert percent == pytest.approx(3.4, abs=0.05) and 102.4e6 / 2048 == 50_000
    assert claims("$50,000 a node", "it is 3.4% of the price per year")


def test_pue_changes_the_power_and_little_of_the_cost():
    good, poor = hourly(pue=1.1), hourly(pue=1.56)
    assert cluster_cost.answer(pue=1.56).value / cluster_cost.answer(pue=1.1).value == pytest.approx(1.42, abs=0.005)
    assert [round(100 * one["electricity"] / sum(one.values())) for one in (good, poor)] == [6, 9]
    fed = [round(30e6 / (pue * it_w() / 16384), -2) for pue in (1.1, 1.56)]
    assert fed == [19_700, 13_900] and claims("30 MW feeds 19,700 H100s at 1.1, and 13,900 at 1.56")


def test_a_third_level_of_switches_costs_more():
    assert network_usd(4096) / network_usd(2048) == pytest.approx(1.56, abs=0.005) and claims("56% more per GPU")


def test_transceivers_of_a_dgx_change_little():
    """A DGX H100 has four OSFP cages for its eight NICs: NVIDIA's BasePOD reference architecture."""
    two_ports, one_port = hardware.PLUG_OF_SWITCH, hardware.PLUG_OF_NIC
    price_usd = sum(item.price_usd for item in cluster_cost.equipment(16384).values())
    assert 0 < 2048 * (8 * one_port.price_usd - 4 * two_ports.price_usd) / price_usd < 0.002
    assert 0 < 2048 * (8 * one_port.power_w - 4 * two_ports.power_w) / it_w() < 0.002


# what the page shows


@pytest.mark.parametrize("used_percent", [20, 65, 80])
def test_the_picture_has_each_way_to_pay_and_the_readers_utilization(used_percent):
    found = cluster_cost.answer(used_percent=used_percent)
    lines, mine, at_break_even, _ = found.chart["layer"]
    costs = {(one["line"], one["x"]): one["y"] for one in lines["data"]["values"]}
    assert costs["owned", 100] == pytest.approx(owned_usd())
    assert costs["owned", 50] / costs["owned", 100] == costs["one-year contract", 50] / CONTRACT_USD == 2
    assert costs["on demand", 20] == costs["on demand", 100] == ON_DEMAND_USD
    (point,) = mine["data"]["values"]
    assert point["x"] == used_percent and f"costs ${point['y']:.2f} to own" in found.sentence
    (rule,) = at_break_even["data"]["values"]
    assert 100 * owned_usd() / rule["x"] == pytest.approx(ON_DEMAND_USD)


@pytest.mark.parametrize("interest_percent", [0, 10])
def test_parts_of_the_table_add_up(interest_percent):
    rows = table(used_percent=70, interest_percent=interest_percent)
    parts = hourly(interest_percent=interest_percent)
    assert {name: row[-1] for name, row in rows.items() if name in parts} == {
        name: f"{usd / 0.7:.2f}" for name, usd in parts.items()
    }
    assert rows["owned"][-1] == f"{sum(parts.values()) / 0.7:.2f}"
    items = cluster_cost.equipment(16384)
    assert [rows[name][0] for name in items] == ["2,048", "1,280", "40,960", "16,384"]
    assert float(rows["owned"][1].removesuffix(" MW")) == round(1.2 * it_w() / 1e6, 1)
    assert rows["cooling and losses"][1] == f"{0.2 * it_w() / 1e6:.2f} MW"
    assert rows["owned"][2] == f"${sum(item.price_usd for item in items.values()) / 1e6:.0f} million"


def test_units_suit_a_small_cluster():
    rows = table(num_gpus=64)
    assert rows["switches"][:3] == ["1", "747 W", "$36,000"]
    assert rows["nodes"][:3] == ["8", "81.6 kW", "$2.48 million"]
    assert rows["electricity"][0] == "878 MWh per year"
    assert "draws up to 100 kW, 878 MWh per year" in cluster_cost.answer(num_gpus=64).sentence


def test_the_page_starts_at_its_defaults():
    started = {control.name: control.value for control in calculator.controls("cluster_cost")}
    assert cluster_cost.answer(**started) == cluster_cost.answer()
    assert started["usd_per_kwh"] == hardware.ELECTRICITY_USD_PER_KWH and started["pue"] == TEN.site.pue
    assert started["operations_percent"] == 100 * TEN.prices.operation_fraction
