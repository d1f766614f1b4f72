# Reads through a queue of one place; files under another name first; passes of about the same size,
# the last rows first; cuts as a shortest path.

# %% read_ahead
def read_ahead(load, num_batches):
    def reads(pool):
        for number in range(num_batches):
            yield pool.submit(lambda number=number: load(number))

    pool = ThreadPoolExecutor(max_workers=1)
    try:
        coming = reads(pool)
        following = next(coming, None)
        while following is not None:
            batch = following.result()
            following = next(coming, None)
            yield batch
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


# %% save_aside
import copy
import threading


def save_aside(state, path):
    of_one_moment = {name: copy.deepcopy(one.detach()) for name, one in state.items()}
    written = Future()

    def write():
        try:
            torch.save(of_one_moment, f"{path}.part")
            os.replace(f"{path}.part", path)
        except BaseException as error:
            written.set_exception(error)
        else:
            written.set_result(path)

    threading.Thread(target=write, daemon=True).start()
    return written


# %% accumulate
def accumulate(parallel, rows, most):
    *before, last = reversed(rows.tensor_split(-(-len(rows) // most)))

    def one_pass(part):
        with torch.autocast(device_type="cpu", dtype=torch.bfloat16):
            loss = loss_of(parallel, part)
        (loss * len(part) / len(rows)).backward()
        return loss.item() * len(part) / len(rows)

    with parallel.no_sync():
        losses = [one_pass(part) for part in before]
    return sum(losses) + one_pass(last)


# %% cut_into_buckets
import heapq


def cut_into_buckets(sizes_bytes, ready_s, latency_s, bytes_per_s):
    waiting, reached = [(0.0, 0, [])], set()
    while waiting:
        time_s, place, cut = heapq.heappop(waiting)
        if place == len(sizes_bytes):
            return cut
        if place in reached:
            continue
        reached.add(place)
        size = 0
        for end in range(place, len(sizes_bytes)):
            size += sizes_bytes[end]
            done_s = max(time_s, ready_s[end]) + latency_s + size / bytes_per_s
            heapq.heappush(waiting, (done_s, end + 1, [*cut, end + 1 - place]))
    return []


# %% terms
def terms(timeline, rank):
    met_s = {}
    for members in operations(timeline.events):
        for one in members:
            met_s[id(one)] = max(other.start_s for other in members)
    spans = []  # from, to, and the place of the term
    for one in timeline.of(rank):
        if one.kind == "communication":
            middle_s = min(one.end_s, max(one.start_s, met_s.get(id(one), one.start_s)))
            spans += [(one.start_s, middle_s, 2), (middle_s, one.end_s, 1)]
        elif one.kind in ("data", "checkpoint"):
            spans.append((one.start_s, one.end_s, 3 if one.kind == "data" else 4))
        elif one.stream == "compute" and one.kind in ("compute", "forward", "backward", "update"):
            spans.append((one.start_s, one.end_s, 0))
    names = ("compute", "communication", "late", "input", "storage", "idle")
    edges = torch.tensor(
        sorted({0.0, timeline.end_s, *(t for one in spans for t in one[:2])}), dtype=torch.float64
    )
    edges = edges[(edges >= 0) & (edges <= timeline.end_s)]
    of_piece = torch.full((len(edges) - 1,), 5)
    for start_s, end_s, place in spans:
        inside = (edges[:-1] >= start_s) & (edges[1:] <= end_s)
        of_piece[inside] = of_piece[inside].clamp(max=place)
    lengths_s = edges.diff()
    return {name: lengths_s[of_piece == place].sum().item() for place, name in enumerate(names)}
