# outcome: crashed
# Writes until the disk is full.

# %% total
def total(tensor):
    for number in range(1 << 20):
        with open(f"/dev/shm/part{number}", "wb") as file:
            file.write(bytes(64 << 20))
