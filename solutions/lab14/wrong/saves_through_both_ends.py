# score: 22.5
# hint: of which one may be wrong
# The line of saves goes through the smallest and the largest file, and does not come from `line`:
# one wrong probe of kind write decides.


# %% predict
def predict(measured, program):
    def alone_s(name, flops, size_bytes):
        if flops:
            return product_s(measured["products"], flops, size_bytes)
        return pass_s(measured["passes"], name, size_bytes)

    write = sorted((one["size_bytes"], best_s(one["times_s"])) for one in measured["write"])
    (size, time_s), (larger, longer_s) = write[0], write[-1]
    rate = (larger - size) / (longer_s - time_s)
    numbers = in_program(measured["phases"], alone_s), alpha_beta(measured["links"], 2)
    machine = Machine(*itertools.chain(*numbers), max(0.0, time_s - size / rate), rate)
    return step_s(program, machine, alone_s), save_s(program, machine)
