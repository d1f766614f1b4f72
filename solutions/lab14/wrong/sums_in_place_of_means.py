# score: 19.5 to 21
# hint: by the number of operators
# A line through whole programs: its floor is that of a program, shared by the mean number.

# %% in_program
def in_program(phases, alone_s):
    points = []
    for one in phases:
        alone = sum(alone_s(*each) for each in one["operators"])
        points.append((alone, best_s(one["times_s"])))
    floor_s, per_second = line(points)
    return floor_s / fmean(len(one["operators"]) for one in phases), 1 / per_second
