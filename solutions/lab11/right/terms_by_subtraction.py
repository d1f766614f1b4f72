# Terms by intervals from which the ones before are taken away; read_ahead by a thread for each
# batch; save_aside by a thread and a future of its own; passes by chunk; cuts by recursion.

# %% terms
from worldsize.intervals import length_s, under_way, without


def terms(timeline, rank):
    starts = {}
    for operation in operations(timeline.events):
        for one in operation:
            starts[id(one)] = max(other.start_s for other in operation)
    own = timeline.of(rank)
    calls = [one for one in own if one.kind == "communication"]
    moving = [replace(one, start_s=starts.get(id(one), one.start_s)) for one in calls]
    works = ("compute", "forward", "backward", "update")
    of = {
        "compute": [one for one in own if one.stream == "compute" and one.kind in works],
        "communication": moving,
        "late": calls,
        "input": [one for one in own if one.kind == "data"],
        "storage": [one for one in own if one.kind == "checkpoint"],
    }
    found, left = {}, [(0.0, timeline.end_s)]
    for name, events in of.items():
        rest = without(left, under_way(events))
        found[name] = length_s(left) - length_s(rest)
        left = rest
    return found | {"idle": length_s(left)}


# %% read_ahead
import threading


def read_ahead(load, num_batches):
    def started(number):
        found = []

        def read():
            try:
                found.append((load(number), None))
            except Exception as error:
                found.append((None, error))

        thread = threading.Thread(target=read)
        thread.start()
        return thread, found

    thread, found = started(0) if num_batches else (None, [])
    for number in range(num_batches):
        thread.join()
        batch, error = found[0]
        if error is not None:
            raise error
        if number + 1 < num_batches:
            thread, found = started(number + 1)
        yield batch


# %% save_aside
def save_aside(state, path):
    copies = {name: tensor.detach().clone() for name, tensor in state.items()}
    done = Future()

    def write():
        try:
            torch.save(copies, path)
            done.set_result(path)
        except Exception as error:
            done.set_exception(error)

    threading.Thread(target=write).start()
    return done


# %% accumulate
def accumulate(parallel, rows, most):
    losses = []
    parts = rows.chunk(-(-len(rows) // most))

    def one_pass(part):
        with torch.autocast(device_type="cpu", dtype=torch.bfloat16):
            loss = loss_of(parallel, part)
        (loss * len(part) / len(rows)).backward()
        losses.append(loss.item() * len(part))

    with parallel.no_sync():
        for part in parts[:-1]:
            one_pass(part)
    one_pass(parts[-1])
    return sum(losses) / len(rows)


# %% cut_into_buckets
import functools


def cut_into_buckets(sizes_bytes, ready_s, latency_s, bytes_per_s):
    @functools.cache
    def best(num):
        if num == 0:
            return 0.0, ()
        ways = []
        for last in range(1, num + 1):
            before_s, cut = best(num - last)
            size = sum(sizes_bytes[num - last : num])
            end_s = max(before_s, ready_s[num - 1]) + latency_s + size / bytes_per_s
            ways.append((end_s, (*cut, last)))
        return min(ways)

    return list(best(len(sizes_bytes))[1])
