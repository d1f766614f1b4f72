"""Power and prices of nodes, switches and plugs, and rents of GPUs: every number with its source and date."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from worldsize.hardware.catalogue import A100, B200, H100, H200
from worldsize.hardware.validation import need_positive, need_source


@dataclass(frozen=True)
class Equipment:
    """A complete node, or a plug: its maximum power in watts, and its purchase price."""

    name: str
    power_w: float
    price_usd: float
    source: str

    def __post_init__(self) -> None:
        need_positive(f"{self.name}: power_w", self.power_w)
        need_positive(f"{self.name}: price_usd", self.price_usd)
        need_source(self.name, self.source)


@dataclass(frozen=True)
class Switch(Equipment):
    """A switch without its plugs: its typical power, its number of ports, and what they speak at which rate."""

    num_ports: int
    network: str
    port_bytes_per_s: float

    def __post_init__(self) -> None:
        super().__post_init__()
        need_positive(f"{self.name}: num_ports", self.num_ports)
        need_positive(f"{self.name}: port_bytes_per_s", self.port_bytes_per_s)


@dataclass(frozen=True)
class Rent:
    """The rent of one cloud GPU per hour, including its share of the node and of the network."""

    usd_per_hour: float
    source: str

    def __post_init__(self) -> None:
        need_positive("usd_per_hour", self.usd_per_hour)
        need_source("rent", self.source)


# Prices in this market change by half within a year: each has its date, and a design may give its own.
NODES: Mapping[str, Equipment] = {  # name of the GPU -> its node
    A100.name: Equipment(
        "DGX A100",
        6_500,
        199_000,
        "power: 6.5 kW, NVIDIA's documentation, read at second hand (2020); price: NVIDIA's when it came out (2020), "
        "recalled",
    ),
    H100.name: Equipment(
        "DGX H100",
        10_200,
        310_000,
        "power: the guide of the DGX H100/H200, read at second hand (2026); price: a node of 8 H100 with its NICs in a "
        "public sheet of cluster costs, after a reseller's quotation of 317,000 $ (August 2024)",
    ),
    B200.name: Equipment(
        "DGX B200",
        14_300,
        515_000,
        "power: NVIDIA DGX B200 user guide (2025); price: about 515,000 $, vengineer.hatenablog.com (2025)",
    ),
}

SWITCHES: Mapping[str, Switch] = {
    "quantum-2": Switch(
        "Quantum-2 QM9700",
        747,
        36_000,
        "ports: 64 of 400 Gb/s, itctshop.com (read 2026); power: typical, with passive cables, recalled in 2026; "
        "price: FS.com's, in a public sheet of cluster costs (August 2024), which has 50,000 $ for NVIDIA's",
        num_ports=64,
        network="InfiniBand",
        port_bytes_per_s=50e9,
    ),
}
PLUG_OF_SWITCH = Equipment(
    "800 Gb/s plug of two ports",
    17,
    1_250,
    "power: at most, NVIDIA MMS4X00-NS specifications (2025); price: 1,100 to 1,400 $ for 800G OSFP-DR8 in volume, "
    "luxoptx.com, read 2026",
)
PLUG_OF_NIC = Equipment(
    "400 Gb/s plug of one port",
    9,
    700,
    "power: NVIDIA's 400 Gb/s transceivers (2025); price: 600 to 800 $ in volume, luxoptx.com, read 2026",
)

_MARKET = "mercatus-ai.com, May 2026"
RENTS: Mapping[str, Rent] = {  # name of the GPU -> its rent
    A100.name: Rent(1.90, f"the middle of 0.80 to 3.00 $, {_MARKET}"),
    H100.name: Rent(2.95, "on demand: the median list price of 37 providers, aimultiple.com, 20 May 2026"),
    H200.name: Rent(4.75, f"the middle of 2.50 to 7.00 $, {_MARKET}"),
}
ELECTRICITY_USD_PER_KWH = 0.0806  # industry in the United States in 2023: EIA (March 2024), by statista.com, read 2026
