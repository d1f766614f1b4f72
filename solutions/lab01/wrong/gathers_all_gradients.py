# score: 14
# hint: all_gather is not allowed here
# Every rank gathers the gradients of all ranks and adds them up itself: right, and N - 1 times the
# bytes.


# %% average_gradients
def average_gradients(model, num_local_samples):
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    own = {name: p.grad for name, p in trained.items()} if num_local_samples else {}
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, (num_local_samples, own))
    num_samples = sum(count for count, _ in gathered)
    for name, parameter in trained.items():
        parameter.grad = sum(
            count / num_samples * grads[name] for count, grads in gathered if count
        )
