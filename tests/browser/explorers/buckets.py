"""How large should DDP's buckets be? The step's timeline comes from the reader's own model of it."""

from worldsize.explore import explore
from worldsize.timeline import Event, Timeline


def ddp_step(bucket_bytes=25_000_000, num_ranks=8, bandwidth_bytes_per_s=25e9, latency_s=20e-6):
    num_layers, layer_bytes, layer_s = 24, 16_000_000, 0.6e-3
    events, now_s, link_free_s, waiting = [], 0.0, 0.0, 0
    for layer in reversed(range(num_layers)):
        events.append(Event(0, "compute", "backward", str(layer), now_s, now_s + layer_s))
        now_s, waiting = now_s + layer_s, waiting + layer_bytes
        if waiting >= bucket_bytes or layer == 0:
            start_s = max(now_s, link_free_s)
            transfer_s = waiting * (num_ranks - 1) / num_ranks / bandwidth_bytes_per_s
            link_free_s = start_s + 2 * (num_ranks - 1) * latency_s + 2 * transfer_s
            events.append(Event(0, "communication", "communication", "bucket", start_s, link_free_s))
            waiting = 0
    step = Timeline.of_events(events)
    return step, {"exposed_s": step.exposed_communication_s(), "overlap_fraction": step.overlap_fraction()}


explore(
    ddp_step,
    bucket_bytes=(1_000_000, 400_000_000, "x1.3"),
    num_ranks=(2, 1024, "x2"),
    bandwidth_bytes_per_s=(1e9, 400e9, "x1.3"),
    latency_s=(1e-6, 1e-3, "x2"),
)
