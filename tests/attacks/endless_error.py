# outcome: crashed
# Raises an error whose text is longer than any page, with a cause for every cause.

# %% total
def total(tensor):
    error = None
    for _ in range(2000):
        cause, error = error, ValueError("\x1b[2J<script>alert(1)</script>\x00\ud800" * 1000)
        error.__cause__ = cause
    raise error
