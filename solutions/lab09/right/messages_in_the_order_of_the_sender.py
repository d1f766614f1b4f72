# No tags: what comes from a rank is taken in the order in which its actions sent it.

# %% run_schedule
def run_schedule(schedule, pipeline, micro_batches):
    rank, num_ranks, last = dist.get_rank(), dist.get_world_size(), pipeline.num_stages - 1
    num_targets = sum(targets.numel() for _, targets in micro_batches)
    to_come = {peer: [] for peer in range(num_ranks)}
    for peer, actions in enumerate(schedule):
        for kind, stage, number in actions:
            target = stage + 1 if kind == "F" else stage - 1
            if 0 <= target <= last and target % num_ranks == rank:
                to_come[peer].append((kind, target, number))
    arrived, under_way, kept, total = {}, [], {}, 0.0

    def receive(kind, stage, number, peer):
        while (kind, stage, number) not in arrived:
            key = to_come[peer].pop(0)
            shape = (*micro_batches[key[2]][0].shape, pipeline.width)
            arrived[key] = torch.empty(shape)
            dist.recv(arrived[key], peer)
        return arrived.pop((kind, stage, number))

    for kind, stage, number in schedule[rank]:
        if kind == "F":
            tensor, targets = micro_batches[number]
            if stage:
                tensor = receive("F", stage, number, (stage - 1) % num_ranks).requires_grad_()
            result = pipeline.stages[stage](tensor)
            if stage < last:
                under_way.append(dist.isend(result.detach(), (stage + 1) % num_ranks))
            else:
                result = pipeline.sum_of_losses(result, targets).div(num_targets)
                total += float(result.detach())
            kept[stage, number] = tensor, result
        else:
            tensor, result = kept.pop((stage, number))
            gradient = None
            if stage < last:
                gradient = receive("B", stage, number, (stage + 1) % num_ranks)
            result.backward(gradient)
            if stage:
                under_way.append(dist.isend(tensor.grad, (stage - 1) % num_ranks))
    for one in under_way:
        one.wait()
    return total
