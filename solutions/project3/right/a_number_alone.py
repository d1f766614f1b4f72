# The cost is a single number, and the policy reckons by the higher-order terms of Daly 2006.


# %% seconds_of_a_step
def step_s(plan: Plan) -> float | dict[str, float]:
    """The seconds of a step under a plan, or named parts whose sum they are.

    `plan` is any legal `worldsize.planning.Plan` without experts, of a "llama" or a "gpt". Of the model its sizes
    count, of the cluster its rates; names say nothing. Gradients are summed in float32.
    """
    model, gpu, cluster = plan.model, plan.cluster.gpu, plan.cluster
    num_tokens, num_micro, num_layers = plan.num_micro_batch_tokens, plan.num_micro_batches, max(plan.num_stage_layers)

    def collective_s(op: str, size_bytes: float, ranks: range) -> float:
        return price(op, size_bytes, ranks, cluster).time_s if len(ranks) > 1 else 0.0

    def product_s(flops: float) -> float:
        return operators.time_s(operators.Operator("matmul", "bfloat16", flops, 0), gpu)

    def passes_s(num_numbers: float) -> float:
        return operators.time_s(operators.Operator("elementwise", "bfloat16", 0, 2 * num_numbers), gpu)

    is_gpt = model.family == "gpt"
    scores = 4 * plan.length * model.width / (1 if is_gpt else 2)  # of a token; a fused kernel skips what is masked
    # with "gpt" scores are written, and read again by softmax and dropout
    written = 5.5 * plan.length * model.num_heads if is_gpt else 0
    layer_s = 4 * product_s(num_tokens * 2 * model.num_layer_weights / plan.tp / 4)
    attention_s = product_s(num_tokens * scores / plan.tp) + passes_s(num_tokens * written / plan.tp)
    others_s = passes_s(num_tokens * (6 * model.hidden_width + 24 * model.width) / plan.tp)
    forward_s = layer_s + attention_s + others_s
    again_s = {"none": 0.0, "selective": attention_s if is_gpt else others_s, "full": forward_s}[plan.recompute]
    work_s = 3 * forward_s + again_s
    messages = 4 if plan.recompute != "full" else 6  # of attention and MLP, in each pass
    size_bytes = 2 * num_tokens * model.width
    tp_s = messages * sum(collective_s(op, size_bytes, plan.tp_ranks) for op in ("all_gather", "reduce_scatter"))
    cp_s = 3 * collective_s("all_gather", 4 * plan.micro_batch * plan.length * model.kv_width / plan.tp, plan.cp_ranks)
    head_s = 3 * product_s(num_tokens * model.head_flops / plan.tp)
    micro_s = num_layers * (work_s + tp_s + cp_s)
    if plan.num_stage_layers[-1] == num_layers:  # the last stage has the head too
        micro_s += head_s
    stages_s = 0.0
    if plan.pp > 1:
        sends = 2 * num_micro * plan.num_chunks
        stages_s = sends * price("send", size_bytes / plan.tp, plan.pp_ranks[:2], cluster).time_s
    sum_s = gather_s = 0.0
    if plan.num_shards > 1:
        summing = "reduce_scatter" if plan.zero_stage else "all_reduce"
        sum_s = collective_s(summing, 4 * plan.most_parameters, plan.shard_ranks)
        gather_s = collective_s("all_gather", 2 * plan.most_parameters, plan.shard_ranks) if plan.zero_stage else 0.0
    # what comes after the first layer's, or before the last one's, goes on beside the work of one pass
    times = num_micro if plan.zero_stage == 3 else 1
    gathers = times * (2 * gather_s if plan.zero_stage == 3 else gather_s)
    sums = (num_micro if plan.zero_stage >= 2 else 1) * sum_s
    beside_s = (num_micro if plan.zero_stage >= 2 else 1) * micro_s
    exposed_s = max(gathers + sums - beside_s, (gathers + sums) / num_layers)
    num_times = num_micro + (plan.pp - 1) / plan.num_chunks
    return num_times * micro_s + stages_s + (exposed_s if plan.num_shards > 1 else 0.0)


# %% policy
def policy(status: Status) -> outages.Plan | float:
    """The seconds of training until the next save, or an `outages.Plan` that also says on how many nodes to train.

    It decides for `JOB`, which is read anew at each call. Only the status shows how often nodes fail: `num_failures` in
    `time_s`. How long they stay away it does not say; `num_healthy` are those that can be used now. The answer follows
    from `status` and `JOB` alone: after a failure the program itself begins anew.
    """
    # failures are a Poisson process: its rate by what was seen, and before that by Llama 3's
    usual_s = 3600 / sum(one.per_node_hour for one in outages.published("Llama 3")) / JOB.num_nodes
    mean_s = (usual_s + status.time_s) / (1 + status.num_failures)
    stall_s = max(JOB.stall_s, 1.0)
    x = math.sqrt(stall_s / (2 * mean_s))
    every_s = math.sqrt(2 * stall_s * mean_s) * (1 + x / 3 + x * x / 9) - stall_s
    return outages.Plan(max(every_s, JOB.durable_s), min(JOB.num_nodes, status.num_healthy))
