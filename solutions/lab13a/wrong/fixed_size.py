# score: 24
# hint: Without it minReplicas and maxReplicas do nothing
# A cluster that neither grows nor shrinks.

# %% cluster_manifest
def cluster_manifest(name: str, image: str, gpus: int, fewest: int, most: int) -> str:
    """A RayCluster of KubeRay as YAML: a head, and one group of workers.

    - All pods run `image`; the head has no GPU, and no task or worker is placed on it.
    - Each worker has so many GPUs as its limit ("nvidia.com/gpu").
    - Ray's autoscaler keeps between `fewest` and `most` workers; the cluster begins with `fewest`.
    """
    head = {"name": "ray-head", "image": image}
    worker = {"name": "ray-worker", "image": image}
    worker["resources"] = {"limits": {"nvidia.com/gpu": gpus}}
    group = {
        "groupName": "workers",
        "replicas": fewest,
        "minReplicas": fewest,
        "maxReplicas": most,
        "rayStartParams": {},
        "template": {"spec": {"containers": [worker]}},
    }
    spec = {
        "headGroupSpec": {
            "rayStartParams": {"num-cpus": "0"},
            "template": {"spec": {"containers": [head]}},
        },
        "workerGroupSpecs": [group],
    }
    cluster = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": name}}
    return json.dumps({**cluster, "spec": spec}, indent=2)
