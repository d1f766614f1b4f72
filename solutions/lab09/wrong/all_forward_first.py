# score: 23.5
# hint: in flight on rank
# GPipe under the name of 1F1B: as short, with everything in flight.

# %% one_f_one_b
def one_f_one_b(num_ranks, num_micro_batches):
    return gpipe(num_ranks, num_micro_batches)
