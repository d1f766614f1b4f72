"""The power and price of a design: its nodes, switches and plugs, counted and added up.

Left out: power of the store and of the nodes that serve it, cables, software, interest, and taxes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from worldsize import hardware
from worldsize.capstone.design import Design
from worldsize.hardware import Equipment
from worldsize.units import DAY, HOUR, YEAR


def node(design: Design) -> Equipment:
    """Return the node as it is sold, with the design's own power and price where it gives them.

    Raises:
        ValueError: the catalogue has none with this GPU, and the design does not say what is missing.
    """
    gpu, power_w, price_usd = design.cluster.gpu.name, design.nodes.power_w, design.prices.node_usd
    known = hardware.NODES.get(gpu)
    if known is None:
        if power_w is None or price_usd is None:
            raise ValueError(
                f"nodes.cluster: power and price of a node with {gpu} are not known; give nodes.power_w and "
                f"prices.node_usd, or take one of {', '.join(hardware.NODES)}"
            )
        return Equipment(f"node with {gpu}", power_w, price_usd, "the design (2026)")
    return replace(known, power_w=power_w or known.power_w, price_usd=price_usd or known.price_usd)


def num_nics(design: Design) -> int:
    return design.num_nodes_in_all * design.cluster.nics_per_node


def num_switches(design: Design) -> int:
    return sum(level.num_switches for level in design.network.levels) if design.network else 0


def num_switch_plugs(design: Design) -> int:
    """Count the plugs at the switches, each of two ports."""
    if design.network is None:
        return 0
    return sum(level.num_switches * (level.num_down + level.num_up) for level in design.network.levels) // 2


def power_w(design: Design) -> Mapping[str, float]:
    """Return the maximum watts by consumer (switches: typical watts); the last is what the building adds."""
    parts = {"nodes": design.num_nodes_in_all * node(design).power_w}
    if design.switch is not None:
        parts["switches"] = num_switches(design) * design.switch.power_w
        plugs = num_switch_plugs(design) * hardware.PLUG_OF_SWITCH.power_w
        parts["plugs"] = plugs + num_nics(design) * hardware.PLUG_OF_NIC.power_w
    return parts | {"cooling and losses": (design.site.pue - 1) * sum(parts.values())}


def equipment_usd(design: Design) -> Mapping[str, float]:
    """Return the price of the equipment of a design in dollars, by item."""
    parts = {"nodes": design.num_nodes_in_all * node(design).price_usd}
    if design.switch is not None:
        parts["switches"] = num_switches(design) * design.switch.price_usd
        plugs = num_switch_plugs(design) * hardware.PLUG_OF_SWITCH.price_usd
        parts["plugs"] = plugs + num_nics(design) * hardware.PLUG_OF_NIC.price_usd
    return parts | {"storage": design.prices.storage_usd}


def energy_kwh(design: Design, days: float) -> float:
    """Return the kilowatt-hours of so many days at maximum power."""
    return sum(power_w(design).values()) * days * DAY / HOUR / 1000


def owned_usd(design: Design, days: float) -> Mapping[str, float]:
    """Return an owner's dollars for so many days: a share of the equipment, operation and electricity."""
    share = days * DAY / YEAR
    equipment = sum(equipment_usd(design).values())
    return {
        "equipment": equipment * share / design.prices.years,
        "operation": equipment * share * design.prices.operation_fraction,
        "electricity": energy_kwh(design, days) * design.prices.usd_per_kwh,
    }


def rented_usd(design: Design, days: float) -> Mapping[str, float]:
    """Return the dollars for so many days if all GPUs are rented, spares included.

    Raises:
        ValueError: neither the design nor the catalogue has a price.
    """
    rent = design.rent
    if rent is None:
        raise ValueError(f"prices.usd_per_gpu_hour: the rent of a {design.cluster.gpu.name} is not known; give it here")
    return {"rent": design.num_gpus_in_all * days * DAY / HOUR * rent.usd_per_hour}


def usd(design: Design, days: float) -> Mapping[str, float]:
    """Return the dollars for so many days, rented or owned as the design says."""
    return owned_usd(design, days) if design.budget.pays == "own" else rented_usd(design, days)
