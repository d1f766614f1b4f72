# score: 23
# hint: Large means far from 0
# The largest entries, where those of largest magnitude are asked for.


# %% top_k
def top_k(vector, k):
    values, places = vector.topk(k)
    return values, places.int()
