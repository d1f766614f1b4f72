# score: 64
# hint: the cost is what you write
# A step takes twice the roofline of ws.plan, which is near the middle of the published range.


# %% seconds_of_a_step
def step_s(plan):
    from worldsize.planning import roofline

    return 2 * roofline.step_s(plan)
