# The cause by rules on the evidence, one after the other; then the step after that change alone.

# %% find_bottleneck
def group(step, axis, sizes):
    ranks = torch.arange(4).view(*sizes.values())
    place = list(sizes).index(axis)
    return ranks.movedim(place, 0).reshape(sizes[axis], -1)[:, 0].tolist()


def after_backward_s(step, sizes_bytes, backward_s, factor, sizes=None):
    """The end of the last sum, from the end of backward."""
    sizes = sizes or step.sizes
    ranks, sent, now_s = group(step, "dp", sizes), 0, 0.0
    for one in sizes_bytes:
        sent += one
        now_s = max(now_s, backward_s * sent / sum(sizes_bytes))
        now_s += factor * pricing.price("all_reduce", one, ranks, step.cluster).time_s
    return now_s - backward_s


def find_bottleneck(step):
    timeline, end_s = step.timeline, step.timeline.end_s
    found = [terms(timeline, rank) for rank in range(4)]
    works = [one["compute"] for one in found]
    busiest = max(range(4), key=lambda rank: works[rank])
    own = timeline.of(busiest)

    for cause, kind in (("input", "data"), ("storage", "checkpoint")):
        for rank in range(4):
            if found[rank][cause] > 0.1 * end_s:
                left_s = max(end_s - found[rank][cause], timeline.time_s(rank, kind))
                return Diagnosis(cause, None, left_s)
    if works[busiest] - sorted(works)[1] > 0.1 * end_s:
        return Diagnosis("straggler", busiest, end_s - works[busiest] + sorted(works)[1])

    sums = [one for one in own if one.kind == "communication" and one.name == "all_reduce"]
    over_tp = [one for one in sums if one.axis == "tp"]
    over_dp = [one for one in sums if one.axis != "tp"]
    busy = [one for one in own if one.stream == "compute"]
    paid_s = sum(one.duration_s for one in over_dp)
    for one in over_dp:
        for other in busy:
            paid_s -= max(0.0, min(one.end_s, other.end_s) - max(one.start_s, other.start_s))
    base_s = end_s - paid_s
    backward = [one for one in own if one.kind == "backward"]
    pass_s = sum(one.duration_s for one in backward) / step.num_passes

    def price(one, axis):
        ranks = group(step, axis, step.sizes)
        return pricing.price("all_reduce", one.size_bytes, ranks, step.cluster).time_s

    factor = sum(one.duration_s for one in over_dp) / sum(price(one, "dp") for one in over_dp)
    times = round(sum(one.size_bytes for one in over_dp) / step.gradient_bytes)
    last = [one.size_bytes for one in over_dp[-(len(over_dp) // times) :]]
    if step.precision == "float32":
        narrow, wide = (
            step.flops / operators.flops_per_s("matmul", kind, step.cluster.gpu)
            for kind in ("bfloat16", "float32")
        )
        saved_s = wide - narrow
        shorter_s = pass_s * (1 - saved_s / works[busiest])
        left_s = base_s - saved_s + after_backward_s(step, last, shorter_s, factor)
        return Diagnosis("precision", None, left_s)
    if factor > 1.5:
        return Diagnosis("slow_link", None, base_s + after_backward_s(step, last, pass_s, 1.0))
    if times > 1:
        left_s = base_s + after_backward_s(step, last, pass_s, factor)
        return Diagnosis("accumulation", None, left_s)
    if over_tp and 1.5 * price(over_tp[0], "dp") < price(over_tp[0], "tp"):
        other = dict(reversed(step.sizes.items()))
        ranks = group(step, "tp", other)
        for one in over_tp:
            base_s -= one.duration_s
            base_s += pricing.price("all_reduce", one.size_bytes, ranks, step.cluster).time_s
        left_s = base_s + after_backward_s(step, last, pass_s, 1.0, other)
        return Diagnosis("wrong_axis", None, left_s)
    full, rest = divmod(step.gradient_bytes, step.bucket_bytes)
    buckets = [step.bucket_bytes] * full + [rest]
    if min(one.start_s for one in over_dp) >= backward[-1].end_s:
        return Diagnosis(
            "no_overlap", None, base_s + after_backward_s(step, buckets, pass_s, factor)
        )
    if len(over_dp) > 2 * len(buckets):
        return Diagnosis(
            "small_buckets", None, base_s + after_backward_s(step, buckets, pass_s, factor)
        )
    if step.num_passes > 1:
        rate = operators.flops_per_s("matmul", step.precision, step.cluster.gpu)
        saved_s = (works[busiest] - step.flops / rate) * (1 - 1 / step.num_passes)
        longer_s = pass_s * step.num_passes * (1 - saved_s / works[busiest])
        left_s = base_s - saved_s + after_backward_s(step, last, longer_s, factor)
        return Diagnosis("launch", None, left_s)
    return Diagnosis(None, None, end_s)
