# Each receive is posted before the action ahead of its own begins, in batches of operations.

# %% run_schedule
def run_schedule(schedule, pipeline, micro_batches):
    rank, num_ranks, last = dist.get_rank(), dist.get_world_size(), pipeline.num_stages - 1
    num_targets = sum(targets.numel() for _, targets in micro_batches)
    actions, posted, under_way, graphs, loss = schedule[rank], {}, [], {}, 0.0

    def tag_of(kind, stage, number):
        return (number * pipeline.num_stages + stage) * 2 + "FB".index(kind)

    def post(place):
        if place >= len(actions):
            return
        kind, stage, number = actions[place]
        source = stage - 1 if kind == "F" else stage + 1
        if 0 <= source <= last:
            buffer = torch.empty(*micro_batches[number][0].shape, pipeline.width)
            tag = tag_of(kind, stage, number)
            posted[place] = buffer, dist.irecv(buffer, source % num_ranks, tag=tag)

    def send(tensor, kind, stage, number):
        operation = dist.P2POp(dist.isend, tensor.contiguous(), stage % num_ranks)
        operation.tag = tag_of(kind, stage, number)
        under_way.extend(dist.batch_isend_irecv([operation]))

    post(0)
    for place, (kind, stage, number) in enumerate(actions):
        post(place + 1)
        came = None
        if place in posted:
            came, handle = posted.pop(place)
            handle.wait()
        if kind == "F":
            inputs, targets = micro_batches[number]
            inputs = inputs if came is None else came.requires_grad_()
            output = pipeline.stages[stage](inputs)
            if stage == last:
                output = pipeline.sum_of_losses(output, targets) * (1 / num_targets)
                loss += output.item()
            else:
                send(output.detach(), "F", stage + 1, number)
            graphs[stage, number] = inputs, output
        else:
            inputs, output = graphs.pop((stage, number))
            torch.autograd.backward([output], [came])
            if stage > 0:
                send(inputs.grad, "B", stage - 1, number)
    for one in under_way:
        one.wait()
    return loss
