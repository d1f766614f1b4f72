# score: 24
# hint: A pid stands for a tensor
# The pid, which stands for a tensor, is taken for the rank.


# %% read_timeline
def read_timeline(content):
    content = content.strip().rstrip(",")
    records = json.loads(content if content.endswith("]") else content + "]")
    first_us = min(one["ts"] for one in records if one["ph"] == "B")
    names, stacks, events = {}, {}, []
    for one in records:
        pid = one.get("pid")
        stack = stacks.setdefault(pid, [])
        if one["ph"] == "M" and one["name"] == "process_name" and "name" in one["args"]:
            names[pid] = one["args"]["name"]
        elif one["ph"] == "B":
            if stack:
                stack[-1][2] = False
            stack.append([one["name"], one["ts"], True])
        elif one["ph"] == "E" and stack:
            name, start_us, is_innermost = stack.pop()
            kind = "other"
            if name.startswith(("NEGOTIATE", "WAIT")) or name == "QUEUE":
                kind = "wait"
            elif name.endswith(("ALLREDUCE", "ALLGATHER", "BROADCAST")):
                kind = "communication"
            times_s = [(time_us - first_us) / 1e6 for time_us in (start_us, one["ts"])]
            if is_innermost:
                events.append(Event(pid, names[pid], kind, name, *times_s))
    return ws.Timeline.of_events(events)
