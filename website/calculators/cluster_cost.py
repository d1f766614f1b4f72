r"""What does a cluster of H100s draw and cost, to own or to rent?

A cluster is nodes of 8 GPUs and the network between them. What they draw is the IT load. The facility draws more, for
cooling and conversion losses: facility power divided by IT power is the PUE (power usage effectiveness).

An owner pays for the equipment, written off in equal parts over some years, with interest, for operations (staff, spare
parts and the building), and for electricity, all of it in idle hours too. On demand, a renter pays only for the hours
in use, so which is cheaper depends on utilization, the share of hours in use. Large clusters are usually rented by
contract, and a contract is paid for idle hours too: then utilization does not decide.

The yearly cost is price · (a + operations) + energy · price of electricity. Without interest, a is 1/years; at an
interest rate of i it is i / (1 − (1 + i)^−years). The energy is that of 8,766 hours at full power. Divided by the
GPU-hours in use, this is the cost of an owned hour. Break-even is the utilization at which it equals the on-demand
price.

Try this, each time with all else as at the start:

- Change the utilization from 80% to 50%. An owned hour in use now costs more than one on demand. An hour under
  contract gets dearer by the same factor as an owned one, so owning stays cheaper than this contract.
- Change the utilization to 100%: the cost of an hour, used or not. Owning costs \$1.95, and one-year contracts cost
  \$1.70 in October 2025 and \$2.35 in March 2026: owning is dearer than the first and cheaper than the second. But an
  owner commits for four years, and this renter for one.
- Change the interest from 0 to 10%. Effective rates of CoreWeave's debt were 7 to 15% (its filing for June 2025).
  Break-even moves from 66% to 77%, and interest costs more than twice as much as electricity.
- Change the 4 years to 6 and to 3. Break-even is 51% with 6 years and 81% with 3.
- Change operations from 10% to 5%: break-even moves from 66% to 57%. The 10% is an assumption of
  [week 14](../weeks/week14_capstone.ipynb). The sheet with the price of a node (below) has \$50,000 a node for facility
  and operations over its lifetime. If that is four years, it is 3.4% of the price per year.
- Compare a PUE of 1.1 with one of 1.56. The facility draws 42% more, and electricity rises from 6 to 9% of the cost. A
  supply of 30 MW feeds 19,700 H100s at 1.1, and 13,900 at 1.56. (What the larger supply costs is not shown: the
  building is part of operations here, which depend on the equipment's price alone.)
- Compare 2,048 GPUs with 4,096. The network needs a third level of switches, and costs 56% more per GPU.

Prices, and their dates:

- nodes and switches: \$310,000 for 8 H100s with their NICs, \$36,000 for a switch (FS.com's), both from a public sheet
  of cluster costs, August 2024;
- transceivers: \$1,250 for 800 Gb/s with two ports at a switch, \$700 for 400 Gb/s at a NIC, luxoptx.com, read in 2026;
- electricity: \$0.0806 per kWh, the mean of US industry in 2023 (EIA);
- on demand: \$2.95, the median list price of 37 providers, aimultiple.com, 20 May 2026;
- contracts of one year: SemiAnalysis's survey, quoted by techreaderdaily.com and neighborhoodsf.com.

These dates are up to three years apart, and the contracts' price rose by 38% in five months: get quotations before you
decide anything.

The network is a full fat tree of switches with 64 ports of 400 Gb/s, with a NIC for each GPU and as few levels as reach
them all. Problem 4 of week 14 leaves it out, so break-even is 57% there instead of 66%. Real clusters may save switches
by oversubscribing the top level: [Llama 3's](../docs/clusters.md) did, by 1:7. A DGX H100 has four transceivers with
two ports instead of eight with one, which changes price and power by less than 0.2%.

Nodes (rated 10.2 kW, as a DGX H100) and transceivers count at their maximum power, switches at their typical power, in
every hour. For the cluster this is an upper estimate: in training, a node drew at most 8.4 kW (Latif et al., IEEE
Access, 2025), which would lower the facility's power at the start by 16%. A site must provide more than the cluster
draws: it also has storage, management and a reserve, and PUE is a mean over the year, but the hottest day needs more.

Left out on the owner's side are resale value, storage with its network, management and login nodes, spare nodes, racks,
cables, support contracts, software and taxes; on the renter's, storage, traffic out of the cloud and support.

Llama 3's paper says that when tens of thousands of GPUs wait at once, for a checkpoint or a collective, the power of
the data center can change instantly by tens of megawatts. Compare the power of its 16,384 H100s here. A swing is less
than the whole power, and Meta used different nodes and switches, so the two can agree only in their order of magnitude.
"""

from __future__ import annotations

from typing import NamedTuple

from calculators import charts
from calculators.calculator import Answer, Question
from worldsize.hardware import Equipment, catalogue
from worldsize.hardware.equipment import (
    ELECTRICITY_USD_PER_KWH,
    NODES,
    PLUG_OF_NIC,
    PLUG_OF_SWITCH,
    RENTS,
    SWITCHES,
    Rent,
)
from worldsize.units import HOUR, YEAR, scale, significant

CLUSTER, NODE, SWITCH = catalogue.H100_NDR, NODES[catalogue.H100.name], SWITCHES["quantum-2"]
ON_DEMAND = RENTS[catalogue.H100.name]
CONTRACT = Rent(2.35, "one year, March 2026: SemiAnalysis's survey, quoted by techreaderdaily.com, neighborhoodsf.com")
HOURS_PER_YEAR = YEAR / HOUR
LEAST_PERCENT = 20  # of utilization, on the slider and in the picture
QUESTION = Question(
    "16,384 H100s of 700 W each, in nodes of 8 and with their network, run at their rated power in a building with a "
    "PUE of 1.2. How many megawatts does the building draw?",
    "MW",
    "The GPUs alone are 11.5 MW, 42% of it. 2,048 nodes of 10.2 kW are 20.9 MW, switches and transceivers add 1.8 MW, "
    "and the PUE another fifth: 1.2 · 22.7.",
)
LABELS = {
    "num_gpus": "GPUs",
    "pue": "PUE",
    "usd_per_kwh": "electricity, $/kWh",
    "years": "years of depreciation",
    "interest_percent": "interest, % per year",
    "operations_percent": "operations, % of the price per year",
    "used_percent": "utilization, %",
}
RANGES = {
    "num_gpus": (64, 65536, "x2"),
    "pue": {
        "1.1: Google's mean, 2021": 1.1,
        "1.2: assumption of week 14": 1.2,
        "1.4": 1.4,
        "1.56: mean of a survey, 2024": 1.56,
    },
    "usd_per_kwh": {
        "0.04": 0.04,
        "0.06": 0.06,
        f"{ELECTRICITY_USD_PER_KWH}: mean of US industry, 2023": ELECTRICITY_USD_PER_KWH,
        "0.12": 0.12,
        "0.16": 0.16,
        "0.24": 0.24,
    },
    "years": (3, 6, 1),
    "interest_percent": [0, 5, 8, 10, 12, 15],
    "operations_percent": [0, 5, 10, 15, 20],
    "used_percent": (LEAST_PERCENT, 100, 5),
}


class Item(NamedTuple):
    """Equal pieces of equipment."""

    count: int
    one: Equipment

    @property
    def power_w(self) -> float:
        """Their power."""
        return self.count * self.one.power_w

    @property
    def price_usd(self) -> float:
        """Their price."""
        return self.count * self.one.price_usd


def answer(
    num_gpus: int = 16384,
    pue: float = 1.2,
    usd_per_kwh: float = ELECTRICITY_USD_PER_KWH,
    years: int = 4,
    interest_percent: int = 0,
    operations_percent: int = 10,
    used_percent: int = 80,
) -> Answer:
    """The power, the price, and the cost of an owned GPU-hour next to its rent."""
    items, used = equipment(num_gpus), used_percent / 100
    it_w = sum(item.power_w for item in items.values())
    hourly = dollars(items, num_gpus, pue, usd_per_kwh, years, interest_percent, operations_percent)
    owned_usd = sum(hourly.values())
    break_even = owned_usd / ON_DEMAND.usd_per_hour
    in_use = {name: f"{usd / used:.2f}" for name, usd in hourly.items()}
    totals = [f"{usd:.2f}" for usd in (owned_usd / used, ON_DEMAND.usd_per_hour, CONTRACT.usd_per_hour / used)]
    return Answer(
        f"A facility with {num_gpus:,} H100s and their network draws up to {_power(pue * it_w)}, "
        f"{_energy(pue * it_w)} per year. At {used_percent}% utilization, an H100-hour in use costs ${totals[0]} to "
        f"own, ${totals[1]} on demand and ${totals[2]} under a one-year contract. {_verdict(break_even)}.",
        pue * it_w / 1e6,
        ("item", "number", "power", "price", "$ per GPU-hour in use"),
        [
            *(
                [name, f"{item.count:,}", _power(item.power_w), _price(item.price_usd), in_use[name]]
                for name, item in items.items()
            ),
            ["cooling and losses", "", _power((pue - 1) * it_w), "", ""],
            ["interest", f"{interest_percent}% per year", "", "", in_use["interest"]],
            ["operations", f"{operations_percent}% per year", "", "", in_use["operations"]],
            ["electricity", f"{_energy(pue * it_w)} per year", "", "", in_use["electricity"]],
            ["owned", "", _power(pue * it_w), _price(sum(item.price_usd for item in items.values())), totals[0]],
            ["on demand, May 2026", "", "", "", totals[1]],
            ["one-year contract, March 2026", "", "", "", totals[2]],
        ],
        charts.lines(
            {
                "owned": _over_utilization(owned_usd),
                "on demand": [(percent, ON_DEMAND.usd_per_hour) for percent in (LEAST_PERCENT, 100)],
                "one-year contract": _over_utilization(CONTRACT.usd_per_hour),
            },
            "utilization, %",
            "$ per GPU-hour in use",
            [(used_percent, owned_usd / used)],
            log_x=False,
            log_y=False,
            rules=[("break-even", 100 * break_even)] if LEAST_PERCENT / 100 <= break_even <= 1 else [],
        ),
    )


def equipment(num_gpus: int) -> dict[str, Item]:
    """What is bought: nodes, and the switches and transceivers of their network."""
    num_nodes = num_gpus // CLUSTER.gpus_per_node
    num_nics = num_nodes * CLUSTER.nics_per_node
    num_switches = sum(levels(num_nics, SWITCH.num_ports))
    return {
        "nodes": Item(num_nodes, NODE),
        "switches": Item(num_switches, SWITCH),
        "switch transceivers": Item(num_switches * SWITCH.num_ports // 2, PLUG_OF_SWITCH),
        "NIC transceivers": Item(num_nics, PLUG_OF_NIC),
    }


def levels(num_nics: int, num_ports: int) -> list[int]:
    """The switches of each level of a full fat tree, from the leaves up, with as few levels as reach all NICs."""
    half, num_lower = num_ports // 2, 0
    while num_ports * half**num_lower < num_nics:
        num_lower += 1
    return [-(-num_nics // half)] * num_lower + [-(-num_nics // num_ports)]


def dollars(
    items: dict[str, Item],
    num_gpus: int,
    pue: float,
    usd_per_kwh: float,
    years: int,
    interest_percent: float,
    operations_percent: float,
) -> dict[str, float]:
    """The dollars of an owned GPU-hour by part, at full utilization."""
    prices_usd = {name: item.price_usd / (num_gpus * HOURS_PER_YEAR) for name, item in items.items()}
    price_usd = sum(prices_usd.values())
    return {
        **{name: usd / years for name, usd in prices_usd.items()},
        "interest": price_usd * (annuity(years, interest_percent) - 1 / years),
        "operations": price_usd * operations_percent / 100,
        "electricity": pue * sum(item.power_w for item in items.values()) / 1000 * usd_per_kwh / num_gpus,
    }


def annuity(years: int, interest_percent: float) -> float:
    """The fraction of a price that is due each year if equal payments cover the price and the interest."""
    rate = interest_percent / 100
    return rate / (1 - (1 + rate) ** -years) if rate else 1 / years


def _over_utilization(usd: float) -> list[tuple[float, float]]:
    """The cost of an hour in use at each utilization, if idle hours cost as much."""
    return [(percent, 100 * usd / percent) for percent in range(LEAST_PERCENT, 101, 2)]


def _verdict(break_even: float) -> str:
    if break_even > 1:
        return "Renting on demand is cheaper at any utilization"
    return f"Owning and renting on demand cost the same at a utilization of about {break_even:.0%}"


def _power(power_w: float) -> str:
    factor, unit = scale(power_w, [(1, "W"), (1e3, "kW"), (1e6, "MW")])
    return f"{significant(power_w / factor)} {unit}"


def _energy(power_w: float) -> str:
    """The energy of a year at this power."""
    kwh = power_w / 1e3 * HOURS_PER_YEAR
    factor, unit = scale(kwh, [(1, "kWh"), (1e3, "MWh"), (1e6, "GWh")])
    return f"{significant(kwh / factor)} {unit}"


def _price(usd: float) -> str:
    return f"${usd:,.0f}" if usd < 1e6 else f"${significant(usd / 1e6)} million"
