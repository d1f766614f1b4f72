# score: 22
# hint: the median of the relative errors
# The mean of the errors, which one probe decides.

# %% left_out_error
def left_out_error(rows, fit):
    errors = []
    for place, one in enumerate(rows):
        predict_s = fit(rows[:place] + rows[place + 1 :])
        errors.append(abs(predict_s(one) / best_s(one["times_s"]) - 1))
    return fmean(errors)
