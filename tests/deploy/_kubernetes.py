"""Objects of Kubernetes: read, rendered by helm and kubectl, and held against the published schemas."""

import functools
import importlib
import json
import subprocess
import threading
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import jsonschema
import yaml

from app.settings import ENV_PREFIX
from tests.programs.conftest import program

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "tensortap"
PLAIN = ROOT / "deploy" / "kubernetes"
TEMPLATES = PLAIN / "tensortap" / "templates"
OLDEST = (1, 30)  # the chart's kubeVersion

Object = dict[str, Any]


def _record(required: list[str], **properties: Object) -> Object:
    return {"type": "object", "additionalProperties": False, "required": required, "properties": properties}


_TEXT: Object = {"type": "string"}
_TEXTS: Object = {"type": "object", "additionalProperties": _TEXT}
_DURATION: Object = {"type": "string", "pattern": "^([0-9]+(y|w|d|h|m|s|ms))+$"}
_LABEL_NAME: Object = {"type": "string", "pattern": "^[a-zA-Z_][a-zA-Z0-9_]*$"}
# The fields that the chart uses, of those in the API reference of the Prometheus Operator (monitoring.coreos.com/v1):
# no package carries its resource definition as a schema that could be used here.
_MONITOR = _record(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "monitoring.coreos.com/v1"},
    kind={"const": "ServiceMonitor"},
    metadata=_record(["name"], name=_TEXT, labels=_TEXTS),
    spec=_record(
        ["selector", "endpoints"],
        selector=_record([], matchLabels=_TEXTS),
        endpoints={
            "type": "array",
            "items": _record(
                [],
                port=_TEXT,
                path=_TEXT,
                interval=_DURATION,
                scrapeTimeout=_DURATION,
                authorization=_record([], type=_TEXT, credentials=_record(["key"], name=_TEXT, key=_TEXT)),
                relabelings={
                    "type": "array",
                    "items": _record(
                        [],
                        sourceLabels={"type": "array", "items": _LABEL_NAME},
                        separator=_TEXT,
                        targetLabel=_LABEL_NAME,
                        replacement=_TEXT,
                    ),
                },
            ),
        },
    ),
)


def objects_of(text: str) -> list[Object]:
    """The objects of a stream of YAML documents."""
    return [document for document in yaml.safe_load_all(text) if document]


def plain_objects() -> list[Object]:
    """The committed manifests."""
    return [thing for path in sorted(TEMPLATES.iterdir()) for thing in objects_of(path.read_text(encoding="utf-8"))]


def run(name: str, *arguments: object, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a program in the root of the project."""
    command = [program(name), *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0 or not check, done.stderr
    return done


def values_file(values: Object, folder: Path) -> Path:
    """Values as a file for ``--values``."""
    path = folder / "values.yaml"
    path.write_text(json.dumps(values), encoding="utf-8")
    return path


def rendered(values: Object, folder: Path, release: str = "tensortap") -> list[Object]:
    """What the chart makes of these values."""
    return objects_of(run("helm", "template", release, CHART, "--values", values_file(values, folder)).stdout)


class Cluster:
    """As much of a cluster's API as helm reads before it changes anything: kinds, and some objects by their paths."""

    def __init__(self, kinds_of: Iterable[Object], *there: tuple[str, Object]) -> None:
        kinds: dict[str, set[str]] = {}
        for thing in kinds_of:
            kinds.setdefault(thing["apiVersion"], set()).add(thing["kind"])
        groups = [
            {"name": version.split("/")[0], "versions": [{"groupVersion": version, "version": version.split("/")[1]}]}
            for version in kinds
            if "/" in version
        ]
        self._answers: Object = {
            "/version": {"major": "1", "minor": str(OLDEST[1]), "gitVersion": f"v1.{OLDEST[1]}.0"},
            "/api": {"versions": ["v1"]},
            "/apis": {"groups": groups},
            **dict(there),
        }
        for version, names in kinds.items():
            resources = [{"name": f"{kind.lower()}s", "namespaced": True, "kind": kind} for kind in names]
            path = f"/apis/{version}" if "/" in version else f"/api/{version}"
            self._answers[path] = {"groupVersion": version, "resources": resources}

    def __enter__(self) -> Self:
        answers = self._answers

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                found = answers.get(self.path.partition("?")[0])
                body = json.dumps(found or {"kind": "Status", "reason": "NotFound", "code": 404}).encode()
                self.send_response(200 if found else 404)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def rendered(self, values: Object, folder: Path) -> list[Object]:
        """What the chart makes of these values for the namespace ``models`` of this cluster."""
        flags = ["--namespace", "models", "--dry-run=server", "--disable-openapi-validation"]
        flags += ["--kube-apiserver", self.url, "--values", str(values_file(values, folder))]
        return objects_of(run("helm", "template", "tensortap", CHART, *flags).stdout)


def of_kind(objects: Iterable[Object], kind: str) -> Object:
    """The one object of that kind."""
    (found,) = (thing for thing in objects if thing["kind"] == kind)
    return found


def kinds(objects: Iterable[Object]) -> list[str]:
    """The kinds, in order."""
    return sorted(thing["kind"] for thing in objects)


def pod_of(objects: Iterable[Object]) -> Object:
    """The pods' spec of the Deployment."""
    spec: Object = of_kind(objects, "Deployment")["spec"]["template"]["spec"]
    return spec


def container_of(objects: Iterable[Object]) -> Object:
    """The one container of these pods."""
    (container,) = pod_of(objects)["containers"]
    assert isinstance(container, dict)
    return container


def environment_of(objects: Iterable[Object]) -> dict[str, str]:
    """The container's variables."""
    variables = container_of(objects)["env"]
    environment = {variable["name"]: variable["value"] for variable in variables}
    assert len(environment) == len(variables)
    return environment


def settings_of(objects: Iterable[Object]) -> dict[str, str]:
    """The settings that these variables are, by their names in `Settings`."""
    environment = environment_of(objects)
    assert all(name.startswith(ENV_PREFIX) for name in environment)
    return {name.removeprefix(ENV_PREFIX).lower(): value for name, value in environment.items()}


@functools.cache
def _schemas() -> Any:
    # Imported here: `make test` reads this module and has no need of a hundred megabytes of schemas.
    validate = importlib.import_module("kubernetes_validate")
    utils = importlib.import_module("kubernetes_validate.utils")
    vars(utils)["schema_contents"] = functools.cache(utils.schema_contents)  # or each object reads a megabyte again
    return validate, utils


def versions() -> list[str]:
    """The versions of Kubernetes from the oldest that the chart allows to the latest whose schemas there are."""
    _, utils = _schemas()
    return [version for version in utils.all_versions() if tuple(map(int, version.split(".")[:2])) >= OLDEST]


def assert_valid(objects: Iterable[Object], version: str) -> None:
    """Hold every object against the schema of that version, strictly: no field that is not in it."""
    validate, _ = _schemas()
    for thing in objects:
        if thing["kind"] == "ServiceMonitor":
            jsonschema.Draft7Validator(_MONITOR).validate(thing)
        else:
            validate.validate(thing, version, strict=True)


def assert_consistent(objects: list[Object]) -> None:
    """Check that what names something else names something that is there."""
    names = [(thing["kind"], thing["metadata"]["name"]) for thing in objects]
    assert len(names) == len(set(names))
    deployment, service = of_kind(objects, "Deployment"), of_kind(objects, "Service")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    selector = deployment["spec"]["selector"]["matchLabels"]
    assert selector
    assert selector.items() <= labels.items()
    assert service["spec"]["selector"] == selector

    pod, container = pod_of(objects), container_of(objects)
    assert [mount["name"] for mount in container["volumeMounts"]] == [volume["name"] for volume in pod["volumes"]]
    assert all(spread["labelSelector"]["matchLabels"] == selector for spread in pod["topologySpreadConstraints"])
    (port,) = container["ports"]
    assert str(port["containerPort"]) == environment_of(objects)["TENSORTAP_PORT"]
    (served,) = service["spec"]["ports"]
    assert served["targetPort"] == port["name"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["port"] == port["name"]

    for thing in objects:
        spec = thing.get("spec", {})
        match thing["kind"]:
            case "PodDisruptionBudget":
                assert spec["selector"]["matchLabels"] == selector
            case "NetworkPolicy":
                assert spec["podSelector"]["matchLabels"] == selector
                assert [entry["port"] for rule in spec["ingress"] for entry in rule["ports"]] == [port["containerPort"]]
            case "HorizontalPodAutoscaler":
                target = spec["scaleTargetRef"]
                assert (target["kind"], target["name"]) == ("Deployment", deployment["metadata"]["name"])
                assert "replicas" not in deployment["spec"]
            case "Ingress":
                for rule in spec["rules"]:
                    (path,) = rule["http"]["paths"]
                    backend = path["backend"]["service"]
                    assert backend == {"name": service["metadata"]["name"], "port": {"name": served["name"]}}
            case "ServiceMonitor":
                assert spec["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
                assert [endpoint["port"] for endpoint in spec["endpoints"]] == [served["name"]]
            case "ServiceAccount":
                assert pod["serviceAccountName"] == thing["metadata"]["name"]
            case "PersistentVolumeClaim":
                assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == thing["metadata"]["name"]


def assert_restricted(objects: list[Object]) -> None:
    """Check what the Pod Security Standard ``restricted`` asks for, and that the root file system is read-only."""
    pod, container = pod_of(objects), container_of(objects)
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    allowed = {"persistentVolumeClaim", "emptyDir", "secret", "csi"}
    assert {kind for volume in pod["volumes"] for kind in volume.keys() - {"name"}} <= allowed
    assert [mount["name"] for mount in container["volumeMounts"] if not mount.get("readOnly")] == ["tmp"]
