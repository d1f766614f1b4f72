# outcome: malformed submission
# Hands in links to the solution and to the course instead of files.

# %% submission
def hand_in(folder, notebook):
    course = folder.parent.parent.parent
    (folder / "sums.ipynb").symlink_to(course / "solutions" / "sums" / "sums.ipynb")
    (folder / "answers").symlink_to(course / "solutions")
    (folder / "hush.txt").symlink_to(course / "gradebook.db")
    (folder / "self").symlink_to(folder)
