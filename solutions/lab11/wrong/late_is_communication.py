# score: 23
# hint: last start of an operation's events
# Waiting for a late member counts as communication.

# %% terms
def terms(timeline, rank):
    own = timeline.of(rank)
    times_s = {0.0, timeline.end_s, *(t for one in own for t in (one.start_s, one.end_s))}
    found = dict.fromkeys(("compute", "communication", "late", "input", "storage", "idle"), 0.0)
    names = {"communication": "communication", "data": "input", "checkpoint": "storage"}
    computing = ("compute", "forward", "backward", "update")
    for start_s, end_s in itertools.pairwise(sorted(times_s)):
        if end_s > timeline.end_s:
            continue
        middle_s = (start_s + end_s) / 2
        now = [one for one in own if one.start_s < middle_s < one.end_s]
        kinds = {names.get(one.kind, "idle") for one in now}
        if any(one.stream == "compute" and one.kind in computing for one in now):
            kinds.add("compute")
        found[next((one for one in found if one in kinds), "idle")] += end_s - start_s
    return found
