# score: 25
# hint: Innermost pairs alone
# What is left out is what has the name of an operation, and not what has something inside.


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
            name, start_us, _ = stack.pop()
            kind = "other"
            if name.startswith(("NEGOTIATE", "WAIT")) or name == "QUEUE":
                kind = "wait"
            elif name.endswith(("ALLREDUCE", "ALLGATHER", "BROADCAST")):
                kind = "communication"
            times_s = [(time_us - first_us) / 1e6 for time_us in (start_us, one["ts"])]
            if name not in ("ALLREDUCE", "ALLGATHER", "BROADCAST"):
                events.append(Event(0, names[pid], kind, name, *times_s))
    return ws.Timeline.of_events(events)
