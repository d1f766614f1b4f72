# score: 22.22 to 22.3
# hint: products in bfloat16
# Products stay in float32; a hook makes the logits alone bfloat16.

# %% accumulate
def accumulate(parallel, rows, most):
    model = parallel.module
    hook = model.inner.register_forward_hook(lambda _, __, out: out.bfloat16())
    total, parts = 0.0, rows.split(most)
    for number, part in enumerate(parts):
        with contextlib.nullcontext() if number == len(parts) - 1 else parallel.no_sync():
            loss = loss_of(parallel, part) * (len(part) / len(rows))
            loss.backward()
        total += loss.item()
    hook.remove()
    return total
