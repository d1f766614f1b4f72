# score: 74
# hint: million dollars
# 400 nodes of A100: in time, and for nearly twice the dollars of H100.


# %% design
design = (
    BRIEF.replace("length = 8192", "length = 8192\nglobal_batch = 1600").replace("[model]", 'name = "70B"\n\n[model]')
    + """
[nodes]
cluster = "a100-hdr"
num_nodes = 400
num_spares = 6

[network]
switch = "quantum-2"
is_rail = true
bisection_bytes_per_s = 30e12
levels = [
    { name = "leaf", num_switches = 104, num_down = 32, num_up = 32, num_nodes = 32 },
    { name = "spine", num_switches = 52, num_down = 64, num_up = 0 },
]

[plan]
dp = 1600
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
