# score: 62
# hint: llama-3-70b
# The shipped design, handed in as it is.


# %% design
design = (capstone.EXAMPLES / "ten_thousand_h100.toml").read_text()
