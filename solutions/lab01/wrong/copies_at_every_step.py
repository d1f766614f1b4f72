# score: 21.5
# hint: A tensor stays in memory as long as a name or a list holds it
# Every step of the computation makes a copy of all gradients, and all copies live until the
# function returns.


# %% average_gradients
def average_gradients(model, num_local_samples):
    trained = [p for p in model.parameters() if p.requires_grad]
    own = [p.grad.clone() if num_local_samples else torch.zeros_like(p) for p in trained]
    weighted = [gradient * num_local_samples for gradient in own]
    flat = torch.cat([gradient.flatten() for gradient in weighted])
    dist.all_reduce(flat)
    num_samples = torch.tensor(num_local_samples)
    dist.all_reduce(num_samples)
    mean = flat / num_samples
    for p, piece in zip(trained, mean.split([p.numel() for p in trained]), strict=True):
        p.grad = piece.view_as(p).clone()
