"""What share of a layer's time goes into tensor parallelism's all-reduces?"""

from worldsize import draw, hardware
from worldsize.explore import explore
from worldsize.timeline import Event, Timeline


def tensor_parallel(d_model=4096, num_ranks=4, num_tokens=4096, link=hardware.NVLINK4):
    if d_model % num_ranks:
        raise ValueError(f"{d_model} columns cannot be shared evenly by {num_ranks} ranks.")
    flops_per_s = 0.5 * hardware.H100.peak_flops_per_s["bfloat16"]
    attention_s, mlp_s = (2 * num_tokens * weights * d_model**2 / num_ranks / flops_per_s for weights in (4, 8))
    size_bytes = 2 * num_tokens * d_model
    all_reduce_s = 2 * (num_ranks - 1) * (link.latency_s + size_bytes / num_ranks / link.bandwidth_bytes_per_s)
    events = []
    for rank in range(num_ranks):
        now_s = 0.0
        for name, work_s in {"attention": attention_s, "MLP": mlp_s}.items():
            events.append(Event(rank, "main", "forward", name, now_s, now_s + work_s))
            now_s += work_s
            if num_ranks > 1:
                events.append(Event(rank, "main", "communication", "all-reduce", now_s, now_s + all_reduce_s))
                now_s += all_reduce_s
    layer = Timeline.of_events(events)
    numbers = {
        "message_bytes": size_bytes,
        "layer_s": layer.end_s,
        "share_fraction": layer.share("communication"),
    }
    return draw.timeline(layer, "One layer, forward"), numbers


explore(
    tensor_parallel,
    d_model=(512, 16384, "x2"),
    num_ranks=[1, 2, 3, 4, 6, 8],
    num_tokens=(256, 65536, "x2"),
    link=[hardware.NVLINK4, hardware.PCIE5, hardware.IB_NDR],
)
