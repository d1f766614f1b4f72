"""What does one slow worker cost, and what does bounded staleness give back?"""

from worldsize import draw
from worldsize.explore import explore
from worldsize.timeline import Event, Timeline


def workers(slow_factor=3.0, staleness=0, num_workers=4, num_steps=8):
    step_s = [1e-3 * (slow_factor if rank == 0 else 1.0) for rank in range(num_workers)]
    done_s = [[0.0] for _ in step_s]  # when each worker had done its n-th step
    events = []
    for step in range(num_steps):
        for rank in range(num_workers):
            # no worker starts a step before the slowest has done all but `staleness` of those before
            others_s = max(times[max(0, step - staleness)] for times in done_s)
            start_s = max(done_s[rank][-1], others_s)
            events.append(Event(rank, "main", "compute", str(step + 1), start_s, start_s + step_s[rank]))
        for rank in range(num_workers):
            done_s[rank].append(events[rank - num_workers].end_s)
    run = Timeline.of_events(events)
    fast_s = max(times[-1] for times in done_s[1:])
    return draw.timeline(run, f"Staleness {staleness}"), {
        "fast workers, end_s": fast_s,
        "slow worker, end_s": done_s[0][-1],
        "idle_fraction": run.bubble_fraction(),
    }


explore(workers, slow_factor=(1.0, 8.0, 0.25), staleness=(0, 8), num_workers=(2, 8))
