# score: 24
# hint: name of the file
# The first activity, as often as there are activities.


# %% read_timeline
def read_timeline(content):
    content = content.strip().rstrip(",")
    records = json.loads(content if content.endswith("]") else content + "]")
    last, number = {}, 0
    for one in records:
        if one["ph"] in ("B", "E"):
            number += one["ph"] == "E" and last[one["pid"]] == "B"
            last[one["pid"]] = one["ph"]
    first = next(one for one in records if one["ph"] == "B")
    end = next(one for one in records if one["ph"] == "E" and one["pid"] == first["pid"])
    names = {one["pid"]: one["args"]["name"] for one in records if "name" in one.get("args", {})}
    end_s = (end["ts"] - first["ts"]) / 1e6
    return ws.Timeline.of_events(
        [Event(0, names[first["pid"]], "wait", first["name"], 0.0, end_s)] * number
    )
