"""A design of a training system as one readable file: what it may contain, and a loader that reports every mistake."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from worldsize import hardware, models
from worldsize.hardware import Cluster, FatTree, Level, Rent, StorageSystem, Switch
from worldsize.models import Shape
from worldsize.planning import Plan
from worldsize.planning.memory_estimate import GRADIENT_BYTES, OPTIMIZER_BYTES, WEIGHT_BYTES, MemoryEstimate, held

EXAMPLES = Path(__file__).parent / "designs"  # a consistent one, and published systems
_STORE_LATENCY_S = hardware.LUSTRE.latency_s
_COUNT_LIMIT, _AMOUNT_LIMIT = 10**15, 1e30  # beyond any design, and small enough to calculate with
_MOST_SHOWN = 60  # characters of a value that is refused


def _not_quoted(value: object) -> object:
    """Return the value, but refuse a string or bool, which pydantic would turn into a number."""
    if isinstance(value, str | bool):
        raise ValueError(f"{value!r}: input should be a number, without quotes")
    return value


Number = BeforeValidator(_not_quoted)
Count: TypeAlias = Annotated[int, Number, Field(ge=1, lt=_COUNT_LIMIT)]
CountOrNone: TypeAlias = Annotated[int, Number, Field(ge=0, lt=_COUNT_LIMIT)]
Amount: TypeAlias = Annotated[float, Number, Field(gt=0, lt=_AMOUNT_LIMIT)]
AmountOrNone: TypeAlias = Annotated[float, Number, Field(ge=0, lt=_AMOUNT_LIMIT)]
Fraction: TypeAlias = Annotated[float, Number, Field(ge=0, le=1)]


class Section(BaseModel):
    """A section of the file, in which an unknown key is a mistake."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Model(Section):
    """A shape by its name in `models.shape`, and the sizes that differ from it."""

    shape: str
    num_layers: Count | None = None
    width: Count | None = None
    num_heads: Count | None = None
    num_kv_heads: Count | None = None
    hidden_width: Count | None = None
    vocab_size: Count | None = None
    context_length: Count | None = None
    num_experts: Count | None = None
    num_active_experts: Count | None = None


class Data(Section):
    """The tokens to train on, the tokens available, and how they are split into steps of `global_batch` sequences."""

    num_tokens: Amount
    dataset_tokens: Amount
    bytes_per_token: Annotated[int, Number, Field(ge=1, le=8)]
    length: Count
    global_batch: Count


class Nodes(Section):
    """Identical nodes, as in a cluster of the catalogue; spares stand by, cabled and powered."""

    cluster: str
    num_nodes: Count
    num_spares: CountOrNone = 0
    nics_per_node: Count | None = None
    nic_bytes_per_s: Amount | None = None  # the rate that transfers reach
    power_w: Amount | None = None  # the most that a node draws; default: the catalogue's


class SwitchLevel(Section):
    """The switches of one level: how many, their ports down and up, and the nodes below each (default: all)."""

    name: str
    num_switches: Count
    num_down: Count
    num_up: CountOrNone
    num_nodes: Count | None = None


class Network(Section):
    """A fat tree of identical switches, from the leaves up, and its stated bisection bandwidth."""

    switch: str
    is_rail: bool = True
    levels: Annotated[tuple[SwitchLevel, ...], Field(min_length=1)]
    bisection_bytes_per_s: Amount


class Store(Section):
    """One store shared by all nodes: its total rates, those of one node, and its capacity."""

    read_bytes_per_s: Amount
    write_bytes_per_s: Amount
    node_read_bytes_per_s: Amount
    node_write_bytes_per_s: Amount
    capacity_bytes: Amount


class ParallelLayout(Section):
    """The fields of a `planning.Plan`."""

    dp: Count
    tp: Count = 1
    pp: Count = 1
    cp: Count = 1
    ep: Count = 1
    micro_batch: Count
    num_chunks: Count = 1
    recompute: Literal["none", "selective", "full"]
    zero_stage: Literal[0, 1, 2, 3]


class Software(Section):
    """How the program runs a plan.

    `overlaps`: reducing gradients and gathering weights overlap other work.
    """

    schedule: Literal["none", "1f1b", "interleaved"]
    precision: Literal["bfloat16", "float16"] = "bfloat16"
    gradients: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    overlaps: bool = True


class Checkpoint(Section):
    """A checkpoint after every `every_s` seconds of training; the last `num_kept` are kept.

    `is_async`: training goes on as soon as a copy is in the hosts' memory.
    """

    every_s: Amount
    is_async: bool
    num_kept: Count


class Failures(Section):
    """Failure rates by a source of `outages.published`, and the times of a repair and of a restart before it loads."""

    rates: str
    away_s: AmountOrNone
    restart_s: AmountOrNone


class Site(Section):
    """The building: its total power, its draw relative to the equipment's (PUE), and the power of a rack."""

    power_w: Amount
    pue: Annotated[float, Number, Field(ge=1, le=10)]
    rack_power_w: Amount
    nodes_per_rack: Count


class Prices(Section):
    """Prices that replace the catalogue's. An owner writes off the equipment over `years`.

    `operation_fraction` is the yearly cost of staff, spare parts and the building, relative to the equipment's price.
    """

    usd_per_gpu_hour: Amount | None = None
    usd_per_kwh: Amount = hardware.ELECTRICITY_USD_PER_KWH
    node_usd: Amount | None = None
    storage_usd: AmountOrNone = 0.0
    years: Amount = 4.0
    operation_fraction: Fraction = 0.0


class Budget(Section):
    """The most days and dollars that the training may take, and whether the GPUs are rented or owned."""

    days: Amount
    usd: Amount
    pays: Literal["rent", "own"]


class Published(Section):
    """Published figures of a system that was built.

    `training_days` are without failures and pauses, `calendar_days` with them; `mfu_fraction` is as the source counts.
    """

    source: str
    step_s: Amount
    mfu_fraction: Fraction | None = None
    training_days: Amount | None = None
    calendar_days: Amount | None = None


class Programs(Section):
    """A Python file next to the design, and the names of the functions in it.

    `cost(plan)`: the seconds of a step, as for `ws.plan`. `train(plan)`: a step, to be run on paper. `policy(status)`:
    when to save and on how many nodes to go on, as for `outages.endure`.
    """

    file: str
    cost: str = "step_s"
    train: str = "train"
    policy: str = "policy"


class Design(Section):
    """A whole design; `network` defaults to the catalogue's, without a count of switches."""

    name: str
    model: Model
    data: Data
    nodes: Nodes
    network: Network | None = None
    storage: Store
    plan: ParallelLayout
    software: Software
    checkpoint: Checkpoint
    failures: Failures
    site: Site
    prices: Prices = Prices()
    budget: Budget
    published: Published | None = None
    programs: Programs | None = None

    @model_validator(mode="after")
    def _is_described_hardware(self) -> Design:
        _ = self.shape, self.cluster, self.switch  # each raises its own error
        return self

    @cached_property
    def shape(self) -> Shape:
        """The model's sizes."""
        changed = self.model.model_dump(exclude={"shape"}, exclude_none=True)
        return replace(models.shape(self.model.shape), **changed)

    @cached_property
    def cluster(self) -> Cluster:
        """The nodes that train, with the design's network and storage."""
        found, nodes = hardware.cluster(self.nodes.cluster), self.nodes
        changed: dict[str, Any] = {"num_nodes": nodes.num_nodes, "shared_storage": self._storage}
        if nodes.nics_per_node is not None:
            changed["nics_per_node"] = nodes.nics_per_node
        if nodes.nic_bytes_per_s is not None and found.inter is not None:
            changed["inter"] = replace(found.inter, bandwidth_bytes_per_s=nodes.nic_bytes_per_s, peak_bytes_per_s=None)
        if self.network is not None:
            changed |= {"is_rail": True, "oversubscription": 1.0, "nodes_per_leaf": None, "network": self._fat_tree}
        return replace(found, **changed)

    @property
    def _storage(self) -> StorageSystem:
        return StorageSystem(
            "the design's store",
            self.storage.node_read_bytes_per_s,
            self.storage.node_write_bytes_per_s,
            _STORE_LATENCY_S,
            "the design (2026)",
            self.storage.read_bytes_per_s,
            self.storage.write_bytes_per_s,
        )

    @property
    def _fat_tree(self) -> FatTree:
        assert self.network is not None
        levels = [
            Level(level.name, level.num_nodes, max(level.num_down / level.num_up, 1.0) if level.num_up else 1.0)
            for level in self.network.levels
        ]
        return FatTree(tuple(levels), self.network.is_rail)

    @cached_property
    def switch(self) -> Switch | None:
        """The network's switch.

        Raises:
            ValueError: there is no such switch.
        """
        if self.network is None:
            return None
        if self.network.switch not in hardware.SWITCHES:
            known = ", ".join(hardware.SWITCHES)
            raise ValueError(f"network.switch: no switch is called {self.network.switch!r}; known: {known}")
        return hardware.SWITCHES[self.network.switch]

    @cached_property
    def layout(self) -> Plan:
        """The plan, legal or not."""
        fields = self.plan.model_dump()
        return Plan(
            model=self.shape,
            cluster=self.cluster,
            global_batch=self.data.global_batch,
            length=self.data.length,
            **fields,
        )

    @property
    def gradient_bytes(self) -> int:
        """The bytes of a gradient, as it is kept and reduced."""
        return 4 if self.software.gradients == "float32" else GRADIENT_BYTES

    @cached_property
    def held(self) -> MemoryEstimate:
        """The estimate of the bytes on the GPU that holds most."""
        return held(self.layout, self.gradient_bytes)

    @property
    def num_steps(self) -> float:
        return self.data.num_tokens / (self.data.global_batch * self.data.length)

    @property
    def num_nodes_in_all(self) -> int:
        """The nodes that train and the spares."""
        return self.nodes.num_nodes + self.nodes.num_spares

    @property
    def num_gpus_in_all(self) -> int:
        return self.num_nodes_in_all * self.cluster.gpus_per_node

    @property
    def checkpoint_bytes(self) -> float:
        """The size of a checkpoint: weights and optimizer state."""
        return (WEIGHT_BYTES + OPTIMIZER_BYTES) * float(self.shape.num_parameters)

    @property
    def rent(self) -> Rent | None:
        """The rent of a GPU, from the design or the catalogue."""
        if self.prices.usd_per_gpu_hour is not None:
            return Rent(self.prices.usd_per_gpu_hour, "the design (2026)")
        return hardware.RENTS.get(self.cluster.gpu.name)


def load(path: Path | str) -> Design:
    """Load the design in a TOML file.

    Raises:
        ValueError: it cannot be read; the message names every key that is missing, unknown or wrong.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")  # Notepad starts files with a byte-order mark
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {error}") from error
    return loads(text, f"{path}: ")


def loads(text: str, prefix: str = "") -> Design:
    """Parse a design in the text of a TOML file; each line of an error's message begins with `prefix`.

    Raises:
        ValueError: as for `load`.
    """
    try:
        fields = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{prefix}{error}") from error
    return _validated(fields, prefix)


def example(name: str) -> Design:
    """Load one of the designs that ship: "ten_thousand_h100", or a published system such as "llama_3_405b".

    Raises:
        ValueError: there is no such design; the message names all.
    """
    known = {path.stem: path for path in sorted(EXAMPLES.glob("*.toml"))}
    if name not in known:
        raise ValueError(f"no design is called {name!r}; known: {', '.join(known)}")
    return load(known[name])


def changed(design: Design, **values: Any) -> Design:
    """Return the design with these values in place of its own: `changed(design, plan__dp=64, budget__days=30)`.

    Raises:
        ValueError: a key is unknown, or cannot have this value.
    """
    whole = design.model_dump(exclude_none=True)
    for name, value in values.items():
        *sections, key = name.split("__")
        target: Any = whole
        for section in sections:
            target = target[int(section)] if isinstance(target, tuple | list) else target.setdefault(section, {})
        target[key] = value
    return _validated(whole, "")


def _validated(fields: Mapping[str, Any], prefix: str) -> Design:
    try:
        return Design.model_validate(fields)
    except ValidationError as error:
        lines = [f"{prefix}{_where(problem['loc'])}{_what(problem)}" for problem in error.errors()]
        raise ValueError("\n".join(lines)) from None


def _where(loc: tuple[int | str, ...]) -> str:
    return f"{'.'.join(map(str, loc))}: " if loc else ""


def _section(loc: Sequence[int | str]) -> type[BaseModel]:
    """The section at this place of a design."""
    found: type[BaseModel] = Design
    for name in loc:
        if isinstance(name, str):  # a number is that of a table in a list
            annotation = found.model_fields[name].annotation
            found = next(
                one for one in (annotation, *get_args(annotation)) if isinstance(one, type) and issubclass(one, Section)
            )
    return found


def _what(error: Mapping[str, Any]) -> str:
    if error["type"] == "missing":
        return "this key is missing"
    if error["type"] == "extra_forbidden":
        *sections, key = error["loc"]
        known = list(_section(sections).model_fields)
        nearest = get_close_matches(str(key), known, n=1, cutoff=0.5)
        guess = f"did you mean {nearest[0]!r}? Known" if nearest else "known"
        return f"there is no such key; {guess}: {', '.join(known)}"
    if error["type"] == "value_error":
        return error["msg"].removeprefix("Value error, ")
    given = repr(error["input"])
    given = given if len(given) <= _MOST_SHOWN else f"{given[:_MOST_SHOWN]}..."
    sentences = {
        "model_type": "input should be a table",
        "tuple_type": "input should be a list of tables",
        "less_than": f"input should be less than {error.get('ctx', {}).get('lt', 0):g}",
    }
    return f"{given}: {sentences.get(error['type'], error['msg'].lower())}"
