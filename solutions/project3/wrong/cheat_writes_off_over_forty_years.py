# score: 62
# hint: prices.years
# Another price in place of the brief: a year costs a tenth.


# %% design
design = (
    BRIEF.replace("years = 4", "years = 40")
    .replace("length = 8192", "length = 8192\nglobal_batch = 1920")
    .replace("[model]", 'name = "70B"\n\n[model]')
    + """
[nodes]
cluster = "h100-ndr"
num_nodes = 160
num_spares = 3

[network]
switch = "quantum-2"
is_rail = true
bisection_bytes_per_s = 30e12
levels = [
    { name = "leaf", num_switches = 48, num_down = 32, num_up = 32, num_nodes = 32 },
    { name = "spine", num_switches = 24, num_down = 64, num_up = 0 },
]

[plan]
dp = 640
tp = 2
micro_batch = 1
recompute = "selective"
zero_stage = 3

[software]
schedule = "none"
gradients = "float32"

[checkpoint]
every_s = 600
is_async = true
num_kept = 10
"""
)
