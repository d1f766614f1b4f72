# score: 62
# hint: site.power_w
# The brief on the shipped design's 1,250 nodes, for which there is no power here.


# %% design
design = (
    BRIEF.replace("length = 8192", "length = 8192\nglobal_batch = 1250").replace("[model]", 'name = "70B"\n\n[model]')
    + """
[nodes]
cluster = "h100-ndr"
num_nodes = 1250
num_spares = 30

[network]
switch = "quantum-2"
is_rail = true
bisection_bytes_per_s = 30e12
levels = [
    { num_switches = 320, name = "leaf", num_down = 32, num_up = 32, num_nodes = 32 },
    { num_switches = 320, name = "spine", num_down = 32, num_up = 32, num_nodes = 256 },
    { num_switches = 160, name = "core", num_down = 64, num_up = 0 },
]

[plan]
dp = 125
tp = 8
pp = 10
num_chunks = 4
micro_batch = 1
recompute = "selective"
zero_stage = 1

[software]
schedule = "interleaved"
gradients = "float32"

[checkpoint]
every_s = 600
is_async = true
num_kept = 10
"""
)
