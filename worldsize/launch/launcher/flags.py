"""torchrun's flags as typed, parsed with torchrun's own parser before anything starts."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

_RENDEZVOUS = (
    "standalone",
    "rdzv_backend",
    "rdzv_endpoint",
    "rdzv_conf",
    "master_addr",
    "master_port",
    "nnodes",
    "node_rank",
)
# how soon agents notice that one has left, and how long they wait for others to join: with torch's 15 s and 30 s, a
# job that shrinks from two nodes to one resumes after 43 s; with these, after 7 s (measured with torch 2.13 on Gloo)
_PATIENCE = "keep_alive_interval=1,last_call_timeout=3"


@dataclass(frozen=True)
class Flags:
    """A torchrun command line: its words, the names of its flags, and how many ranks it starts on this machine."""

    words: tuple[str, ...]
    names: frozenset[str]
    num_ranks: int
    is_range: bool = False  # whether --nnodes is a range, so that nodes may join and leave
    endpoint: str = ""
    conf: str = ""
    num_nodes: int = 1  # the smallest number in a range

    @staticmethod
    def parse(words: Sequence[str]) -> Flags:
        """Parse a command line.

        Raises:
            ValueError: torchrun would not accept it.
            SystemExit: it asks for help, which has been printed.
        """
        from torch.distributed.run import get_args_parser

        parser = get_args_parser()
        known = [option for action in parser._actions for option in action.option_strings if option.startswith("--")]

        def refuse(message: str) -> None:
            if "training_script" in message:
                message = f"{words[-1]} needs a value"
            raise ValueError(f"torchrun refused its flags: {message}")

        parser.error = refuse  # type: ignore[method-assign,assignment]
        names = {_name(word) for word in words if word.startswith("-")}
        for word in words:
            flag = word.partition("=")[0]
            if flag.startswith("--") and flag not in known:
                near = difflib.get_close_matches(flag, known, 1)
                hint = f"; did you mean {near[0].replace('_', '-')}?" if near else ""
                refuse(f"there is no flag {flag}{hint}")
        parsed = parser.parse_args([*words, "script.py"])
        if parsed.training_script != "script.py":
            refuse(f"{parsed.training_script} is not a flag; a script's own arguments come after it, or after --")
        fewest, _, most = str(parsed.nnodes).partition(":")
        is_range = most not in ("", fewest)
        num_ranks = _num_ranks(str(parsed.nproc_per_node))
        rendezvous = parsed.rdzv_endpoint, parsed.rdzv_conf
        return Flags(tuple(words), frozenset(names), num_ranks, is_range, *rendezvous, _number(fewest, "--nnodes"))

    @property
    def is_standalone(self) -> bool:
        """Whether there is only one agent."""
        return "standalone" in self.names or not self.names.intersection(_RENDEZVOUS)

    @property
    def is_local(self) -> bool:
        """Whether all ranks and their rendezvous are on this machine."""
        return self.is_standalone or self.endpoint.partition(":")[0] in ("localhost", "127.0.0.1")

    def complete(self, folder: str) -> list[str]:
        """Return the words, plus what a run on one machine needs: a free port, output by rank, logs in `folder`."""
        added = []
        if not self.names.intersection(_RENDEZVOUS):
            added.append("--standalone")  # instead of the fixed port 29500
        if not self.names.intersection({"tee", "t", "redirects", "r"}):
            added.append("--tee=3")
        if "log_dir" not in self.names:
            added.append(f"--log-dir={folder}")
        if self.is_local and "local_addr" not in self.names:
            added.append("--local-addr=localhost")  # this machine's own name may not resolve
        # the user's settings come later and so take precedence: torchrun uses the last of a setting given twice
        merged = [f"--rdzv-conf={','.join(filter(None, [_PATIENCE, self.conf]))}"] if self.is_range else []
        return [*added, *self.words, *merged]


def _name(word: str) -> str:
    return word.partition("=")[0].lstrip("-").replace("-", "_")


def _number(text: str, flag: str) -> int:
    if not re.fullmatch(r"\d+", text) or int(text) < 1:
        raise ValueError(f"{flag} must be a whole number, 1 or more; got {text}")
    return int(text)


def _num_ranks(nproc_per_node: str) -> int:
    """Return the number of ranks on this machine; torch resolves words such as auto and gpu."""
    if not re.fullmatch(r"-?\d+", nproc_per_node):
        return os.cpu_count() or 1 if nproc_per_node == "cpu" else 1  # as torchrun counts them
    if int(nproc_per_node) < 1:
        raise ValueError(f"--nproc-per-node must be a whole number, 1 or more; got {nproc_per_node}")
    return int(nproc_per_node)
