"""Networks between NICs: the shared hops on a message's path, and the capacity of each hop.

Every link of a network has the rate of a NIC. Switches balance the load over equal paths perfectly, so all uplinks of
a switch, or all links from one group to another, are one hop.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import NamedTuple, TypeAlias

from worldsize.hardware.validation import need_positive

Nic: TypeAlias = tuple[int, int]  # the node, and the NIC's number within it


# kinds of hops outside networks, which are reserved and cannot name a network's levels
_OTHER_KINDS = frozenset({"gpu", "link", "bridge", "nic", "host link", "uplink", "memory"}) | {
    f"{place} {direction}" for place in ("local", "shared", "all") for direction in ("read", "write")
}


class Hop(NamedTuple):  # used as a key of dicts in every replay: a dataclass takes four times as long to hash
    """A directed part of a cluster that messages share: a port, a link, a NIC, a switch's uplinks, a host bridge.

    `kind` is "gpu", "link", "bridge", "nic", a fat tree's level, or a dragonfly's "local" or "global". Hops of one kind
    have the same capacity, except links, which may be multiple. Examples of names: `gpu0 out`, `gpu0 to gpu3`,
    `node1 nic0 in`, `leaf0 up`, `group0 to group5`. Hops of transfers are, for example, `gpu0 to host`, `node0 memory`,
    `node0 uplink0 to device`, `node0 local write`, `node0 shared read`, `all shared read`.
    """

    kind: str
    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Nics:
    """A cluster's NICs: the number of nodes, NICs per node, and the rate of one NIC."""

    num_nodes: int
    per_node: int
    bytes_per_s: float


@dataclass(frozen=True)
class Level:
    """One level of switches: how many nodes each has below it (None: all), and its downlinks over its uplinks."""

    name: str
    num_nodes: int | None = None
    oversubscription: float = 1.0


@dataclass(frozen=True)
class FatTree:
    """Levels of switches from the leaves up, each connected to all of the next; messages go no higher than necessary.

    `is_rail`: NIC i of every node is on leaf switch i. Otherwise all NICs of a node are on one leaf switch. Higher
    switches have all NICs of their nodes below them.

    Source: Leiserson, "Fat-Trees", IEEE Transactions on Computers C-34(10), 1985.
    """

    levels: tuple[Level, ...]
    is_rail: bool = True

    def __post_init__(self) -> None:
        names = [level.name for level in self.levels]
        if not names or len(set(names)) < len(names) or _OTHER_KINDS & {*names}:
            raise ValueError(
                f"the levels are called {names}; give at least one level, each with a different name, such as leaf"
            )
        for level in self.levels:
            if level.oversubscription < 1:
                raise ValueError(
                    f"oversubscription is {level.oversubscription}; it must be the downlinks per uplink, 1 or more"
                )
            if level.num_nodes is not None:
                need_positive(f"{level.name}: num_nodes", level.num_nodes)
        for lower, upper in zip(self.levels, self.levels[1:], strict=False):
            if lower.num_nodes is None or (upper.num_nodes or 0) % lower.num_nodes:
                raise ValueError(
                    f"a {upper.name} has {upper.num_nodes} nodes, and a {lower.name} below it has {lower.num_nodes}: "
                    "each level needs a multiple of the nodes of the level below"
                )

    def hops(self, src: Nic, dst: Nic, nics: Nics) -> tuple[Hop, ...]:
        """The hops of a message from a NIC to another, without the NICs."""
        up: list[Hop] = []
        down: list[Hop] = []
        for height, level in enumerate(self.levels):
            src_switch, dst_switch = self.switch(height, src, nics), self.switch(height, dst, nics)
            if src_switch == dst_switch:
                break
            if self._is_limit(height):
                up.append(_vertical(level, src_switch, "up"))
                down.append(_vertical(level, dst_switch, "down"))
        return (*up, *reversed(down))

    def hop(self, name: str, nics: Nics) -> Hop | None:
        """Return the hop of this name; None if the network has none."""
        for height, level in enumerate(self.levels):
            last = self.switch(height, (nics.num_nodes - 1, nics.per_node - 1), nics)
            found = re.fullmatch(rf"{re.escape(level.name)}(\d+) (up|down)", name)
            if found and int(found[1]) <= last and self._is_limit(height):
                return Hop(level.name, name)
        return None

    def busiest_of_all_pairs(self, places: Sequence[Nic], nics: Nics) -> list[tuple[Hop, int]]:
        """Find each level's uplinks with the most messages in an all-to-all between nodes, and count the messages."""
        on_node = Counter(node for node, _ in places)
        busiest: list[tuple[Hop, int]] = []
        for height, level in enumerate(self.levels):
            on_both = Counter((node, self.switch(height, (node, nic), nics)) for node, nic in places)
            on_switch: Counter[int] = Counter()
            for (_, switch), number in on_both.items():
                on_switch[switch] += number
            loads: Counter[int] = Counter()
            for (node, switch), number in on_both.items():
                loads[switch] += number * (len(places) - on_node[node] - on_switch[switch] + number)
            if self._is_limit(height):
                switch, load = max(loads.items(), key=_load_of)
                busiest.append((_vertical(level, switch, "up"), load))
        return busiest

    def capacity_bytes_per_s(self, hop: Hop, nics: Nics) -> float | None:
        """Return the total capacity of a switch's uplinks (equal to its downlinks') in bytes/s; None for other hops."""
        for height, level in enumerate(self.levels):
            if level.name == hop.kind:
                num_nics = (level.num_nodes or nics.num_nodes) * self._nics_of_a_node(height, nics)
                return num_nics * nics.bytes_per_s / self._ratio(height)
        return None

    def switch(self, height: int, nic: Nic, nics: Nics) -> int:
        """Return the switch above this NIC on the level `height`, which is 0 for leaves."""
        node, index = nic
        group = node // (self.levels[height].num_nodes or nics.num_nodes)
        return group * nics.per_node + index if self.is_rail and not height else group

    @property
    def is_full(self) -> bool:
        """Whether no level limits what the NICs send, if switches spread it evenly."""
        return not any(self._is_limit(height) for height in range(len(self.levels)))

    def _nics_of_a_node(self, height: int, nics: Nics) -> int:
        return 1 if self.is_rail and not height else nics.per_node

    def _ratio(self, height: int) -> float:
        """The total oversubscription from the NICs up to this level."""
        return math.prod(level.oversubscription for level in self.levels[: height + 1])

    def _is_limit(self, height: int) -> bool:
        # with one uplink per downlink, the NICs are the limit
        return self._ratio(height) != 1 or not (self.is_rail or height)


@dataclass(frozen=True)
class Dragonfly:
    """Groups of routers: each router is connected to all others in its group, each group to all others by global links.

    Routing is minimal: within the group to a router with a global link to the destination group, over it, and on within
    that group. A group's global links are assigned to its routers in turn; if there are several between two groups,
    each router always uses the same one, and the routers alternate between them.

    NICs are assigned to routers in turn, node by node. `is_rail`: as many nodes as a router has NICs share as many
    routers as a node has NICs, and NIC i of each is on router i of these.

    Source: Kim, Dally, Scott and Abts, "Technology-Driven, Highly-Scalable Dragonfly Topology", ISCA 2008.
    """

    nics_per_router: int
    routers_per_group: int
    links_between_groups: int = 1
    links_between_routers: int = 1
    is_rail: bool = False

    def __post_init__(self) -> None:
        for count in ("nics_per_router", "routers_per_group", "links_between_groups", "links_between_routers"):
            need_positive(f"a dragonfly's {count}", getattr(self, count))

    @property
    def is_full(self) -> bool:
        """Whether no link limits what the NICs send: never known of a dragonfly."""
        return False

    def check(self, nics: Nics) -> None:
        """Raise ValueError if a node would be in two groups."""
        per_group = self.routers_per_group * (1 if self.is_rail else self.nics_per_router)
        if per_group % nics.per_node:
            counted = "routers_per_group" if self.is_rail else "nics_per_router x routers_per_group"
            raise ValueError(
                f"{counted} is {per_group}; it must be a multiple of nics_per_node, which is {nics.per_node}"
            )

    def hops(self, src: Nic, dst: Nic, nics: Nics) -> tuple[Hop, ...]:
        """The hops of a message from a NIC to another, without the NICs."""
        here, there = self.router(src, nics), self.router(dst, nics)
        src_group, dst_group = here // self.routers_per_group, there // self.routers_per_group
        if src_group == dst_group:
            return _local(here, there)
        link = self._link(here, src_group, dst_group)
        leaves_at, comes_to = self._gate(src_group, dst_group, link), self._gate(dst_group, src_group, link)
        return (*_local(here, leaves_at), *_global(src_group, dst_group), *_local(comes_to, there))

    def hop(self, name: str, nics: Nics) -> Hop | None:
        """Return the hop of this name; None if the network has none."""
        last_group = self.router((nics.num_nodes - 1, nics.per_node - 1), nics) // self.routers_per_group
        if found := re.fullmatch(r"(router|group)(\d+) to \1(\d+)", name):
            src, dst, is_global = int(found[2]), int(found[3]), found[1] == "group"
            groups = [number // (1 if is_global else self.routers_per_group) for number in (src, dst)]
            if src != dst and max(groups) <= last_group and (is_global or groups[0] == groups[1]):
                return Hop("global" if is_global else "local", name)
        return None

    def busiest_of_all_pairs(self, places: Sequence[Nic], nics: Nics) -> list[tuple[Hop, int]]:
        """Find each kind's hops with the most messages in an all-to-all between nodes, and count the messages."""
        at = Counter(self.router(place, nics) for place in places)
        in_group: Counter[int] = Counter()
        for router, number in at.items():
            in_group[router // self.routers_per_group] += number
        local = Counter(self._local_of_all_pairs(at, in_group))
        local.subtract(self._within_nodes(places, nics))
        between = {(i, j): in_group[i] * in_group[j] for i, j in permutations(in_group, 2)}
        busiest: list[tuple[Hop, int]] = []
        for loads, make in (local, _local), (between, _global):
            pair, load = max(loads.items(), key=_load_of, default=((0, 0), 0))
            busiest += [(hop, load) for hop in make(*pair)]
        return busiest

    def _local_of_all_pairs(self, at: Counter[int], in_group: Counter[int]) -> dict[tuple[int, int], int]:
        """Count the messages between routers of one group when each NIC at every router sends to all others."""
        loads: Counter[tuple[int, int]] = Counter()
        alike: Counter[tuple[int, int]] = Counter()  # in each group, the NICs whose routers use the same links
        for router, number in at.items():
            group = router // self.routers_per_group
            alike[group, router % self.links_between_groups] += number
            for other in in_group:
                if other != group:
                    gate = self._gate(group, other, self._link(router, group, other))
                    loads[router, gate] += number * in_group[other]
        entering = at.copy()  # the NICs at each router, and those that reach it over its global links
        for (group, router), number in alike.items():
            for other in in_group:
                if other != group:
                    entering[self._gate(other, group, self._link(router, group, other))] += number
        for router, number in at.items():
            first = router // self.routers_per_group * self.routers_per_group
            for peer in range(first, first + self.routers_per_group):
                loads[peer, router] += entering[peer] * number
        return {(src, dst): load for (src, dst), load in loads.items() if src != dst}

    def _within_nodes(self, places: Sequence[Nic], nics: Nics) -> Counter[tuple[int, int]]:
        """Count the messages between routers within a node whose NICs are on several routers."""
        loads: Counter[tuple[int, int]] = Counter()
        if not self.is_rail and self.nics_per_router % nics.per_node == 0:
            return loads
        on_node: dict[int, Counter[int]] = {}
        for place in places:
            on_node.setdefault(place[0], Counter())[self.router(place, nics)] += 1
        for routers in on_node.values():
            for here, there in permutations(routers, 2):
                loads[here, there] += routers[here] * routers[there]
        return loads

    def capacity_bytes_per_s(self, hop: Hop, nics: Nics) -> float | None:
        """Return the total capacity of the links between two routers or groups in bytes/s; None for other hops."""
        num_links = {"local": self.links_between_routers, "global": self.links_between_groups}.get(hop.kind)
        return num_links and num_links * nics.bytes_per_s

    def router(self, nic: Nic, nics: Nics) -> int:
        """Return the router of a NIC, numbered across all groups."""
        node, index = nic
        if self.is_rail:
            return node // self.nics_per_router * nics.per_node + index
        return (node * nics.per_node + index) // self.nics_per_router

    def _link(self, router: int, group: int, other: int) -> int:
        """Return which link between two groups a router of the first uses: routers and groups take turns."""
        turn = _place(other, group) * self.links_between_groups // self.routers_per_group
        return (router + turn) % self.links_between_groups

    def _gate(self, group: int, other: int, link: int) -> int:
        """Return the router of a group that has this link to another group."""
        index = (_place(other, group) * self.links_between_groups + link) % self.routers_per_group
        return group * self.routers_per_group + index


Network: TypeAlias = FatTree | Dragonfly


def _vertical(level: Level, switch: int, way: str) -> Hop:
    return Hop(level.name, f"{level.name}{switch} {way}")


def _local(src_router: int, dst_router: int) -> tuple[Hop, ...]:
    if src_router == dst_router:
        return ()
    return (Hop("local", f"router{src_router} to router{dst_router}"),)


def _place(other: int, group: int) -> int:
    """Return the index of `other` among all groups except `group`."""
    return other - (other > group)


def _global(src_group: int, dst_group: int) -> tuple[Hop, ...]:
    if src_group == dst_group:
        return ()
    return (Hop("global", f"group{src_group} to group{dst_group}"),)


def _load_of(item: tuple[object, int]) -> int:
    return item[1]
