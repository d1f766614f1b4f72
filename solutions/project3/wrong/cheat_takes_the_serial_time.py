# score: 64
# hint: the cost is what you write
# A step takes twice the serial time of ws.plan, which is near the middle of the published range.


# %% seconds_of_a_step
def step_s(plan):
    from worldsize.planning import serial

    return 2 * serial.step_s(plan)
