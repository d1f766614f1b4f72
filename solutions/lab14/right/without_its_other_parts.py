# Predictions are written out, and nothing but `line` is shared.

# %% prediction
def step_s(program, machine, alone_s):
    total_s = 0.0
    for name, flops, size_bytes in program.operators:
        total_s += machine.overhead_s + machine.slowdown * alone_s(name, flops, size_bytes)
    if program.num_ranks > 1:
        part = 4 * program.num_parameters / program.num_ranks
        total_s += 2 * (program.num_ranks - 1) * (machine.latency_s + part / machine.bytes_per_s)
    return total_s


def save_s(program, machine):
    numbers = program.num_parameters + program.num_states * program.num_parameters
    return machine.save_floor_s + 4 * numbers / machine.write_bytes_per_s


# %% left_out_error
def left_out_error(rows, fit):
    def off(place):
        others = [one for other, one in enumerate(rows) if other != place]
        best = min(rows[place]["times_s"])
        return abs(fit(others)(rows[place]) - best) / best

    return (
        sorted(map(off, range(len(rows))))[len(rows) // 2]
        if len(rows) % 2
        else median(map(off, range(len(rows))))
    )


# %% predict
def predict(measured, program):
    kinds = {True: measured["products"], False: measured["passes"]}
    known = {}

    def alone_s(name, flops, size_bytes):
        key = name, flops, size_bytes
        if key not in known:
            rows = kinds[flops > 0]
            one = product_s(rows, *key[1:]) if flops else pass_s(rows, name, size_bytes)
            known[key] = one
        return known[key]

    def line_of(kind):
        return line([(one["size_bytes"], min(one["times_s"])) for one in measured[kind]])

    floor_s, rate = line_of("links")
    work = in_program(measured["phases"], alone_s)
    machine = Machine(*work, floor_s / 2, rate, *line_of("write"))
    return step_s(program, machine, alone_s), save_s(program, machine)
