# score: 21 to 22.4
# hint: Which of overhead, slowdown
# Operators in a program take what they take alone.

# %% predict
def predict(measured, program):
    def alone_s(name, flops, size_bytes):
        if flops:
            return product_s(measured["products"], flops, size_bytes)
        return pass_s(measured["passes"], name, size_bytes)

    write = [(one["size_bytes"], best_s(one["times_s"])) for one in measured["write"]]
    numbers = (0.0, 1.0), alpha_beta(measured["links"], 2), line(write)
    machine = Machine(*itertools.chain(*numbers))
    return step_s(program, machine, alone_s), save_s(program, machine)
