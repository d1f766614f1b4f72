# score: 4
# A design of one's own, without a published step.

# %% design_file
def design_file() -> str:
    return (capstone.EXAMPLES / "ten_thousand_h100.toml").read_text(encoding="utf-8")
