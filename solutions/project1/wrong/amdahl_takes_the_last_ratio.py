# score: 84
# hint: least squares
# Takes the last time over the first one for the serial fraction


# %% amdahl_fit
def amdahl_fit(world_sizes: list[int], step_times_s: list[float]) -> float:
    """The serial fraction."""
    return step_times_s[-1] / step_times_s[0]
