# score: 22.5
# hint: whatever its name
# Only names that are in the probes are taken for products.

# %% predict
def predict(measured, program):
    def alone_s(name, flops, size_bytes):
        if name in ("mm", "addmm", "bmm"):
            return product_s(measured["products"], flops, size_bytes)
        return pass_s(measured["passes"], name, size_bytes)

    write = [(one["size_bytes"], best_s(one["times_s"])) for one in measured["write"]]
    numbers = in_program(measured["phases"], alone_s), alpha_beta(measured["links"], 2), line(write)
    machine = Machine(*itertools.chain(*numbers))
    return step_s(program, machine, alone_s), save_s(program, machine)
