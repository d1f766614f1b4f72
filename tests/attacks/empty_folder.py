# outcome: malformed submission
# Hands in nothing at all, of which nbgrader says that no notebooks were matched.

# %% submission


def hand_in(folder, notebook):
    assert not list(folder.iterdir())
