# Answers go by isend in the order of waiting; the optimizers use foreach operations.

# %% run_worker
def run_worker(parameters, gradient_of, num_steps):
    step = 0
    while step < num_steps:
        dist.irecv(parameters, src=0).wait()
        push = gradient_of(parameters)
        dist.isend(push.contiguous(), dst=0).wait()
        step += 1


# %% may_start
def may_start(steps_done, worker, staleness_bound):
    return not any(steps_done[worker] > other + staleness_bound for other in steps_done.values())


# %% run_unbounded_server
def run_unbounded_server(parameters, update, num_steps):
    run_server(parameters, update, num_steps, num_steps)


# %% run_server
def run_server(parameters, update, num_steps, staleness_bound):
    from collections import deque

    workers = [*range(dist.get_world_size())][:0:-1]
    left = dict.fromkeys(workers, num_steps)
    queue = deque(workers)
    inbox = parameters.clone()
    while sum(left.values()) or queue:
        kept, works = deque(), []
        done = {worker: num_steps - one for worker, one in left.items()}
        while queue:
            worker = queue.popleft()
            if may_start(done, worker, staleness_bound):
                works.append(dist.isend(parameters, worker))
            else:
                kept.append(worker)
        queue = kept
        for work in works:
            work.wait()
        worker = dist.recv(inbox)
        update(parameters, inbox)
        left[worker] -= 1
        if left[worker]:
            queue.append(worker)


# %% lars_step
@torch.no_grad()
def lars_step(
    parameters,
    gradients,
    velocities,
    learning_rate,
    momentum=0.9,
    weight_decay=0.0,
    trust_coefficient=0.001,
):
    w = [torch.linalg.vector_norm(one.double()).item() for one in parameters]
    g = [torch.linalg.vector_norm(one.double()).item() for one in gradients]
    ratios = [
        trust_coefficient * a / (b + weight_decay * a) if a > 0 and b > 0 else 1.0
        for a, b in zip(w, g, strict=True)
    ]
    changes = torch._foreach_add(
        gradients, [one.detach() for one in parameters], alpha=weight_decay
    )
    torch._foreach_mul_(changes, [learning_rate * ratio for ratio in ratios])
    torch._foreach_mul_(velocities, momentum)
    torch._foreach_add_(velocities, changes)
    torch._foreach_sub_(parameters, velocities)
    return ratios


# %% lamb_step
@torch.no_grad()
def lamb_step(
    parameters,
    gradients,
    first_moments,
    second_moments,
    step,
    learning_rate,
    betas=(0.9, 0.999),
    eps=1e-6,
    weight_decay=0.01,
):
    for moment, beta, power in ((first_moments, betas[0], 1), (second_moments, betas[1], 2)):
        torch._foreach_lerp_(moment, [one**power for one in gradients], 1 - beta)
    ratios = []
    for w, m, v in zip(parameters, first_moments, second_moments, strict=True):
        r = (
            m / (1 - betas[0] ** step) / (torch.sqrt(v / (1 - betas[1] ** step)) + eps)
            + weight_decay * w
        )
        above, below = float(torch.linalg.vector_norm(w)), float(torch.linalg.vector_norm(r))
        ratios.append(above / below if above * below != 0 else 1.0)
        w -= learning_rate * ratios[-1] * r
    return ratios
