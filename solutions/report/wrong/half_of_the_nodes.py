# score: 3
# The plan needs twice the GPUs that there are.

# %% design_file
def design_file() -> str:
    text = (capstone.EXAMPLES / "bloom_176b.toml").read_text(encoding="utf-8")
    return text.replace("num_nodes = 48", "num_nodes = 24")
