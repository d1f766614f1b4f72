"""What is left on a GPU when ZeRO shards the rest? The bytes per parameter are the reader's own formula."""

from worldsize import draw, hardware, units
from worldsize.explore import explore

precisions = {"bf16 with fp32 Adam": (2, 2, 12), "fp32 with Adam": (4, 4, 8), "bf16 with SGD": (2, 2, 0)}


def zero(num_parameters=7_500_000_000, num_ranks=64, precision=(2, 2, 12)):
    weights, gradients, optimizer = (num_parameters * size for size in precision)
    parts = {
        f"stage {stage}": {
            "weights": weights / (num_ranks if stage >= 3 else 1),
            "gradients": gradients / (num_ranks if stage >= 2 else 1),
            "optimizer state": optimizer / (num_ranks if stage >= 1 else 1),
        }
        for stage in range(4)
    }
    capacity = hardware.H100.memory_bytes
    fits = [stage for stage, sizes in parts.items() if sum(sizes.values()) <= capacity]
    verdict = f"{fits[0]} is the first that fits." if fits else "No stage fits: take more ranks or a smaller model."
    title = f"{units.format_count(num_parameters)} parameters on {num_ranks} ranks"
    return draw.memory(parts, capacity, title, "one H100"), verdict


explore(zero, num_parameters=(10**8, 10**12, "x1.5"), num_ranks=(1, 4096, "x2"), precision=precisions)
