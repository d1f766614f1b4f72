# score: 82
# hint: figures['emulated_step_s']
# Round figures, none of which was measured.


# %% figures
figures = {
    "emulated_step_s": 0.03,
    "emulated_tokens_per_s": 8000,
    "emulated_sent_bytes": 3e6,
    "paper_step_s": 1.5,
    "paper_mfu_fraction": 0.55,
    "paper_peak_bytes": 7e10,
}
