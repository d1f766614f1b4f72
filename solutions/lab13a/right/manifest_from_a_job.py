# The cluster of week 13's job, changed field by field; the explored range is a function.

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
        hyperparam_mutations={"rate": lambda: 0.1},
        resample_probability=0,
        perturbation_factors=(2.0, 0.5),
        synch=True,
    )
    return ray.tune.Tuner(
        member,
        param_space={**config, "rate": ray.tune.grid_search(rates)},
        tune_config=ray.tune.TuneConfig(
            scheduler=copying, metric="loss", mode="min", reuse_actors=True
        ),
        run_config=ray.tune.RunConfig(
            storage_path=folder,
            stop={"training_iteration": num_rounds},
            checkpoint_config=ray.tune.CheckpointConfig(checkpoint_at_end=True),
        ),
    )


# %% cluster_manifest
def cluster_manifest(name: str, image: str, gpus: int, fewest: int, most: int) -> str:
    """A RayCluster of KubeRay as YAML: a head, and one group of workers."""
    import yaml

    job = Job(name, image, ("train.py",), fewest, gpus)
    cluster = yaml.safe_load(manifests(job)["raycluster.yaml"])
    spec = cluster["spec"]
    spec["enableInTreeAutoscaling"] = True
    spec["workerGroupSpecs"][0] |= {"minReplicas": fewest, "maxReplicas": most}
    return yaml.safe_dump(cluster, sort_keys=False)
