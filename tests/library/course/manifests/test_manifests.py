"""One job for every scheduler: what its manifests say, and the sentences by which broken ones are refused."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from worldsize.course.manifests import Job, Storage, check, explain, manifests, schema
from worldsize.units import HOUR, TB

JOB = Job(
    name="llama",
    image="registry.example.org/llama:1",
    command=("train.py", "--steps", "1000"),
    num_nodes=4,
    gpus_per_node=8,
    max_restarts=3,
    storage=Storage(2 * TB),
    topology="example.org/rack",
    time_limit_s=8 * HOUR,
)
FILES = manifests(JOB)
VARIANTS = {
    "as it is": JOB,
    "one node": replace(JOB, num_nodes=1),
    "without GPUs": replace(JOB, gpus_per_node=0),
    "anywhere": replace(JOB, topology=""),
    "never again": replace(JOB, max_restarts=0),
}
# for each file: what is replaced by what, and what the sentence must say
BROKEN = [
    (
        "storage.yaml",
        "  - ReadWriteMany",
        "  - ReadWriteAll",
        "spec.accessModes[0]: it is 'ReadWriteAll'; it must be one",
    ),
    ("storage.yaml", "storage: 2000G", "storage: 2 TB", "such as 16G, 500Gi or 500m"),
    (
        "storage.yaml",
        "provisioner: nfs.csi.k8s.io\n",
        "",
        "'provisioner' is missing: the driver that makes the volumes",
    ),
    (
        "storage.yaml",
        "storageClassName: checkpoints",
        "storageClassName: fast",
        "no StorageClass 'fast' here, but checkpoints",
    ),
    ("pytorchjob.yaml", "nprocPerNode: '8'", "nprocPerNode: 8", "spec.nprocPerNode: it is 8; it must be text"),
    ("pytorchjob.yaml", "  runPolicy:\n", "  cleanPodPolicy: All\n  runPolicy:\n", "it belongs in spec.runPolicy"),
    ("pytorchjob.yaml", "    Master:", "    Chief:", "there is no field 'Chief' here; there are Master, Worker"),
    (
        "pytorchjob.yaml",
        "kubeflow.org/v1\n",
        "kubeflow.org/v1beta2\n",
        "it is 'kubeflow.org/v1beta2'; only a PyTorchJob of",
    ),
    (
        "trainjob.yaml",
        "torch: {}",
        "torch: {numProcPerNode: auto}",
        "removed in Kubeflow Trainer 2.2 (#3239); set spec.trainer",
    ),
    ("trainjob.yaml", "torch: {}", "torch: {elasticPolicy: {minNodes: 2}}", "removed in Kubeflow Trainer 2.2 (#3235)"),
    (
        "trainjob.yaml",
        "  trainer:\n",
        "  podTemplateOverrides: []\n  trainer:\n",
        "replaced it by runtimePatches (#3309)",
    ),
    (
        "trainjob.yaml",
        "    numNodes: 4\n    numProc",
        "    numNodes: four\n    numProc",
        "spec.trainer.numNodes: it is 'four'; it must",
    ),
    (
        "trainjob.yaml",
        "    name: llama-runtime\n  active",
        "    name: lama\n  active",
        "no TrainingRuntime 'lama' here, but llama-runtime",
    ),
    (
        "jobset.yaml",
        "maxRestarts: 3",
        "maxRestart: 3",
        "spec.failurePolicy: there is no field 'maxRestart' here; did you mean",
    ),
    ("jobset.yaml", "AndIgnoreMaxRestarts", "AndForget", "it must be one of FailJobSet, RestartJobSet,"),
    (
        "jobset.yaml",
        "  replicas: 1",
        "  replicas: -1",
        "spec.replicatedJobs[0].replicas: it is -1; it must be at least 0",
    ),
    ("jobset.yaml", "nvidia.com/gpu: 8", "nvdia.com/gpu: 8", "did you mean 'nvidia.com/gpu'?"),
    (
        "jobset.yaml",
        "- name: shared-memory\n                mountPath",
        "- name: shm\n                mountPath",
        "no volume 'shm'",
    ),
    ("raycluster.yaml", "num-cpus: '0'", "num-cpus: 0", "rayStartParams.num-cpus: it is 0; it must be text"),
    (
        "raycluster.yaml",
        "groupName: workers",
        "name: workers",
        "'groupName' is missing: the name, which is also a label",
    ),
    ("rayjob.yaml", "backoffLimit: 3", "maxRetries: 3", "spec: there is no field 'maxRetries' here"),
    (
        "rayjob.yaml",
        "ray.io/v1\n",
        "ray.io/v1alpha1\n",
        "it is 'ray.io/v1alpha1'; only a RayJob of ray.io/v1 can be checked",
    ),
    ("kueue.yaml", "nominalQuota: 32", "nominalQouta: 32", "did you mean 'nominalQuota'?"),
    (
        "kueue.yaml",
        "  queueingStrategy:",
        "  cohort: all\n  queueingStrategy:",
        "kueue.x-k8s.io/v1beta2 calls it cohortName",
    ),
    ("kueue.yaml", "clusterQueue: research", "clusterQueue: reserch", "no ClusterQueue 'reserch' here, but research"),
    ("kueue.yaml", "topologyName: network", "topologyName: rack", "there is no Topology 'rack' here, but network"),
    (
        "volcano.yaml",
        "minAvailable: 4",
        "minAvailable: all",
        "spec.minAvailable: it is 'all'; it must be a whole number",
    ),
    ("volcano.yaml", "event: PodFailed", "event: PodFail", "did you mean PodFailed?"),
    ("volcano.yaml", "weight: 1", "weight: 0", "Queue research: spec.weight: it is 0; it must be at least 1"),
    ("slurm.sbatch", "--requeue\n", "--requeu\n", "there is no field 'requeu' here; did you mean 'requeue'?"),
    ("slurm.sbatch", "#SBATCH --open-mode=append\n", "", "'requeue' needs 'open-mode' beside it"),
    ("slurm.sbatch", "--time=0-08:00:00", "--time=8h", "it must be minutes, hours:minutes:seconds or days-hours"),
    ("slurm.sbatch", "\nset -u\n", "\nset -u\n#SBATCH --exclusive\n", "Slurm reads no option after the first command"),
    ("slurm.sbatch", "#SBATCH --nodes=4", "#SBATCH -N 4", "write the option as #SBATCH --name=value"),
]
CRD = """\
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: jobsets.jobset.x-k8s.io}
spec:
  group: jobset.x-k8s.io
  names: {kind: JobSet}
  versions:
  - name: v1alpha2
    schema:
      openAPIV3Schema:
        type: object
        properties:
          apiVersion: {type: string}
          kind: {type: string}
          metadata: {type: object}
          spec:
            type: object
            properties:
              network:
                type: object
                x-kubernetes-preserve-unknown-fields: true
                properties: {subdomain: {type: string}}
              suspend: {type: boolean, nullable: true}
              limit: {x-kubernetes-int-or-string: true, anyOf: [{type: integer}, {type: string}]}
              onlyInTheFullDefinition: {type: string}
"""


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", FILES)
def test_every_file_is_accepted(name: str, variant: str) -> None:
    assert check(manifests(VARIANTS[variant])[name]) == []


@pytest.mark.parametrize(("name", "right", "wrong", "sentence"), BROKEN)
def test_a_broken_file_is_refused_in_a_sentence(name: str, right: str, wrong: str, sentence: str) -> None:
    assert right in FILES[name]
    mistakes = check(FILES[name].replace(right, wrong, 1))
    assert any(sentence in str(mistake) for mistake in mistakes), [str(mistake) for mistake in mistakes]
    assert len(mistakes) <= 2, [str(mistake) for mistake in mistakes]


def test_every_kind_has_a_file_that_is_refused() -> None:
    kinds = {
        document["kind"] for name in FILES if name.endswith("yaml") for document in yaml.safe_load_all(FILES[name])
    }
    broken = {name: FILES[name] for name, *_ in BROKEN}
    assert set(broken) == set(FILES)
    assert kinds | {"ClusterTrainingRuntime"} == {kind for api, kind in schema.ours() if api}


def test_all_files_say_the_same_of_the_job() -> None:
    documents = {}
    for name, text in FILES.items():
        if name.endswith("yaml"):
            documents.update({one["kind"]: one["spec"] for one in yaml.safe_load_all(text) if "spec" in one})
    torch = documents["PyTorchJob"]["pytorchReplicaSpecs"]
    ray = documents["RayJob"]["rayClusterSpec"]["workerGroupSpecs"][0]
    set_ = documents["JobSet"]["replicatedJobs"][0]["template"]["spec"]
    num_nodes = [
        sum(role["replicas"] for role in torch.values()),
        documents["TrainJob"]["trainer"]["numNodes"],
        set_["parallelism"],
        set_["completions"],
        ray["replicas"],
        documents["Job"]["minAvailable"],
        sum(task["replicas"] for task in documents["Job"]["tasks"]),
    ]
    assert set(num_nodes) == {4} and "--nodes=4\n" in FILES["slurm.sbatch"]
    restarts = [
        documents["PyTorchJob"]["runPolicy"]["backoffLimit"],
        documents["TrainingRuntime"]["template"]["spec"]["failurePolicy"]["maxRestarts"],
        documents["JobSet"]["failurePolicy"]["maxRestarts"],
        documents["RayJob"]["backoffLimit"],
        documents["Job"]["maxRetry"],
    ]
    assert set(restarts) == {3} and "--array=0-3%1\n" in FILES["slurm.sbatch"]  # the first run and three more
    for name, text in FILES.items():
        assert ("example.org/rack" in text) is (name not in ("storage.yaml", "volcano.yaml", "slurm.sbatch")), name
    assert documents["Job"]["networkTopology"]["mode"] == "hard" and "--switches=1" in FILES["slurm.sbatch"]


def test_the_quota_covers_what_the_pods_ask_for() -> None:
    for job in (JOB, VARIANTS["without GPUs"]):
        files = manifests(job)
        queue = next(one for one in yaml.safe_load_all(files["kueue.yaml"]) if one["kind"] == "ClusterQueue")
        (group,) = queue["spec"]["resourceGroups"]
        for name in ("pytorchjob", "trainjob", "jobset", "raycluster", "rayjob"):
            asked = {
                resource for amounts in _amounts([*yaml.safe_load_all(files[f"{name}.yaml"])]) for resource in amounts
            }
            assert asked <= set(group["coveredResources"]), name


@pytest.mark.parametrize(
    ("variant", "quota"),
    [  # Ray's head, and for each node its GPUs or one core
        ("as it is", {"cpu": 2, "memory": "8G", "nvidia.com/gpu": 32}),
        ("without GPUs", {"cpu": 6, "memory": "8G"}),
    ],
)
def test_the_quota_is_what_the_job_needs(variant: str, quota: dict) -> None:
    text = manifests(VARIANTS[variant])["kueue.yaml"]
    queue = next(one for one in yaml.safe_load_all(text) if one["kind"] == "ClusterQueue")
    (flavor,) = queue["spec"]["resourceGroups"][0]["flavors"]
    assert {one["name"]: one["nominalQuota"] for one in flavor["resources"]} == quota


def _amounts(value):
    if isinstance(value, dict):
        yield from (one for key, one in value.items() if key in ("limits", "requests"))
        value = list(value.values())
    for one in value if isinstance(value, list) else []:
        yield from _amounts(one)


def test_bash_reads_the_batch_script_and_arguments_keep_their_spaces() -> None:
    text = manifests(replace(JOB, command=("train.py", "--note", "two words; $HOME")))["slurm.sbatch"]
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    assert "train.py --note 'two words; $HOME'" in text


def test_the_batch_script_takes_whole_nodes_and_is_warned_before_the_time_is_up() -> None:
    lines = FILES["slurm.sbatch"].splitlines()
    assert {"#SBATCH --exclusive", "#SBATCH --mem=0", "#SBATCH --signal=USR1@120"} <= set(lines)


PODS = {"pytorchjob": 2, "trainjob": 1, "jobset": 1, "raycluster": 2, "rayjob": 2, "volcano": 2}  # in each file


def _with(key: str, value) -> list[dict]:
    """The objects, at any depth, that have this field."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [value] * (isinstance(value, dict) and key in value) + [found for one in inner for found in _with(key, one)]


@pytest.mark.parametrize("save_time_s", [120, 300])
def test_every_pod_has_the_time_of_a_save_between_the_signal_and_its_end(save_time_s: int) -> None:
    files = manifests(replace(JOB, save_time_s=save_time_s) if save_time_s != 120 else JOB)
    assert f"#SBATCH --signal=USR1@{save_time_s}\n" in files["slurm.sbatch"]
    pods = {}
    for name, text in files.items():
        if name.endswith("yaml"):
            pods[name] = _with("containers", [*yaml.safe_load_all(text)])
            assert check(text) == []
    assert {name: len(found) for name, found in pods.items() if found} == {f"{one}.yaml": PODS[one] for one in PODS}
    assert {pod.get("terminationGracePeriodSeconds") for found in pods.values() for pod in found} == {save_time_s}


@pytest.mark.parametrize("name", [*PODS])
def test_torchrun_waits_for_a_save_as_long_as_the_pod_does(name: str) -> None:
    started = _with("command", [*yaml.safe_load_all(FILES[f"{name}.yaml"])])
    assert (started == []) is name.startswith("ray"), "a pod of Ray starts no torchrun"
    for container in started:
        assert container["command"][0] == "torchrun"
        assert {"name": "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "value": "120"} in container["env"]


@pytest.mark.parametrize("name", [*PODS])
def test_every_pod_knows_its_node_as_the_exporter_of_its_gpus_does(name: str) -> None:
    for pod in _with("containers", [*yaml.safe_load_all(FILES[f"{name}.yaml"])]):
        (container,) = pod["containers"]
        assert {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}} in container["env"]


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"name": "Llama_3"}, "name is 'Llama_3'; it must be at most 40 lower-case"),
        ({"queue": ""}, "queue is ''"),
        ({"image": "a b"}, "name a container image"),
        ({"command": "train.py"}, "one by one, such as"),
        ({"command": ()}, "one by one, such as"),
        ({"num_nodes": 0}, "num_nodes is 0; it must be a whole number, 1 or more"),
        ({"gpus_per_node": 7.5}, "gpus_per_node is 7.5"),
        ({"max_restarts": -1}, "max_restarts is -1; it must be a whole number, 0 or more"),
        ({"time_limit_s": 5}, "give at least 60 s"),
        ({"save_time_s": 0}, "save_time_s is 0; it must be 1 to 65535 s, the most that Slurm's --signal takes"),
        ({"save_time_s": 1e6}, "save_time_s is 1000000.0"),
        ({"topology": "a rack"}, "it must be a label of nodes"),
    ],
)
def test_a_description_that_no_scheduler_takes_is_refused(changed: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence.replace("(", r"\(")):
        replace(JOB, **changed)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [({"size_bytes": 0}, "more than 0"), ({"path": "here"}, "absolute path"), ({"class_name": "A b"}, "class_name is")],
)
def test_a_storage_that_cannot_be_is_refused(changed: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Storage(**changed)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "the text contains no document"),
        ("- a\n- b", "a document must have named fields"),
        ("a: [", "this is not YAML"),
        ("kind: JobSet\nkind: Job\n", "'kind' is given twice; keep one of them"),
        ("apiVersion: v1\nkind: Pod\nmetadata: {name: p}\n", "there is no schema for Pod; save its CRD and pass crds="),
        ("metadata: {name: p}\n", "no schema for a document without a kind"),
        ("#!/bin/bash\ntrue\n", "'nodes' is missing: how many nodes"),
    ],
)
def test_what_is_not_a_manifest_is_refused(text: str, sentence: str) -> None:
    assert any(sentence in str(mistake) for mistake in check(text))


def test_every_field_that_is_written_is_explained_once() -> None:
    rows = explain(FILES["jobset.yaml"])
    assert len({row["field"] for row in rows}) == len(rows) > 30
    (restarts,) = [row for row in rows if row["field"] == "spec.failurePolicy.maxRestarts"]
    assert restarts == {
        "kind": "JobSet",
        "field": "spec.failurePolicy.maxRestarts",
        "value": "3",
        "what it does": "How often the whole set is made anew.",
    }
    assert {row["field"] for row in explain(FILES["slurm.sbatch"])} >= {"array", "requeue", "open-mode", "switches"}
    assert {row["kind"] for row in explain(FILES["trainjob.yaml"])} == {"TrainingRuntime", "TrainJob"}


@pytest.mark.parametrize("name", FILES)
def test_no_value_is_written_that_is_not_explained(name: str) -> None:
    fields = [row["field"] for row in explain(FILES[name])]
    if name.endswith("yaml"):
        written = {key for one in yaml.safe_load_all(FILES[name]) for key in _leaves(one)}
    else:
        written = {
            line.split("=")[0].removeprefix("#SBATCH --") for line in FILES[name].splitlines() if "#SBATCH" in line
        }
    silent = {key for key in written if not any(f".{field}".endswith(f".{key}") for field in fields)}
    assert written and silent <= {"kind"}


def _leaves(value):
    """The names of the fields whose value is a text or a number."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        if isinstance(one, dict | list):
            is_free = key in (
                "labels",
                "annotations",
                "matchLabels",
                "nodeLabels",
                "parameters",
                "rayStartParams",
                "plugins",
            )
            yield from () if is_free else _leaves(one)
        elif isinstance(key, str):
            yield key


@pytest.fixture
def crds(tmp_path: Path) -> Path:
    (tmp_path / "jobset.yaml").write_text(CRD)
    return tmp_path


def a_set(spec: str) -> str:
    return f"apiVersion: jobset.x-k8s.io/v1alpha2\nkind: JobSet\nmetadata: {{name: a}}\nspec: {spec}\n"


def test_a_full_definition_takes_the_place_of_ours(crds: Path) -> None:
    spec = "{onlyInTheFullDefinition: yes it is, suspend: null, limit: 5, network: {anything: 1}}"
    assert check(a_set(spec), crds) == []
    assert len(check(a_set(spec))) > 1
    (mistake,) = check(a_set("{replicatedJobs: []}"), crds)
    assert mistake.where == "spec" and "there is no field 'replicatedJobs' here" in mistake.what
    (mistake,) = check(a_set("{limit: []}"), crds)
    assert str(mistake) == "JobSet a: spec.limit: it is a list; it must be a whole number or text"
    assert check(FILES["kueue.yaml"], crds) == []  # a kind that the folder does not define


def test_a_list_of_definitions_is_read_as_kubectl_prints_it(crds: Path) -> None:
    whole = {"apiVersion": "v1", "kind": "List", "items": [yaml.safe_load(CRD)]}
    (crds / "jobset.yaml").write_text(yaml.safe_dump(whole))
    assert check(a_set("{suspend: true}"), crds) == []


@pytest.mark.parametrize(
    ("versions", "reason"),
    [("[{name: v1}]", "lacks 'schema'"), ("[v1]", "is malformed"), ("3", "is malformed")],
)
def test_a_definition_without_a_schema_is_named(tmp_path: Path, versions, reason) -> None:
    (tmp_path / "a.yaml").write_text(
        f"kind: CustomResourceDefinition\nspec:\n  group: g\n  names: {{kind: K}}\n  versions: {versions}\n"
    )
    with pytest.raises(ValueError, match=rf"a\.yaml: a CustomResourceDefinition {reason}"):
        check(FILES["jobset.yaml"], tmp_path)


def test_a_folder_without_definitions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no CustomResourceDefinition"):
        check(FILES["jobset.yaml"], tmp_path)


def test_without_jsonschema_the_error_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    with pytest.raises(RuntimeError, match="pip install jsonschema"):
        check(FILES["jobset.yaml"])
    assert explain(FILES["jobset.yaml"]), "which needs no schema checker"
