# score: 25
# A list without its bracket cannot be read.

# %% read_timeline
def read_timeline(content: str) -> ws.Timeline:
    """The innermost activities of a timeline file of Horovod, as events of rank 0.

    - One `Event` for each pair of "B" and "E" of a pid that has no pair **inside** it: the outer
      ALLREDUCE of a tensor is not an event, the GLOO_ALLREDUCE in it is. What never ended is none.
    - Its `stream` is the name that an "M" record called "process_name" gives the pid, `args.name`.
    - Its `name` is the activity's. Its `kind` is "wait" if the name begins with NEGOTIATE or WAIT,
      or is QUEUE; "communication" if it ends in ALLREDUCE, ALLGATHER or BROADCAST; "other" if not.
    - Times are in seconds since the earliest `ts` of a "B".
    - All other records count for nothing. The list may end in a comma, without its bracket: the
      job was killed.
    """
    records = json.loads(content)
    began = [one["ts"] for one in records if one.get("ph") == "B"]
    names, stacks, innermost = {}, {}, []
    for one in records:
        stack = stacks.setdefault(one.get("pid"), [])
        if one["ph"] == "M" and one["name"] == "process_name" and "name" in one["args"]:
            names[one["pid"]] = one["args"]["name"]
        elif one["ph"] == "B":
            if stack:
                stack[-1][2] = False
            stack.append([one["name"], one["ts"], True])
        elif one["ph"] == "E" and stack:
            name, start, is_innermost = stack.pop()
            is_sent = name.endswith(("ALLREDUCE", "ALLGATHER", "BROADCAST"))
            is_waiting = name.startswith(("NEGOTIATE", "WAIT")) or name == "QUEUE"
            kind = "wait" if is_waiting else "communication" if is_sent else "other"
            if is_innermost:
                times_s = [(time_us - min(began)) / 1e6 for time_us in (start, one["ts"])]
                innermost.append(Event(0, names[one["pid"]], kind, name, *times_s))
    return ws.Timeline.of_events(innermost)
