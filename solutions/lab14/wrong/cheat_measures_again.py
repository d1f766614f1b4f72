# score: 21
# hint: of this machine
# The program is timed again in place of a prediction: by products of as many operations.

# %% predict
import time


def predict(measured, program):
    matrix = torch.ones(256, 256)
    start_s = time.perf_counter()
    for _ in range(20):
        matrix @ matrix
    per_flop_s = (time.perf_counter() - start_s) / 20 / (2 * 256**3)
    return 1.3 * per_flop_s * sum(flops for _, flops, _ in program.operators), 0.01
