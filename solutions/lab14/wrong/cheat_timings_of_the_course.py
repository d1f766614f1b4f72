# score: 17.5
# The course's own way between measured operators is used: its class is there, its methods are not.

# %% alone
from worldsize import hardware


def timings(rows):
    made = object.__new__(hardware.Timings)
    timed = [
        hardware.Timed(one["name"], one["flops"], one["size_bytes"], best_s(one["times_s"]))
        for one in rows
    ]
    for name, value in (("operators", tuple(timed)), ("overhead_s", {}), ("slowdown", 1.0)):
        object.__setattr__(made, name, value)
    return made


def product_s(products, flops, size_bytes):
    return timings(products).time_s("", flops, size_bytes)


def pass_s(passes, name, size_bytes):
    return timings(passes).time_s(name, 0, size_bytes)
