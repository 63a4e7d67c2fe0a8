"""What `kubectl apply -k` sends to a cluster, held to the code, the images and the documents.

There is no cluster here. The manifests are put together, by `kubectl kustomize` where it is
installed, and validated against the schemas of Kubernetes' own API. What they say to start is
started as a process, with its arguments, environment and probes.
"""

from __future__ import annotations

import copy
import http.client
import importlib.util
import re
import shutil
import ssl
import subprocess
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

import genkidama
from genkidama.child import capacity, transport
from genkidama.child import child as child_module
from genkidama.config.experiment import Experiment
from genkidama.parent import parent as parent_module
from genkidama.parent.connections import ConnectionManager
from genkidama.protocol.tokens import parse_tokens
from genkidama.runtime import process
from tests.certificates import Authority, needs_openssl
from tests.helpers import ROOT, constant, history, starting, until

Manifest = dict[str, Any]

PLAIN, TLS = ROOT / "deploy/kubernetes", ROOT / "deploy/kubernetes/tls"
DOCUMENT = ROOT / "docs/notes/kubernetes.md"
TOKEN = "0123456789abcdef" * 2
#: The oldest and the newest version whose schemas are installed.
VERSIONS = [kubernetes_validate.utils.all_versions()[0], kubernetes_validate.latest_version()]

needs_kubectl = pytest.mark.skipif(
    shutil.which("kubectl") is None, reason="kubectl is not installed"
)
everywhere = pytest.mark.parametrize("folder", [PLAIN, TLS], ids=["plain", "tls"])


# Putting manifests together: the part of kustomize that ours use.


def kubectl(folder: Path) -> list[Manifest]:
    done = subprocess.run(
        ["kubectl", "kustomize", folder], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def assembled(folder: Path) -> list[Manifest]:
    """As `kubectl kustomize`, but for the hash in a ConfigMap's name and the order."""
    return copy.deepcopy(_assembled(folder))


@cache
def _assembled(folder: Path) -> list[Manifest]:
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text(encoding="utf-8"))
    assert set(kustomization) <= {
        "apiVersion",
        "kind",
        "resources",
        "configMapGenerator",
        "patches",
    }
    found: list[Manifest] = []
    for name in kustomization["resources"]:
        path = (folder / name).resolve()
        found += (
            assembled(path)
            if path.is_dir()
            else list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
        )
    for made in kustomization.get("configMapGenerator", []):
        data = {name: (folder / name).read_text(encoding="utf-8") for name in made["files"]}
        metadata = {"name": made["name"], **made.get("options", {})}
        found.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
    for patch in kustomization.get("patches", []):
        for operation in yaml.safe_load((folder / patch["path"]).read_text(encoding="utf-8")):
            change(one(found, patch["target"]["kind"], patch["target"]["name"]), operation)
    return found


def change(manifest: Any, operation: dict[str, Any]) -> None:
    """One operation of a JSON patch (RFC 6902)."""
    *path, last = operation["path"].removeprefix("/").split("/")
    for step in path:
        manifest = manifest[int(step) if isinstance(manifest, list) else step]
    key = len(manifest) if last == "-" else int(last) if isinstance(manifest, list) else last
    match operation["op"]:
        case "test":
            assert manifest[key] == operation["value"], operation
        case "add" if isinstance(manifest, list):
            manifest.insert(key, operation["value"])
        case "add" | "replace":
            manifest[key] = operation["value"]
        case other:
            pytest.fail(f"{other} is not needed so far")


def one(manifests: list[Manifest], kind: str, name: str) -> Manifest:
    (found,) = (
        each for each in manifests if each["kind"] == kind and each["metadata"]["name"] == name
    )
    return found


def pod(manifests: list[Manifest], role: str) -> Manifest:
    spec: Manifest = one(manifests, "Deployment", f"genkidama-{role}")["spec"]["template"]["spec"]
    return spec


def container(manifests: list[Manifest], role: str) -> Manifest:
    found: Manifest = pod(manifests, role)["containers"][0]
    assert found["name"] == role
    return found


def option(found: Manifest, name: str) -> str:
    (value,) = (each.partition("=")[2] for each in found["args"] if each.startswith(f"--{name}="))
    return str(value)


# Valid for Kubernetes.


@everywhere
@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_knows_every_field(folder: Path, version: str) -> None:
    for manifest in assembled(folder):
        kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_field_that_kubernetes_does_not_know_would_be_found(version: str) -> None:
    manifest = one(assembled(PLAIN), "Deployment", "genkidama-parent")
    manifest["spec"]["template"]["spec"]["containers"][0]["livenessProbe"]["httpGet"]["paht"] = "/"
    with pytest.raises(kubernetes_validate.ValidationError, match="paht"):
        kubernetes_validate.validate(manifest, version, strict=True)


def test_the_page_is_reached_where_the_parent_listens() -> None:
    """A ServiceMonitor is no part of Kubernetes' API: it is held to the Service that it names."""
    manifests = assembled(PLAIN)
    service = one(manifests, "Service", "genkidama-parent")
    names = [port["name"] for port in service["spec"]["ports"]]
    watch = {each["kind"]: each for each in assembled(PLAIN / "watch")}
    for kind in ("Ingress", "NetworkPolicy"):
        for version in VERSIONS:
            kubernetes_validate.validate(watch[kind], version, strict=True)
    monitor = watch["ServiceMonitor"]["spec"]
    assert monitor["selector"]["matchLabels"] == service["metadata"]["labels"]
    (endpoint,) = monitor["endpoints"]
    assert endpoint["port"] in names and endpoint["path"] == "/metrics"
    (rule,) = watch["Ingress"]["spec"]["rules"]
    (path,) = rule["http"]["paths"]
    backend = path["backend"]["service"]
    assert backend == {"name": service["metadata"]["name"], "port": {"name": names[0]}}
    ours = one(manifests, "NetworkPolicy", "genkidama-parent")["spec"]
    page = watch["NetworkPolicy"]["spec"]
    assert page["podSelector"] == ours["podSelector"]
    assert page["ingress"][0]["ports"] == ours["ingress"][0]["ports"]


@needs_kubectl
@everywhere
def test_kubectl_puts_the_same_together(folder: Path) -> None:
    rendered = kubectl(folder)
    (hashed,) = (each["metadata"]["name"] for each in rendered if each["kind"] == "ConfigMap")
    assert re.fullmatch(r"genkidama-parent-[a-z0-9]{10}", hashed)
    text = yaml.safe_dump_all(rendered).replace(hashed, "genkidama-parent")

    def key(manifest: Manifest) -> tuple[str, str]:
        return manifest["kind"], manifest["metadata"]["name"]

    assert sorted(yaml.safe_load_all(text), key=key) == sorted(assembled(folder), key=key)


@needs_kubectl
def test_the_documented_kustomizations_of_ones_own_can_be_built(tmp_path: Path) -> None:
    texts = re.findall(
        r"```yaml\n(# \S+/kustomization\.yaml.*?)```",
        DOCUMENT.read_text(encoding="utf-8"),
        re.DOTALL,
    )
    assert texts
    for number, text in enumerate(texts):
        folder = tmp_path / "checkout" / f"own{number}"
        folder.mkdir(parents=True)
        for name in ("parent", "child", "deploy"):
            if number == 0:
                shutil.copytree(
                    ROOT / name, folder.parent / name, ignore=shutil.ignore_patterns("ansible")
                )
        (folder / "kustomization.yaml").write_text(text, encoding="utf-8")
        (folder / "parent.toml").write_text('name = "own"\n', encoding="utf-8")
        manifests = kubectl(folder)
        for manifest in manifests:
            kubernetes_validate.validate(manifest, VERSIONS[-1], strict=True)
        (settings,) = (each for each in manifests if each["kind"] == "ConfigMap")
        assert settings["data"] == {"parent.toml": 'name = "own"\n'}
        images = {
            each["image"]
            for role in ("parent", "child")
            for each in pod(manifests, role)["containers"]
        }
        assert images == {
            f"registry.example/genkidama-{role}:{genkidama.__version__}"
            for role in ("parent", "child")
        }


# Held to what else there is.


@everywhere
def test_pods_ask_for_no_more_rights_than_the_restricted_standard_of_kubernetes_gives(
    folder: Path,
) -> None:
    manifests = assembled(folder)
    for role in ("parent", "child"):
        spec = pod(manifests, role)
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for each in spec["containers"]:
            rights = {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert each["securityContext"] == rights
            assert each["resources"]["requests"] and each["resources"]["limits"]["memory"]


@everywhere
def test_the_network_leads_from_children_to_the_parent_and_nowhere_else(folder: Path) -> None:
    manifests = assembled(folder)
    parent, child = (container(manifests, role) for role in ("parent", "child"))
    listen = Experiment.load(ROOT / "parent/parent.toml").parent.listen
    port = int(listen.rpartition(":")[2])
    assert option(parent, "listen") == listen
    assert parent["ports"] == [{"name": "parent", "containerPort": port}]
    service = one(manifests, "Service", "genkidama-parent")
    assert service["spec"]["ports"] == [{"name": "parent", "port": port, "targetPort": "parent"}]
    scheme = "wss" if folder is TLS else "ws"
    assert option(child, "parent") == f"{scheme}://{service['metadata']['name']}:{port}"
    deployments = {
        role: one(manifests, "Deployment", f"genkidama-{role}")["spec"]
        for role in ("parent", "child")
    }
    labels = {
        role: deployment["template"]["metadata"]["labels"]
        for role, deployment in deployments.items()
    }
    assert labels["parent"] != labels["child"]
    assert service["spec"]["selector"] == labels["parent"]
    assert one(manifests, "NetworkPolicy", "genkidama-parent")["spec"] == {
        "podSelector": {"matchLabels": labels["parent"]},
        "policyTypes": ["Ingress"],
        "ingress": [
            {
                "from": [{"podSelector": {"matchLabels": labels["child"]}}],
                "ports": [{"protocol": "TCP", "port": port}],
            }
        ],
    }
    assert one(manifests, "NetworkPolicy", "genkidama-child")["spec"] == {
        "podSelector": {"matchLabels": labels["child"]},
        "policyTypes": ["Ingress"],
    }
    assert all(
        deployment["selector"] == {"matchLabels": labels[role]}
        for role, deployment in deployments.items()
    )


def test_who_is_told_to_stop_has_the_time_that_the_code_takes_and_that_systemd_gives() -> None:
    takes = {
        "parent": ConnectionManager.close_seconds + parent_module.LEAVE_SECONDS,
        "child": child_module._LAST_REPLY_SECONDS
        + child_module._FAREWELL_SECONDS
        + process.GRACE_SECONDS,
    }
    for role, seconds in takes.items():
        grace = pod(assembled(PLAIN), role)["terminationGracePeriodSeconds"]
        assert grace >= 2 * seconds
        unit = (ROOT / role / f"genkidama-{role}.service").read_text(encoding="utf-8")
        assert f"\nTimeoutStopSec={grace}\n" in unit


def test_the_cores_of_a_child_fit_into_its_memory() -> None:
    resources = container(assembled(PLAIN), "child")["resources"]
    cores = int(resources["limits"]["cpu"])
    requested = int(resources["requests"]["memory"].removesuffix("Mi")) << 20
    assert resources["requests"]["cpu"] == resources["limits"]["cpu"]
    assert capacity.expected_cores(requested, cores) == cores


@everywhere
def test_the_environment_is_what_somebody_reads(folder: Path) -> None:
    for role in ("parent", "child"):
        found = container(assembled(folder), role)
        read = set(re.findall(r"\$\((\w+)\)", " ".join(found["args"]))) | (
            {transport.TOKEN_VARIABLE} if role == "child" else set()
        )
        assert {each["name"] for each in found.get("env", [])} == read


@everywhere
def test_what_is_mounted_is_there_and_what_is_named_is_mounted(folder: Path) -> None:
    manifests = assembled(folder)
    for role in ("parent", "child"):
        spec = pod(manifests, role)
        volumes = {each["name"]: each for each in spec["volumes"]}
        assert {
            each["name"] for found in spec["containers"] for each in found["volumeMounts"]
        } == set(volumes)
        mounted = {
            each["mountPath"]: each["name"] for each in container(manifests, role)["volumeMounts"]
        }
        assert mounted["/var/lib/genkidama"] == {"parent": "runs", "child": "state"}[role]
        if role == "parent":
            assert one(
                manifests,
                "PersistentVolumeClaim",
                volumes["runs"]["persistentVolumeClaim"]["claimName"],
            )
        named = set(
            re.findall(r"/etc/genkidama/(\S+)", " ".join(container(manifests, role)["args"]))
        )
        assert named == contents(volumes.get(mounted.get("/etc/genkidama", "")), manifests)


def contents(volume: Manifest | None, manifests: list[Manifest]) -> set[str]:
    """The names of the files of a volume that is made of settings and secrets."""
    sources = (
        volume["projected"]["sources"]
        if volume and "projected" in volume
        else [volume]
        if volume
        else []
    )
    names: set[str] = set()
    for source in sources:
        if "configMap" in source:
            names |= set(one(manifests, "ConfigMap", source["configMap"]["name"])["data"])
        else:
            names |= {item["path"] for item in source["secret"]["items"]}
    return names


@everywhere
def test_no_secret_is_part_of_it_and_the_documentation_says_how_each_is_made(folder: Path) -> None:
    manifests = assembled(folder)
    assert not [each for each in manifests if each["kind"] == "Secret"]
    environment = [
        each["valueFrom"].get("secretKeyRef") for each in container(manifests, "child")["env"]
    ]
    keys = {(secret["name"], secret["key"]) for secret in environment if secret}
    for volume in [*pod(manifests, "parent")["volumes"], *pod(manifests, "child")["volumes"]]:
        for source in [*volume.get("projected", {}).get("sources", []), volume]:
            if secret := source.get("secret"):
                keys |= {
                    (secret.get("name") or secret["secretName"], item["key"])
                    for item in secret["items"]
                }
    assert len(keys) == (5 if folder is TLS else 2)
    text = DOCUMENT.read_text(encoding="utf-8").replace("\\\n", "")
    for name, key in keys:
        assert re.search(
            rf"kubectl create secret generic {name} .*--from-(literal|file)={re.escape(key)}\b",
            text,
        ), (name, key)


def test_the_documentation_names_what_is_there() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    for path in re.findall(r"kubectl (?:apply|delete) -k ([\w./-]+\w)", text):
        assert (
            ROOT / path / "kustomization.yaml"
        ).exists() or f"# {path}/kustomization.yaml" in text, path
    manifests = assembled(TLS)
    for kind, name in re.findall(r"\b(deployment|service|pvc)/(genkidama-[a-z]+)", text):
        one(
            manifests,
            {"deployment": "Deployment", "service": "Service", "pvc": "PersistentVolumeClaim"}[
                kind
            ],
            name,
        )
    assert set(re.findall(r"-c (\w+) -- ", text)) <= {
        each["name"] for each in pod(manifests, "parent")["containers"]
    }


@pytest.mark.parametrize("role", ["parent", "child"])
def test_the_image_is_what_the_manifests_start(role: str) -> None:
    text = (ROOT / role / "Containerfile").read_text(encoding="utf-8")
    manifests = assembled(PLAIN)
    image = f"genkidama-{role}:{genkidama.__version__}"
    assert {each["image"] for each in pod(manifests, role)["containers"]} == {image}
    assert f"-t docker.io/library/{image} ." in text
    assert f"-t docker.io/library/{image} ." in DOCUMENT.read_text(encoding="utf-8")
    (module,) = re.findall(r'ENTRYPOINT \["/opt/genkidama/venv/bin/python", "-m", "(.+)"\]', text)
    assert importlib.util.find_spec(f"{module}.__main__") and module == f"genkidama.{role}"
    security = pod(manifests, role)["securityContext"]
    assert f"\nUSER {security['runAsUser']}:{security['runAsGroup']}\n" in text
    assert (
        f"useradd --uid {security['runAsUser']} " in text
        and f"groupadd --gid {security['fsGroup']} " in text
    )
    for mount in container(manifests, role)["volumeMounts"]:
        assert (
            mount["name"] == "temporary"
            or f'"{mount["mountPath"]}"' in text.partition("VOLUME ")[2].splitlines()[0]
        )
    ports = [str(each["containerPort"]) for each in container(manifests, role).get("ports", [])]
    assert re.findall(r"^EXPOSE (\d+)$", text, re.MULTILINE) == ports
    context = {
        line.removeprefix("!")
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    copied = {
        name
        for line in re.findall(r"^COPY (?!--)(.+) \S+$", text, re.MULTILINE)
        for name in line.split()
    }
    assert copied <= context
    assert all((ROOT / name).exists() for name in context)


# Started.


@everywhere
@needs_openssl
def test_what_it_starts_answers_its_probes_and_exchanges_weights(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parent and child with the arguments and the environment of the two containers.

    Paths and the parent's name are this machine's.
    """
    manifests = assembled(folder)
    parent, child = (container(manifests, role) for role in ("parent", "child"))
    settings, signed = (
        tmp_path / "settings",
        Authority(tmp_path / "authority").sign("DNS:localhost"),
    )
    settings.mkdir()
    text = one(manifests, "ConfigMap", "genkidama-parent")["data"]["parent.toml"]
    assert Experiment.from_dict(tomllib.loads(text)) == Experiment.load(ROOT / "parent/parent.toml")
    (settings / "parent.toml").write_text(constant().to_toml(), encoding="utf-8")
    (settings / "tokens").write_text(f"* {TOKEN}\n", encoding="utf-8")
    assert parse_tokens((settings / "tokens").read_text(), "tokens")
    for name, file in (
        ("tls.crt", signed.certificate),
        ("tls.key", signed.key),
        ("ca.crt", str(tmp_path / "authority/ca.pem")),
    ):
        shutil.copy(file, settings / name)

    def here(found: Manifest, **others: str) -> list[str]:
        texts = found["args"]
        for old, new in {
            "/etc/genkidama": str(settings),
            "/var/lib/genkidama": str(tmp_path / found["name"]),
            **others,
        }.items():
            texts = [each.replace(old, new) for each in texts]
        return texts

    with starting(tmp_path) as start:
        running = start("genkidama.parent", *here(parent, **{"0.0.0.0:8765": "127.0.0.1:0"}))
        line = until(
            lambda: re.search(r'"port": (\d+)', running.err) or running.popen.poll() is not None,
            "the parent listens",
        )
        assert line is not True, running.err
        port = int(line[1])
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            asked = parent[probe]["httpGet"]
            assert asked["port"] == parent["ports"][0]["name"]
            assert status(asked, port) == 200
        environment = {
            "POD_NAME": "genkidama-child-7d9f8b6c5d-abcde",
            "CORES": "1",
            transport.TOKEN_VARIABLE: TOKEN,
        }
        for each in child["env"]:
            monkeypatch.setenv(each["name"], environment[each["name"]])
        values = {f"$({name})": value for name, value in environment.items()}
        start(
            "genkidama.child",
            *here(child, **values, **{"genkidama-parent:8765": f"localhost:{port}"}),
            "--allow",
            "tests",
        )
        run = Path(option(parent, "out").replace("/var/lib/genkidama", str(tmp_path / "parent")))
        joined = until(lambda: history(run, "join"), "the child joins", 60.0)
        assert joined[0]["child"] == environment["POD_NAME"]
        until(lambda: history(run, "exchange"), "an exchange")


def status(asked: Manifest, port: int) -> int:
    """The status of what a kubelet asks, which takes any certificate."""
    if asked.get("scheme", "HTTP") == "HTTPS":
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            "127.0.0.1", port, timeout=10, context=context
        )
    else:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", asked["path"], headers={"User-Agent": "kube-probe/1.32"})
        return connection.getresponse().status
    finally:
        connection.close()
