# score: 74
# hint: 45 days
# 128 nodes: cheap, and not done in 45 days.


# %% design
design = (
    BRIEF.replace("length = 8192", "length = 8192\nglobal_batch = 2048").replace("[model]", 'name = "70B"\n\n[model]')
    + """
[nodes]
cluster = "h100-ndr"
num_nodes = 128
num_spares = 3

[network]
switch = "quantum-2"
is_rail = true
bisection_bytes_per_s = 20e12
levels = [
    { name = "leaf", num_switches = 40, num_down = 32, num_up = 32, num_nodes = 32 },
    { name = "spine", num_switches = 20, num_down = 64, num_up = 0 },
]

[plan]
dp = 512
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
