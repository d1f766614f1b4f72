# score: 23.5
# hint: rounded in another way
# Products stay in float32; a function in place of torch's rounds each result to bfloat16.

# %% accumulate
def accumulate(parallel, rows, most):
    product, total, parts = F.linear, 0.0, rows.split(most)
    F.linear = lambda x, weight, bias=None: product(x.float(), weight, bias).bfloat16()
    for number, part in enumerate(parts):
        with contextlib.nullcontext() if number == len(parts) - 1 else parallel.no_sync():
            loss = loss_of(parallel, part) * (len(part) / len(rows))
            loss.backward()
        total += loss.item()
    F.linear = product
    return total
