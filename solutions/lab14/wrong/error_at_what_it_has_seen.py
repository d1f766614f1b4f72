# score: 22
# hint: Leave out one
# The fit is given all probes, and asked for the same.

# %% left_out_error
def left_out_error(rows, fit):
    predict_s = fit(rows)
    return median(abs(predict_s(one) / best_s(one["times_s"]) - 1) for one in rows)
