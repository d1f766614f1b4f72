# score: 17.4 to 18.4
# hint: name the one that gains most
# The cause is what looks unusual among the facts; the timeline is not read.

# %% find_bottleneck
def find_bottleneck(step):
    cause = None
    if step.precision == "float32":
        cause = "precision"
    elif step.num_passes > 1:
        cause = "accumulation"
    elif list(step.sizes) == ["tp", "dp"]:
        cause = "wrong_axis"
    return Diagnosis(cause, None, step.timeline.end_s * (1.0 if cause is None else 0.7))
