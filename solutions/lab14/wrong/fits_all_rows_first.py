# score: 22
# hint: Leave out one
# A fit of all rows is made, too, and thrown away.

# %% left_out_error
def left_out_error(rows, fit):
    fit(rows)
    errors = []
    for place, one in enumerate(rows):
        predict_s = fit(rows[:place] + rows[place + 1 :])
        errors.append(abs(predict_s(one) / best_s(one["times_s"]) - 1))
    return median(errors)
