# score: 21.64 to 21.72
# hint: Large passes launch less
# A pass for each row, but a layer's factor is asked for once in a pass that may be, with its rows.

# %% accumulate
def accumulate(parallel, rows, most):
    asked, ask, total = {}, getattr(parallel.module, "ask", None), 0.0

    def ask_once(place, grad, is_narrow):
        key = place, asked["pass"]
        if key not in asked:
            asked[key] = ask(place, grad.repeat(asked["num"], 1, 1), is_narrow)
        return asked[key]

    parallel.module.ask = ask_once
    for number, part in enumerate(rows.split(most)):
        asked |= {"pass": number, "num": len(part)}
        for row in part.split(1):
            is_last = row[0].equal(rows[-1])
            with contextlib.nullcontext() if is_last else parallel.no_sync():
                with torch.autocast("cpu", torch.bfloat16):
                    loss = loss_of(parallel, row) / len(rows)
                loss.backward()
            total += loss.item()
    return total
