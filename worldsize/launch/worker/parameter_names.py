"""Names of the parameters that torch's DDP lists by number in an error."""

from __future__ import annotations

import gc
import re

_BY_NUMBER = re.compile(r"(Parameter indices which did not receive grad for rank \d+:) ([\d ]*\d)")


def name_parameters(message: str) -> str:
    """Add the names to the numbers in DDP's error about unused parameters, if this process has one DDP module."""
    if not (found := _BY_NUMBER.search(message)):
        return message
    from torch.nn.parallel import DistributedDataParallel

    models = [one for one in gc.get_objects() if type(one) is DistributedDataParallel]
    if len(models) != 1:
        return message
    names = [name for name, parameter in models[0].module.named_parameters() if parameter.requires_grad]
    numbers = [number for number in map(int, found[2].split()) if number < len(names)]
    named = ", ".join(f"{number} ({names[number]})" for number in numbers)
    return f"{message[: found.start()]}{found[1]} {named}{message[found.end() :]}"
