# score: 21
# hint: Each moment counts once
# The seconds of each kind, whatever else goes on; idle is what is left.

# %% terms
def terms(timeline, rank):
    kinds = ("compute", "forward", "backward", "update")
    found = {
        "compute": sum(timeline.time_s(rank, kind) for kind in kinds),
        "communication": timeline.time_s(rank, "communication"),
        "late": 0.0,
        "input": timeline.time_s(rank, "data"),
        "storage": timeline.time_s(rank, "checkpoint"),
    }
    return found | {"idle": max(0.0, timeline.end_s - sum(found.values()))}
