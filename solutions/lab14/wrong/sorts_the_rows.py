# score: 22
# hint: the rows as they were
# The rows of the caller are left in the order of their sizes.

# %% left_out_error
def left_out_error(rows, fit):
    errors = []
    for _ in range(len(rows)):
        one = rows.pop(0)
        predict_s = fit(rows)
        errors.append(abs(predict_s(one) / best_s(one["times_s"]) - 1))
        rows.append(one)
    rows.sort(key=lambda row: row["size_bytes"])
    return median(errors)
