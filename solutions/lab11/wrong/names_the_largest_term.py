# score: 16 to 16.4
# hint: name the one that gains most
# The cause is the largest term of rank 0, and the change takes all of it away.

# %% find_bottleneck
def find_bottleneck(step):
    found = terms(step.timeline, 0)
    name = max(found, key=lambda one: found[one])
    causes = {
        "compute": "precision",
        "communication": "no_overlap",
        "late": "straggler",
        "input": "input",
        "storage": "storage",
        "idle": "launch",
    }
    left_s = step.timeline.end_s - found[name]
    return Diagnosis(causes[name], 0 if name == "late" else None, left_s)
