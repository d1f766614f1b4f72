# score: 25
# hint: none that never ended
# Activities count when the outermost around them has ended: of an operation that was under way when
# the job was killed none does.


# %% read_timeline
def read_timeline(content):
    content = content.strip().rstrip(",")
    records = json.loads(content if content.endswith("]") else content + "]")
    first_us = min(one["ts"] for one in records if one["ph"] == "B")
    names, stacks, events = {}, {}, []
    waiting = {}
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
                waiting.setdefault(pid, []).append(Event(0, names[pid], kind, name, *times_s))
            if not stack:
                events += waiting.pop(pid, [])
    return ws.Timeline.of_events(events)
