# %% [markdown]
# # Project 2. A transformer on a mesh
#
# draft

# %% setup
import worldsize as ws

# %% check_my_plan points=4
pass

# %% check_trainer points=17
pass

# %% check_main points=5
pass

# %% check_mesh points=20
pass

# %% check_fast points=14
pass

# %% check_recovery points=18
pass

# %% check_large points=11
pass

# %% figures tags=["solution"]
figures = {
    ### BEGIN SOLUTION
    "emulated_step_s": 0.0,
    "emulated_tokens_per_s": 0.0,
    "emulated_sent_bytes": 0.0,
    "paper_step_s": 0.0,
    "paper_mfu_fraction": 0.0,
    "paper_peak_bytes": 0.0,
    ### END SOLUTION
}

# %% check_figures points=6
pass

# %% words [markdown] points=5 tags=["solution"]
# **Answer.**
