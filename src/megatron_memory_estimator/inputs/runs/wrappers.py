"""YAML files that start a run elsewhere: jobs of Kubernetes and tasks of SkyPilot, as the script that their containers run.

The script exports what the file and its controller set, writes the files of ConfigMaps that are mounted, and runs the command; the
shell's reader does the rest. GPUs are replicas times the limits of a container.

Sources: Kubernetes, "Define a Command and Arguments for a Container" and the API of core/v1, batch/v1, apps/v1; kubeflow/training-operator
`pkg/apis/kubeflow.org/v1/` (PyTorchJob, MPIJob), `pkg/controller.v1/pytorch/envvar.go`; ray-project/kuberay `apis/ray/v1/rayjob_types.go`;
kubernetes-sigs/jobset `api/jobset/v1alpha2/`; skypilot-org/skypilot, "Task YAML" and "Environment variables"; helm/helm, "Templates".
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ...errors import ConfigError
from ...wording import plain, whole

KUBERNETES = re.compile(r"(?m)^apiVersion:\s*\S")
SKYPILOT = re.compile(r"(?ms)(?=.*^run:)(?=.*^(?:resources|num_nodes|setup|envs|file_mounts|workdir):)")
YAML_LINE = re.compile(r"---|\{\{|[A-Za-z_][\w-]*:(\s|$)")
"""How a YAML file begins, or a template of one."""
HELM = re.compile(
    r"\{\{-?\s*(?:\.(?:Values|Release|Chart|Files)\b|(?:include|if|range|with|toYaml|template|define)\b|\$)"
)
"""What a template of Helm holds."""
GPU = "/gpu"
"""The end of a resource's name that counts GPUs: nvidia.com/gpu, amd.com/gpu."""
BESIDE = ("ConfigMap", "Secret", "Service", "ServiceAccount", "PersistentVolume", "PersistentVolumeClaim", "Namespace", "StorageClass",
          "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding", "PodGroup", "NetworkPolicy", "Ingress", "ResourceClaimTemplate",
          "Queue", "LocalQueue", "ClusterQueue", "ResourceFlavor", "ComputeDomain")  # fmt: skip
"""Kinds of documents that start nothing."""
PORT = "23456"
REPLACED = re.compile(r"\$\$|\$\(([A-Za-z_.-][\w.-]*)\)")
"""What Kubernetes replaces in a command: $(NAME), and $$ for a dollar sign."""
NAME = re.compile(r"[A-Za-z_]\w*")
"""A variable that a shell can have."""
END = "END_OF_CONFIG_MAP"
Tree = Mapping[str, Any]


class Wrapped(NamedTuple):
    """A run out of a YAML file: what kind of file it is, the script, and the GPUs that the file asks for."""

    kind: str
    script: str
    num_gpus: int | None


class Pods(NamedTuple):
    """Pods that are alike: how many, what they are made of, and their GPUs; without a number where it is not a count."""

    spec: Tree
    number: int | None
    container: Tree
    gpus: int | None


def is_wrapped(text: str) -> bool:
    """Whether a text is a job of Kubernetes, a template of one, or a task of SkyPilot."""
    begins = next((line for line in text.splitlines() if line.strip() and not line.startswith("#")), "")
    if text.startswith("#!") or YAML_LINE.match(begins) is None:
        return False
    return KUBERNETES.search(text) is not None or SKYPILOT.match(text) is not None


def wrapped(text: str, path: str, variables: Mapping[str, str]) -> Wrapped | None:
    """The run of a YAML text; None where it is none. `variables` are the caller's, which win.

    Raises ConfigError for a template of Helm, for kinds that are not read, and where several jobs train.
    """
    if KUBERNETES.search(text) and HELM.search(text):
        raise ConfigError(
            f"{path} is a template of Helm, which values.yaml beside templates/ fills in (its GPUs are a value such as workload.gpus); "
            "give the YAML that `helm template` prints"
        )
    from ..strict_yaml import parse_documents

    documents = [one for one in parse_documents(text, path, []) if isinstance(one, Mapping)]
    if KUBERNETES.search(text) is None:
        tasks = [one for one in documents if isinstance(one.get("run"), str)]
        return _of_skypilot(tasks, path, variables) if tasks else None
    jobs = [one for one in documents if "kind" in one and one["kind"] not in BESIDE]
    unread = next(
        (one["kind"] for one in jobs if one["kind"] not in KINDS or "volcano" in str(one.get("apiVersion"))), None
    )
    if unread is not None:
        raise ConfigError(f"{path}: a {plain(str(unread), 60)} of this kind is not read; {', '.join(KINDS)} are")
    maps = {_name(one): _tree(one, "data") for one in documents if one.get("kind") == "ConfigMap"}
    found = [one for job in jobs if (one := KINDS[job["kind"]](job, maps, variables)) is not None]
    training = [one for one in found if one.num_gpus] or found
    if len(training) > 1:
        named = ", ".join(_name(job) or str(job["kind"]) for job in jobs)
        raise ConfigError(
            f"{path} holds {len(training)} jobs ({plain(named, 120)}); give a file with the one that trains"
        )
    if not training:
        raise ConfigError(f"{path} holds no job with a command of its own: what its image starts is not known")
    return training[0]


def _tree(tree: Any, *path: str) -> Tree:
    """The mapping at a path; an empty one where there is none."""
    for key in path:
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return tree if isinstance(tree, Mapping) else {}


def _list(tree: Any, key: str) -> list[Any]:
    """The list under a key; an empty one where there is none."""
    found = tree.get(key) if isinstance(tree, Mapping) else None
    return found if isinstance(found, list) else []


def _count(tree: Tree, key: str, default: int | None = 1) -> int | None:
    """The count under a key; None for what is none."""
    value = tree.get(key)
    return default if value is None else whole(str(value))


def _name(document: Tree) -> str:
    return str(_tree(document, "metadata").get("name") or "")


def _product(*counts: int | None) -> int | None:
    """The product of counts, where all are known."""
    found = 1
    for count in counts:
        if count is None:
            return None
        found *= count
    return found


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


# -- pods -----------------------------------------------------------------------------------------------------------------
def _pods(template: Tree, count: int | None) -> Pods:
    """The pods of a template: the container that has GPUs, else the first one."""
    spec = _tree(template, "spec")
    containers = [one for one in _list(spec, "containers") if isinstance(one, Mapping)]
    gpus = [_gpus(one) for one in containers]
    chosen = next(
        (one for one, number in zip(containers, gpus, strict=True) if number != 0), containers[0] if containers else {}
    )
    return Pods(spec, count, chosen, _product(count, _sum(gpus)) if count != 0 else 0)


def _gpus(container: Tree) -> int | None:
    """GPUs of a container by its limits, else its requests; None for what is no count."""
    for part in ("limits", "requests"):
        for key, value in _tree(container, "resources", part).items():
            if str(key).endswith(GPU):
                return whole(str(value))
    return 0


def _words(container: Tree) -> list[str]:
    return [str(word) for key in ("command", "args") for word in _list(container, key)]


def _script(pods: Pods, maps: Mapping[str, Tree], own: Mapping[str, str], variables: Mapping[str, str]) -> str:
    """The script of a container: its environment under that of its controller, `own`, files of ConfigMaps, and its command."""
    env = _environment(pods.container, maps, own, variables)
    files = "".join(_written(path, text) for path, text in _mounted(pods, maps))
    return f"{_exports(env)}{files}{' '.join(_quoted(word, env) for word in _words(pods.container))}\n"


def _environment(
    container: Tree, maps: Mapping[str, Tree], own: Mapping[str, str], variables: Mapping[str, str]
) -> dict[str, str | None]:
    """Variables of a container; None for those that come from somewhere else (valueFrom)."""
    env: dict[str, str | None] = dict(own)
    for one in _list(container, "envFrom"):
        source = maps.get(str(_tree(one, "configMapRef").get("name")), {})
        env |= {f"{one.get('prefix') or ''}{key}": str(value) for key, value in source.items()}
    for one in _list(container, "env"):
        if isinstance(one, Mapping) and one.get("name") is not None:
            value = one.get("value")
            found = _referred(one, maps) if "valueFrom" in one else _filled("" if value is None else str(value), env)
            env[str(one["name"])] = found
    return env | {name: value for name, value in variables.items() if name in env}


def _referred(entry: Tree, maps: Mapping[str, Tree]) -> str | None:
    """The value of a variable that a ConfigMap of the file holds."""
    reference = _tree(entry, "valueFrom", "configMapKeyRef")
    value = maps.get(str(reference.get("name")), {}).get(str(reference.get("key")))
    return None if value is None else str(value)


def _filled(text: str, env: Mapping[str, str | None]) -> str:
    """The text with $(NAME) replaced by the variables before it; others stay, as Kubernetes leaves them."""

    def value(match: re.Match[str]) -> str:
        found = env.get(match[1]) if match[1] else "$"
        return match[0] if found is None else found

    return REPLACED.sub(value, text)


def _quoted(word: str, env: Mapping[str, str | None]) -> str:
    """A word for the shell with $(NAME) replaced; what is not known stays a variable."""
    pieces = []
    at = 0
    for match in REPLACED.finditer(word):
        name = match[1]
        known = "$" if name is None else env.get(name, match[0])
        pieces += [shlex.quote(word[at : match.start()]) if match.start() > at else ""]
        pieces += [f'"${{{name}}}"' if known is None and NAME.fullmatch(name) else shlex.quote(known or match[0])]
        at = match.end()
    rest = shlex.quote(word[at:]) if word[at:] or not pieces else ""
    return "".join((*pieces, rest))


def _exports(env: Mapping[str, str | None]) -> str:
    """Lines that export variables; those that are not known are what nobody can read here."""
    lines = [
        f"export {name}={shlex.quote(value)}" if value is not None else f'export {name}="$(valueFrom {name})"'
        for name, value in env.items()
        if NAME.fullmatch(name)
    ]
    return "".join(f"{line}\n" for line in lines)


def _mounted(pods: Pods, maps: Mapping[str, Tree]) -> Iterator[tuple[str, str]]:
    """Files that ConfigMaps of the document hold, by the paths at which the container sees them."""
    volumes = {
        str(one.get("name")): _tree(one, "configMap") for one in _list(pods.spec, "volumes") if isinstance(one, Mapping)
    }
    for mount in _list(pods.container, "volumeMounts"):
        volume = volumes.get(str(_tree(mount).get("name")), {})
        names = {
            str(one.get("key")): str(one.get("path")) for one in _list(volume, "items") if isinstance(one, Mapping)
        }
        folder, own = str(_tree(mount).get("mountPath")).rstrip("/"), _tree(mount).get("subPath")
        for key, text in maps.get(str(volume.get("name")), {}).items():
            file = names.get(str(key), str(key))
            if own is None or str(own) == file:
                yield (folder if own is not None else f"{folder}/{file}"), str(text)


def _written(path: str, text: str) -> str:
    """Lines that write a file."""
    if any(line == END for line in text.splitlines()):
        return ""
    return f"cat > {shlex.quote(path)} <<'{END}'\n{text if text.endswith(chr(10)) else text + chr(10)}{END}\n"


# -- kinds ----------------------------------------------------------------------------------------------------------------
Maps = Mapping[str, Tree]
Variables = Mapping[str, str]


def _of_pytorch(job: Tree, maps: Maps, variables: Variables) -> Wrapped | None:
    """PyTorchJob: the master's command; its operator says how many pods there are."""
    specs = _tree(job, "spec", "pytorchReplicaSpecs")
    roles = {
        role: _pods(_tree(specs, role, "template"), _count(_tree(specs, role), "replicas"))
        for role in ("Master", "Worker")
        if role in specs
    }
    if not roles:
        return None
    first = roles.get("Master") or roles["Worker"]
    pods = _sum([one.number for one in roles.values()])
    each = _tree(job, "spec").get("nprocPerNode")
    own = {"RANK": "0", "MASTER_ADDR": f"{_name(job)}-master-0", "MASTER_PORT": PORT, "PET_NODE_RANK": "0"}
    own |= {"WORLD_SIZE": str(pods), "PET_NNODES": str(pods)} if pods is not None else {}
    own |= {"PET_NPROC_PER_NODE": str(each)} if each is not None else {}
    return _wrapped("PyTorchJob", first, _sum([one.gpus for one in roles.values()]), maps, own, variables)


def _of_mpi(job: Tree, maps: Maps, variables: Variables) -> Wrapped | None:
    """MPIJob: the launcher's command; workers with so many slots."""
    specs = _tree(job, "spec", "mpiReplicaSpecs")
    launcher = _pods(_tree(specs, "Launcher", "template"), 1)
    worker = _pods(_tree(specs, "Worker", "template"), _count(_tree(specs, "Worker"), "replicas"))
    slots = _tree(job, "spec").get("slotsPerWorker")
    gpus = worker.gpus if slots is None else _product(worker.number, whole(str(slots)))
    return _wrapped("MPIJob", launcher, gpus, maps, {}, variables)


def _of_ray(job: Tree, maps: Maps, variables: Variables) -> Wrapped | None:
    """RayJob: the entrypoint, and the GPUs of the head and of all workers."""
    from ..strict_yaml import parse_documents

    spec = _tree(job, "spec")
    if not isinstance(spec.get("entrypoint"), str):
        return None
    cluster = _tree(spec, "rayClusterSpec")
    head = _tree(cluster, "headGroupSpec")
    groups = [
        (head, 1),
        *((one, _count(one, "replicas")) for one in _list(cluster, "workerGroupSpecs") if isinstance(one, Mapping)),
    ]
    gpus = [_of_group(group, count) for group, count in groups]
    env = _environment(_pods(_tree(head, "template"), 1).container, maps, {}, variables)
    runtime = parse_documents(str(spec.get("runtimeEnvYAML") or ""), "runtimeEnvYAML", [])
    env |= {str(key): str(value) for key, value in _tree(runtime[0] if runtime else {}, "env_vars").items()}
    env |= {name: value for name, value in variables.items() if name in env}
    return Wrapped("RayJob", f"{_exports(env)}{spec['entrypoint']}\n", _sum(gpus))


def _of_group(group: Tree, count: int | None) -> int | None:
    """GPUs of a group of Ray: by the limits of its pods, else as its nodes are started with."""
    pods = _pods(_tree(group, "template"), count)
    started = _tree(group, "rayStartParams").get("num-gpus")
    return pods.gpus if pods.gpus != 0 or started is None else _product(count, whole(str(started)))


def _of_jobset(job: Tree, maps: Maps, variables: Variables) -> Wrapped | None:
    """JobSet: the first of its jobs that has GPUs; so many replicas of so many pods each."""
    found = []
    for one in _list(_tree(job, "spec"), "replicatedJobs"):
        spec = _tree(one, "template", "spec")
        count = _product(_count(_tree(one), "replicas"), _count(spec, "parallelism"))
        found.append(_pods(_tree(spec, "template"), count))
    with_gpus = [pods for pods in found if pods.gpus != 0] or found
    own = {"JOB_COMPLETION_INDEX": "0"}
    return (
        _wrapped("JobSet", with_gpus[0], _sum([pods.gpus for pods in found]), maps, own, variables) if found else None
    )


def _of_pods(kind: str) -> Callable[[Tree, Maps, Variables], Wrapped | None]:
    """Job, Deployment and StatefulSet: one template, and how often it runs."""

    def read(job: Tree, maps: Maps, variables: Variables) -> Wrapped | None:
        spec = _tree(job, "spec")
        count = _count(spec, "replicas") if kind != "Job" else _count(spec, "completions", _count(spec, "parallelism"))
        pods = _pods(_tree(spec, "template"), count)
        own = {"JOB_COMPLETION_INDEX": "0"} if spec.get("completionMode") == "Indexed" else {}
        return _wrapped(kind, pods, pods.gpus, maps, own, variables)

    return read


def _of_pod(job: Tree, maps: Maps, variables: Variables) -> Wrapped | None:
    pods = _pods(job, 1)
    return _wrapped("Pod", pods, pods.gpus, maps, {}, variables)


def _wrapped(
    kind: str, pods: Pods, gpus: int | None, maps: Maps, own: Mapping[str, str], variables: Variables
) -> Wrapped | None:
    """The run of pods; None where they have no command of their own."""
    return Wrapped(kind, _script(pods, maps, own, variables), gpus) if _words(pods.container) else None


KINDS: dict[str, Callable[[Tree, Maps, Variables], Wrapped | None]] = {
    "PyTorchJob": _of_pytorch,
    "MPIJob": _of_mpi,
    "RayJob": _of_ray,
    "JobSet": _of_jobset,
    "Job": _of_pods("Job"),
    "Deployment": _of_pods("Deployment"),
    "StatefulSet": _of_pods("StatefulSet"),
    "Pod": _of_pod,
}
"""Kinds of Kubernetes that run a training."""


# -- SkyPilot -------------------------------------------------------------------------------------------------------------
def _of_skypilot(tasks: Sequence[Tree], path: str, variables: Variables) -> Wrapped:
    """A task of SkyPilot: its run section, on so many nodes. Raises ConfigError for several tasks."""
    if len(tasks) > 1:
        raise ConfigError(f"{path} holds {len(tasks)} tasks of SkyPilot; give a file with the one that trains")
    task = tasks[0]
    nodes, each = _count(task, "num_nodes"), _accelerators(_tree(task, "resources"))
    given = {
        str(key): str(value)
        for part in ("envs", "secrets")
        for key, value in _tree(task, part).items()
        if value is not None
    }
    own = {"SKYPILOT_NODE_RANK": "0"}
    if nodes is not None and nodes <= MOST_NODES:
        own |= {"SKYPILOT_NUM_NODES": str(nodes), "SKYPILOT_NODE_IPS": "\n".join(f"node{at}" for at in range(nodes))}
    own |= {"SKYPILOT_NUM_GPUS_PER_NODE": str(each)} if each is not None else {}
    env = {**given, **own}
    env |= {name: value for name, value in variables.items() if name in env}
    return Wrapped("SkyPilot task", f"{_exports(env)}{task['run']}\n", _product(nodes, each))


MOST_NODES = 10_000


def _accelerators(resources: Tree) -> int | None:
    """GPUs of a node behind `accelerators: NAME:8`; None where they are not said, or where choices differ."""
    choices = [one for key in ("any_of", "ordered") for one in _list(resources, key) if isinstance(one, Mapping)] or [
        resources
    ]
    counts = {count for one in choices for count in _per_node(one.get("accelerators", resources.get("accelerators")))}
    return counts.pop() if len(counts) == 1 else None


def _per_node(value: Any) -> list[int | None]:
    if isinstance(value, Mapping):
        return [whole(str(count)) for count in value.values()]
    names = value if isinstance(value, list) else [value] if isinstance(value, str) else []
    return [whole(str(name).partition(":")[2] or "1") for name in names]
