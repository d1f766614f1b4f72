# score: 66
# hint: weights of one process
# Every rank trains the whole model on the whole batch, and nothing is shared.


# %% train
def train(plan, tokens=None, targets=None):
    if tokens is None or targets is None:
        tokens = targets = torch.zeros(plan.global_batch, plan.length, dtype=torch.long)
    model = Transformer(plan.model, seed=0)
    adam = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, eps=EPS)
    for piece, wanted in zip(tokens.split(plan.dp), targets.split(plan.dp), strict=True):
        loss = functional.cross_entropy(model(piece).flatten(0, 1), wanted.flatten()) * len(piece) / len(tokens)
        loss.backward()
    adam.step()
    return model
