"""The Helm chart and the plain manifests: valid, consistent with themselves and with the service, and equal."""

import json
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
import yaml

from app.settings import Settings
from tests.deploy._kubernetes import (
    CHART,
    PLAIN,
    ROOT,
    TEMPLATES,
    Cluster,
    Object,
    assert_consistent,
    assert_restricted,
    assert_valid,
    container_of,
    environment_of,
    kinds,
    objects_of,
    of_kind,
    plain_objects,
    pod_of,
    rendered,
    run,
    settings_of,
    values_file,
    versions,
)
from tests.server import Server
from tests.waiting import eventually

VALUES = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
SCHEMA = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
DOCUMENT = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
# What the chart decides, and what is to be in a Secret.
DECIDED = {"root", "port", "api_keys", "api_keys_file"}
ALWAYS = {"Deployment", "Service"}
DEFAULTS = ALWAYS | {"ServiceAccount", "PersistentVolumeClaim", "PodDisruptionBudget", "NetworkPolicy"}
INGRESS_NAMESPACE = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress"}}}
EVERYTHING: Object = {
    "image": {"digest": "sha256:" + 64 * "a"},
    "imagePullSecrets": [{"name": "pull"}],
    "settings": {"workers": 2, "grace_seconds": 30, "cache_bytes": "256MiB"},
    "models": {"claim": {"storageClassName": "", "volumeName": "models", "size": "500Gi"}, "subPath": "gguf"},
    "apiKeys": {"existingSecret": "tensortap-keys"},
    "serviceAccount": {"annotations": {"example.org/a": "b"}},
    "service": {"type": "LoadBalancer", "port": 80, "annotations": {"example.org/a": "b"}},
    "ingress": {
        "enabled": True,
        "className": "nginx",
        "annotations": {"nginx.org/proxy-read-timeout": "60s"},
        "hosts": ["a.example.org", "*.example.net"],
        "tls": [{"secretName": "tls", "hosts": ["a.example.org"]}],
    },
    "autoscaling": {"enabled": True},
    "networkPolicy": {"from": [INGRESS_NAMESPACE, {"ipBlock": {"cidr": "192.0.2.0/24"}}]},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}, "keySecret": {"name": "scrape"}},
    "podAnnotations": {"example.org/a": "b"},
    "podLabels": {"example.org/a": "b"},
    "nodeSelector": {"kubernetes.io/os": "linux"},
    "tolerations": [{"key": "models", "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {}},
    "priorityClassName": "high",
    "supplementalGroups": [2000],
}
VARIANTS: dict[str, tuple[Object, set[str]]] = {
    "defaults": ({}, DEFAULTS),
    "everything": (EVERYTHING, DEFAULTS | {"Ingress", "HorizontalPodAutoscaler", "ServiceMonitor"}),
    "existing claim": ({"models": {"existingClaim": "weights"}}, DEFAULTS - {"PersistentVolumeClaim"}),
    "a volume of the network": (
        {"models": {"volume": {"nfs": {"server": "nfs.example.org", "path": "/models", "readOnly": True}}}},
        DEFAULTS - {"PersistentVolumeClaim"},
    ),
    "keys": ({"apiKeys": {"existingSecret": "tensortap-keys"}}, DEFAULTS),
    "little": (
        {
            "models": {"existingClaim": "weights"},
            "serviceAccount": {"create": False},
            "podDisruptionBudget": {"enabled": False},
            "networkPolicy": {"enabled": False},
            "resources": {"limits": {"cpu": None}},
        },
        ALWAYS,
    ),
}
CONTROLLERS = {
    "nginx": {"nginx.org/lb-method": "hash $uri consistent", "nginx.org/client-max-body-size": "16m"},
    "ingress-nginx": {
        "nginx.ingress.kubernetes.io/upstream-hash-by": "$uri",
        "nginx.ingress.kubernetes.io/proxy-body-size": "16m",
    },
    "haproxy": {"haproxy.org/backend-config-snippet": "balance uri path-only\nhash-type consistent\n"},
    "haproxy-ingress": {
        "haproxy-ingress.github.io/balance-algorithm": "uri path-only",
        "haproxy-ingress.github.io/config-backend": "hash-type consistent",
    },
    "other": {},
}
REFUSED: list[tuple[Object, str]] = [
    ({"replicas": 3}, "'replicas' not allowed"),
    ({"replicaCount": "3"}, "/replicaCount"),
    ({"image": {"tag": "a b"}}, "/image/tag"),
    ({"settings": {"wokers": 2}}, "'wokers' not allowed"),
    ({"settings": {"workers": 0}}, "/settings/workers"),
    ({"settings": {"cache_bytes": "much"}}, "/settings/cache_bytes"),
    ({"settings": {"cache_bytes": "5i"}}, "/settings/cache_bytes"),
    ({"settings": {"host": "127.0.0.1"}}, "/settings/host"),
    ({"settings": {"metrics": False}, "serviceMonitor": {"enabled": True}}, "settings.metrics: false"),
    ({"settings": {"log_format": "xml"}}, "/settings/log_format"),
    ({"settings": {"port": 9000}}, "'port' not allowed"),
    ({"settings": {"api_keys": "secret"}}, "'api_keys' not allowed"),
    ({"models": {"claim": {"accessModes": ["ReadMany"]}}}, "/models/claim/accessModes"),
    ({"models": {"claim": {"accessModes": ["ReadWriteOncePod"]}}}, "/models/claim/accessModes"),
    ({"models": {"claim": {"size": "100 GB"}}}, "/models/claim/size"),
    ({"nameOverride": "my.tap"}, "/nameOverride"),
    ({"fullnameOverride": "my.tensortap"}, "/fullnameOverride"),
    ({"fullnameOverride": "1tap"}, "/fullnameOverride"),
    ({"autoscaling": {"enabled": True, "minReplicas": 9, "maxReplicas": 2}}, "autoscaling.minReplicas (9)"),
    ({"podLabels": {"app.kubernetes.io/name": "x"}}, "'app.kubernetes.io/name'"),
    ({"serviceMonitor": {"labels": {"app.kubernetes.io/managed-by": "x"}}}, "'app.kubernetes.io/managed-by'"),
    ({"apiKeys": {"existingSecret": "Keys_1"}}, "/apiKeys/existingSecret"),
    ({"service": {"port": 0}}, "/service/port"),
    ({"ingress": {"controller": "traefik"}}, "/ingress/controller"),
    ({"ingress": {"annotations": {"a": 1}}}, "/ingress/annotations/a"),
    ({"ingress": {"hosts": []}}, "/ingress/hosts"),
    ({"networkPolicy": {"from": [{"namespace": "a"}]}}, "'namespace' not allowed"),
    ({"serviceMonitor": {"interval": "30 seconds"}}, "/serviceMonitor/interval"),
    ({"resources": {"limits": {"memory": "1 GB"}}}, "/resources/limits/memory"),
    ({"preStopSeconds": 0}, "/preStopSeconds"),
]


def test_the_default_values_fit_their_schema() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    jsonschema.Draft7Validator(SCHEMA).validate(VALUES)


def test_the_schema_names_every_value_and_no_other() -> None:
    def compare(values: Object, schema: Any, path: str) -> None:
        assert schema["additionalProperties"] is False, path
        assert values.keys() == schema["properties"].keys() - {"global"}, path
        for name, value in values.items():
            below = schema["properties"][name]
            if isinstance(value, dict) and "properties" in below and name != "settings":
                compare(value, below, f"{path}.{name}")

    compare(VALUES, SCHEMA, "")


def test_the_settings_in_the_schema_are_those_of_the_service() -> None:
    kept = ("type", "minimum", "maximum", "exclusiveMinimum", "enum", "minLength")
    expected = {
        name: {"$ref": "#/definitions/size"}
        if "anyOf" in field  # a number of bytes or a text like 512MiB
        else {word: field[word] for word in kept if word in field}
        for name, field in Settings.model_json_schema()["properties"].items()
        if name not in DECIDED
    }
    expected["host"] = {"type": "string", "enum": ["0.0.0.0", "::"]}  # the probes come to whatever address a pod has
    schema = SCHEMA["properties"]["settings"]
    assert schema["properties"] == expected
    assert schema["additionalProperties"] is False


@pytest.mark.parametrize(
    "text", ["5", "5b", "5 kB", "1.5Ki", "1.5KiB", ".5g", "2MIB", " 3tb ", "5i", "5ib", "5x", "-1", ""]
)
def test_a_size_that_the_schema_lets_through_is_one_for_the_service(text: str) -> None:
    fits = jsonschema.Draft7Validator({**SCHEMA, "$ref": "#/definitions/size"}).is_valid(text)
    try:
        Settings(cache_bytes=text)  # type: ignore[arg-type]
    except ValueError:
        assert not fits
    else:
        assert fits


def test_the_chart_has_the_version_of_the_project() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert (chart["version"], chart["appVersion"]) == (version, version)
    assert container_of(plain_objects())["image"] == f"tensortap:{version}"
    (image,) = yaml.safe_load((PLAIN / "kustomization.yaml").read_text(encoding="utf-8"))["images"]
    assert image["newTag"] == version


def test_the_plain_manifests_are_consistent_and_restricted() -> None:
    objects = plain_objects()
    assert set(kinds(objects)) == VARIANTS["everything"][1]
    assert_consistent(objects)
    assert_restricted(objects)


def test_the_pods_are_what_the_image_is() -> None:
    objects = plain_objects()
    user, group = (int(number) for number in re.findall(r"^USER (\d+):(\d+)$", DOCKERFILE, re.MULTILINE)[0])
    context = pod_of(objects)["securityContext"]
    assert (context["runAsUser"], context["runAsGroup"]) == (user, group)
    environment = environment_of(objects)
    for name in ("TENSORTAP_HOST", "TENSORTAP_PORT", "TENSORTAP_ROOT"):
        assert f"{name}={environment[name]}" in DOCKERFILE
    assert f"EXPOSE {environment['TENSORTAP_PORT']}\n" in DOCKERFILE
    mounts = {mount["name"]: mount["mountPath"] for mount in container_of(objects)["volumeMounts"]}
    assert mounts == {"models": environment["TENSORTAP_ROOT"], "tmp": "/tmp"}


def test_a_service_named_tensortap_does_not_become_a_setting() -> None:
    # Kubernetes would give every pod of the namespace TENSORTAP_PORT=tcp://….
    assert pod_of(plain_objects())["enableServiceLinks"] is False
    assert environment_of(plain_objects())["TENSORTAP_PORT"].isdigit()


def test_a_pod_has_time_for_its_last_answers() -> None:
    objects = plain_objects()
    sleep = container_of(objects)["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod_of(objects)["terminationGracePeriodSeconds"] > sleep + Settings.model_fields["grace_seconds"].default


def test_the_service_begins_with_these_settings_and_answers_the_probes(tmp_path: Path) -> None:
    shutil.copy(ROOT / "models" / "demo.gguf", tmp_path)
    objects = plain_objects()
    settings = {name: value for name, value in settings_of(objects).items() if name not in ("root", "port")}
    with Server(tmp_path, **settings) as server:
        container = container_of(objects)
        probes = [container[probe]["httpGet"]["path"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")]
        (endpoint,) = of_kind(objects, "ServiceMonitor")["spec"]["endpoints"]
        for path in (*probes, endpoint["path"]):
            assert server.client.get(path).status_code == 200
        assert server.client.get("/v1/models").json()["count"] == 1


def test_keys_of_a_secret_change_without_a_restart(tmp_path: Path) -> None:
    """Files of a mounted Secret are links through a link to a folder, which is what is replaced."""
    mount, models = tmp_path / "keys", tmp_path / "models"
    for folder in (mount, models):
        folder.mkdir()

    def write(version: str, key: str) -> None:
        (mount / version).mkdir()
        (mount / version / "keys.txt").write_text(f"# the team\n{key}\n")
        (mount / "..data_tmp").symlink_to(version)
        (mount / "..data_tmp").rename(mount / "..data")

    def status(server: Server, key: str) -> int:
        return httpx.get(f"{server.url}/v1/models", headers={"Authorization": f"Bearer {key}"}).status_code

    write("..1", "first-key")
    (mount / "keys.txt").symlink_to("..data/keys.txt")
    with Server(models, api_keys_file=mount / "keys.txt") as server:
        assert (status(server, "first-key"), status(server, "second-key")) == (200, 401)
        write("..2", "second-key")
        shutil.rmtree(mount / "..1")
        eventually(lambda: status(server, "second-key") == 200)
        assert status(server, "first-key") == 401


@pytest.mark.programs
@pytest.mark.parametrize("name", VARIANTS)
def test_the_chart_is_valid_and_consistent(name: str, tmp_path: Path) -> None:
    values, expected = VARIANTS[name]
    lint = run("helm", "lint", "--strict", CHART, "--values", values_file(values, tmp_path))
    assert "0 chart(s) failed" in lint.stdout
    objects = rendered(values, tmp_path)
    assert set(kinds(objects)) == expected
    assert_consistent(objects)
    assert len(versions()) >= 6
    for version in versions():
        assert_valid(objects, version)


@pytest.mark.programs
@pytest.mark.parametrize("name", [name for name in VARIANTS if name != "a volume of the network"])
def test_the_pods_are_restricted(name: str, tmp_path: Path) -> None:
    assert_restricted(rendered(VARIANTS[name][0], tmp_path))


@pytest.mark.programs
def test_what_is_not_valid_is_found(tmp_path: Path) -> None:
    cases: list[tuple[str, tuple[Any, ...], Any]] = [
        ("Deployment", ("spec", "template", "spec", "containers", 0, "readOnly"), True),
        ("HorizontalPodAutoscaler", ("spec", "minReplicas"), "two"),
        ("ServiceMonitor", ("spec", "endpoints", 0, "intervall"), "30s"),
        ("ServiceMonitor", ("spec", "endpoints", 0, "interval"), "30 seconds"),
    ]
    for kind, path, value in cases:
        thing = of_kind(rendered(EVERYTHING, tmp_path), kind)
        place: Any = thing
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value
        with pytest.raises(jsonschema.ValidationError):
            assert_valid([thing], versions()[-1])


@pytest.mark.programs
def test_keys_are_mounted_as_a_folder_and_named_to_the_service(tmp_path: Path) -> None:
    objects = rendered({"apiKeys": {"existingSecret": "some", "key": "team.txt"}}, tmp_path)
    (volume,) = (volume for volume in pod_of(objects)["volumes"] if volume["name"] == "keys")
    (mount,) = (mount for mount in container_of(objects)["volumeMounts"] if mount["name"] == "keys")
    assert volume["secret"]["secretName"] == "some"
    assert volume["secret"]["items"] == [{"key": "team.txt", "path": "team.txt"}]
    assert volume["secret"]["defaultMode"] == 0o444
    assert mount == {"name": "keys", "mountPath": "/keys", "readOnly": True}  # with a subPath, no change comes through
    assert environment_of(objects)["TENSORTAP_API_KEYS_FILE"] == "/keys/team.txt"


@pytest.mark.programs
@pytest.mark.parametrize("name", VARIANTS)
def test_the_models_are_mounted_read_only(name: str, tmp_path: Path) -> None:
    objects = rendered(VARIANTS[name][0], tmp_path)
    (volume,) = (volume for volume in pod_of(objects)["volumes"] if volume["name"] == "models")
    source = volume.get("persistentVolumeClaim") or volume["nfs"]
    assert source["readOnly"] is True
    assert container_of(objects)["volumeMounts"][0]["readOnly"] is True


@pytest.mark.programs
def test_settings_arrive_as_they_were_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: Object = {
        "workers": 3,
        "cache_bytes": 1 << 30,  # helm's own way to write this is 1.073741824e+09
        "json_limit": "1KiB",
        "answer_limit": 123_456_789_012,
        "recheck_seconds": 0.25,
        "metrics_open": True,
        "metrics": False,
        "grace_seconds": 100,
        "cache_control": 'private, max-age=60, ext="a: b"',
        "cors_origins": "https://example.org,http://localhost:3000",
    }
    objects = rendered({"settings": given}, tmp_path)
    for name, value in environment_of(objects).items():
        monkeypatch.setenv(name, value)
    settings = Settings()
    assert {name: getattr(settings, name) for name in given} == {**given, "json_limit": 1024}
    assert pod_of(objects)["terminationGracePeriodSeconds"] == VALUES["preStopSeconds"] + 100 + 5


@pytest.mark.programs
def test_the_address_to_listen_on_may_be_that_of_ipv6(tmp_path: Path) -> None:
    assert environment_of(rendered({}, tmp_path))["TENSORTAP_HOST"] == "0.0.0.0"
    assert environment_of(rendered({"settings": {"host": "::"}}, tmp_path))["TENSORTAP_HOST"] == "::"


@pytest.mark.programs
def test_switching_on_the_autoscaler_keeps_the_replicas_that_there_are(tmp_path: Path) -> None:
    """Without a number where there was one, Helm asks for null, which is one replica until the autoscaler looks."""
    values: Object = {"autoscaling": {"enabled": True}}
    objects = rendered(values, tmp_path)
    assert "replicas" not in of_kind(objects, "Deployment")["spec"]
    metadata = {
        "name": "tensortap",
        "labels": {"app.kubernetes.io/managed-by": "Helm"},
        "annotations": {"meta.helm.sh/release-name": "tensortap", "meta.helm.sh/release-namespace": "models"},
    }
    running = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": {"replicas": 5}}
    with Cluster(objects, ("/apis/apps/v1/namespaces/models/deployments/tensortap", running)) as cluster:
        assert of_kind(cluster.rendered(values, tmp_path), "Deployment")["spec"]["replicas"] == 5
        assert of_kind(cluster.rendered({}, tmp_path), "Deployment")["spec"]["replicas"] == VALUES["replicaCount"]
    with Cluster(objects) as cluster:
        assert "replicas" not in of_kind(cluster.rendered(values, tmp_path), "Deployment")["spec"]


@pytest.mark.programs
@pytest.mark.parametrize("controller", CONTROLLERS)
def test_an_ingress_tells_its_controller_to_hash_by_path(controller: str, tmp_path: Path) -> None:
    values = {"ingress": {"enabled": True, "controller": controller, "annotations": {"example.org/a": "b"}}}
    annotations = of_kind(rendered(values, tmp_path), "Ingress")["metadata"]["annotations"]
    assert annotations.items() >= {**CONTROLLERS[controller], "example.org/a": "b"}.items()
    assert len({name.split("/")[0] for name in annotations}) == (1 if controller == "other" else 2)


def test_every_controller_of_the_schema_is_tested() -> None:
    assert set(SCHEMA["properties"]["ingress"]["properties"]["controller"]["enum"]) == CONTROLLERS.keys()


@pytest.mark.programs
def test_an_annotation_of_the_values_takes_the_place_of_the_charts(tmp_path: Path) -> None:
    annotations = of_kind(rendered(EVERYTHING, tmp_path), "Ingress")["metadata"]["annotations"]
    assert annotations["nginx.org/proxy-read-timeout"] == "60s"
    assert annotations["nginx.org/proxy-send-timeout"] == "300s"


@pytest.mark.programs
@pytest.mark.parametrize(("values", "place"), REFUSED, ids=[place for _, place in REFUSED])
def test_wrong_values_are_refused_by_name(values: Object, place: str, tmp_path: Path) -> None:
    done = run("helm", "template", "tensortap", CHART, "--values", values_file(values, tmp_path), check=False)
    assert done.returncode != 0
    assert place in done.stderr


@pytest.mark.programs
@pytest.mark.parametrize("release", ["a", "my-tensortap", "x" * 53])
def test_two_releases_do_not_meet(release: str, tmp_path: Path) -> None:
    objects = rendered(EVERYTHING, tmp_path, release)
    assert_consistent(objects)
    assert_valid(objects, versions()[0])
    names = {(thing["kind"], thing["metadata"]["name"]) for thing in objects}
    assert not names & {(thing["kind"], thing["metadata"]["name"]) for thing in rendered(EVERYTHING, tmp_path)}
    assert all(len(name) <= 63 for kind, name in names if kind == "Service")


@pytest.mark.programs
@pytest.mark.parametrize("release", ["v1.2", "1tap"])
def test_a_release_whose_name_is_none_for_a_service_needs_another(release: str, tmp_path: Path) -> None:
    done = run("helm", "template", release, CHART, check=False)
    assert done.returncode != 0
    assert "set fullnameOverride" in done.stderr
    objects = rendered({"fullnameOverride": "weights"}, tmp_path, release)
    assert_consistent(objects)
    assert of_kind(objects, "Service")["metadata"]["name"] == "weights"


@pytest.mark.programs
def test_the_notes_warn_of_what_would_not_work(tmp_path: Path) -> None:
    def notes(values: Object) -> str:
        done = run("helm", "install", "tensortap", CHART, "--dry-run=client", "--values", values_file(values, tmp_path))
        return done.stdout.partition("\nNOTES:\n")[2]

    assert "No API keys" in notes({})
    assert "names no other namespace" not in notes({})
    walled_in = {"ingress": {"enabled": True}, "serviceMonitor": {"enabled": True}, **VARIANTS["keys"][0]}
    assert "names no other namespace" in notes(walled_in)
    assert "Prometheus needs a key" in notes(walled_in)
    assert "No API keys" not in notes(walled_in)
    assert "has no ipBlock" not in notes(walled_in)
    for kind in ("LoadBalancer", "NodePort"):
        outside: Object = {"service": {"type": kind}, "networkPolicy": {"from": [INGRESS_NAMESPACE]}}
        assert f"has no ipBlock: who comes from outside the cluster by the {kind}" in notes(outside)
        assert "has no ipBlock" not in notes({**outside, "networkPolicy": {"enabled": False}})
    text = notes(EVERYTHING)
    assert "port-forward service/tensortap 8000:80\n" in text
    assert "names no other namespace" not in text
    assert "has no ipBlock" not in text
    assert "needs a key" not in text


@pytest.mark.programs
def test_the_plain_manifests_are_what_the_chart_makes(tmp_path: Path) -> None:
    (command,) = re.findall(r"^helm template .* --output-dir deploy/kubernetes$", DOCUMENT, re.MULTILINE)
    run(*command.replace("--output-dir deploy/kubernetes", f"--output-dir {tmp_path}").split())
    made = {path.name: path.read_text() for path in (tmp_path / "tensortap" / "templates").iterdir()}
    assert made == {path.name: path.read_text() for path in TEMPLATES.iterdir()}


@pytest.mark.programs
@pytest.mark.parametrize("everything", [False, True])
def test_kustomize_builds_the_same_objects(tmp_path: Path, everything: bool) -> None:
    folder = tmp_path / "kubernetes"
    shutil.copytree(PLAIN, folder)
    text = (folder / "kustomization.yaml").read_text()
    if everything:
        text = text.replace("# - tensortap", "- tensortap")
        (folder / "kustomization.yaml").write_text(text)
    names = re.findall(r"^  - (tensortap/\S+)", text, re.MULTILINE)
    expected = [thing for name in names for thing in objects_of((PLAIN / name).read_text())]
    for thing in expected:
        thing["metadata"]["labels"]["app.kubernetes.io/managed-by"] = "kustomize"
    built = objects_of(run("kubectl", "kustomize", folder).stdout)
    assert by_name(built) == by_name(expected)
    assert len(built) == (9 if everything else 7)
    for version in versions():
        assert_valid(built, version)


def by_name(objects: list[Object]) -> dict[tuple[str, str], Object]:
    return {(thing["kind"], thing["metadata"]["name"]): thing for thing in objects}


@pytest.mark.programs
def test_the_documented_commands_and_objects_are_good(tmp_path: Path) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", DOCUMENT, re.DOTALL)
    objects = [thing for block in blocks for thing in objects_of(block)]
    assert len(objects) > 5
    for thing in objects:
        if "kind" not in thing:
            rendered(thing, tmp_path)
        elif not re.search(r"envoyproxy|kustomize", thing["apiVersion"]):
            assert_valid([thing], versions()[0])
    local = re.findall(r"^(?:helm template|helm lint|kubectl kustomize) .*$", DOCUMENT, re.MULTILINE)
    assert len(local) >= 3
    for command in local:
        run(*command.replace("--output-dir deploy/kubernetes", f"--output-dir {tmp_path}").split())
