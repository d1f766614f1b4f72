# score: 22
# hint: from the end of backward on
# Reading and writing that go on beside a sum count before it.

# %% terms
def terms(timeline, rank):
    met_s = {}
    for members in operations(timeline.events):
        last_s = max(one.start_s for one in members)
        met_s |= {id(one): last_s for one in members}
    own = timeline.of(rank)
    times_s = {0.0, timeline.end_s, *(met_s[id(one)] for one in own if id(one) in met_s)}
    times_s |= {time_s for one in own for time_s in (one.start_s, one.end_s)}
    computing = ("compute", "forward", "backward", "update")
    found = dict.fromkeys(("compute", "communication", "late", "input", "storage", "idle"), 0.0)
    for start_s, end_s in itertools.pairwise(sorted(times_s)):
        middle_s = (start_s + end_s) / 2
        now = [one for one in own if one.start_s < middle_s < one.end_s]
        kinds = {one.kind for one in now}
        calls = [one for one in now if one.kind == "communication"]
        if any(one.stream == "compute" and one.kind in computing for one in now):
            name = "compute"
        elif "data" in kinds:
            name = "input"
        elif "checkpoint" in kinds:
            name = "storage"
        elif calls:
            name = "communication" if middle_s > met_s[id(calls[0])] else "late"
        else:
            name = "idle"
        found[name] += end_s - start_s
    return found
