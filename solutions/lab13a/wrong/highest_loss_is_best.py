# score: 21
# hint: the member with the highest loss copies
# The best member copies the worst.

# %% population
def population(member, config: dict, rates: list, num_rounds: int, folder: str) -> ray.tune.Tuner:
    """A tuner of one member for each of four rates, for so many rounds, kept below `folder`.

    - After each round but the last, when all members have done it, the one with the highest loss
      copies the one with the lowest, and goes on with twice or half of the copied rate.
    - Each member's last state is kept.
    """
    copying = ray.tune.schedulers.PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=1,
        quantile_fraction=0.25,
        hyperparam_mutations={"rate": ray.tune.loguniform(1e-6, 10)},
        resample_probability=0,
        perturbation_factors=(2.0, 0.5),
        synch=True,
    )
    return ray.tune.Tuner(
        member,
        param_space={**config, "rate": ray.tune.grid_search(rates)},
        tune_config=ray.tune.TuneConfig(
            scheduler=copying, metric="loss", mode="max", reuse_actors=True
        ),
        run_config=ray.tune.RunConfig(
            storage_path=folder,
            stop={"training_iteration": num_rounds},
            checkpoint_config=ray.tune.CheckpointConfig(checkpoint_at_end=True),
        ),
    )
