"""Prometheus and Grafana: what deploy/ asks for is what the service tells, and a real Prometheus finds it."""

import json
import math
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import combinations
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families as families

from app.cache import WindowCache
from app.metrics import Metrics
from app.observe import RequestRecord
from app.settings import Settings
from decoders import GGMLType
from tests import builder
from tests.app.test_streaming import MIB, ROW, ask, write_sparse
from tests.programs.conftest import program
from tests.server import Server, free_port
from tests.waiting import eventually

DEPLOY = Path(__file__).parents[2] / "deploy"
PROMETHEUS = DEPLOY / "prometheus"
RULES = yaml.safe_load((PROMETHEUS / "rules.yml").read_text())
ALERTS = [rule for group in RULES["groups"] for rule in group["rules"]]
DASHBOARD = json.loads((DEPLOY / "grafana/dashboards/tensortap.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
TARGETS = [(panel["title"], target) for panel in PANELS for target in panel["targets"]]
EXPRESSIONS = [target["expr"] for _, target in TARGETS] + [alert["expr"] for alert in ALERTS]
VARIABLES = [variable for variable in DASHBOARD["templating"]["list"] if variable["type"] == "query"]
OWN_LABELS = {"job", "instance"}  # Prometheus adds them to all that it scrapes
OF_PROMETHEUS = {
    "up": OWN_LABELS,
    "scrape_duration_seconds": OWN_LABELS,
    "ALERTS": {*OWN_LABELS, "alertname", "alertstate"},
}
# The panels of Grafana that are in it today; graph, singlestat and table-old are not any more.
PANEL_TYPES = {"timeseries", "stat", "heatmap", "bargauge", "gauge", "table", "piechart"}


@pytest.fixture(scope="module")
def told() -> dict[str, set[str]]:
    """The labels of each metric that a scrape can find."""
    metrics = Metrics(WindowCache(MIB))
    metrics.request(RequestRecord("1", "GET", "/", "/healthz", 200, 1, "complete", 0.1))
    metrics.decoded("F32", 1, 0.1)
    metrics.models(1, 1)
    found = dict(OF_PROMETHEUS)
    for family in families(metrics.exposition()[0].decode()):
        for sample in family.samples:
            found[sample.name] = OWN_LABELS | set(sample.labels)
    return found


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_only_metrics_and_labels_that_are_told_are_asked_for(expression: str, told: dict[str, set[str]]) -> None:
    names = set(re.findall(r"\b((?:tensortap|process)_\w+)", expression))
    assert names or "up" in expression or "ALERTS" in expression or "scrape_" in expression
    names |= set(re.findall(r"\b([a-zA-Z_:][\w:]*)(?=[{\[])", expression))
    assert names <= set(told)
    for name, selector in re.findall(r"\b([a-zA-Z_:][\w:]*)\{([^}]*)\}", expression):
        assert set(re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"', selector)) <= told[name]
    labels = set().union(*(told[name] for name in names))
    for grouping in re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", expression):
        assert {label.strip() for label in grouping.split(",")} <= labels


def test_variables_ask_for_what_is_told(told: dict[str, set[str]]) -> None:
    assert {variable["name"] for variable in VARIABLES} == {"job", "instance"}
    assert [v["query"] for v in DASHBOARD["templating"]["list"] if v["name"] == "datasource"] == ["prometheus"]
    for variable in VARIABLES:
        match = re.fullmatch(r"label_values\((\w+)(?:\{.*\})?, (\w+)\)", variable["query"]["query"])
        assert match is not None
        assert match[2] in told[match[1]]


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: str(panel["title"]))
def test_panels_say_what_they_show(panel: dict[str, Any]) -> None:
    assert panel["type"] in PANEL_TYPES
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert len(panel["description"]) > 20
    assert all(part["datasource"]["uid"] == "${datasource}" for part in (panel, *panel["targets"]))
    for target in panel["targets"]:
        by = re.findall(r"by \(([^)]*)\)", target["expr"])
        groups = {label for grouping in by for label in grouping.split(", ")}
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= groups


def test_panels_have_their_own_ids_and_places() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({panel["title"] for panel in panels}) == len(panels)
    assert DASHBOARD["schemaVersion"] >= 39  # Grafana 11's
    for one, other in combinations([panel["gridPos"] for panel in panels], 2):
        apart = [one[at] + one[size] <= other[at] or other[at] + other[size] <= one[at] for at, size in ("xw", "yh")]
        assert any(apart), (one, other)
    assert all(at["x"] >= 0 and at["x"] + at["w"] <= 24 for at in (panel["gridPos"] for panel in panels))


def test_alerts_say_what_is_wrong_and_what_to_do() -> None:
    assert len({alert["alert"] for alert in ALERTS}) == len(ALERTS)
    for alert in ALERTS:
        assert alert["labels"]["severity"] in {"critical", "warning", "info"}
        assert set(alert["annotations"]) == {"summary", "runbook"}
        assert all(text.endswith(".") for text in alert["annotations"].values())


def test_every_alert_has_series_for_which_it_fires() -> None:
    cases = yaml.safe_load((PROMETHEUS / "rules_test.yml").read_text())["tests"]
    samples = [
        sample for case in cases for query in case["promql_expr_test"] for sample in query.get("exp_samples") or ()
    ]
    fired = {name for sample in samples for name in re.findall(r'alertname="(\w+)"', sample["labels"])}
    assert fired == {alert["alert"] for alert in ALERTS}


def test_texts_name_settings_that_there_are() -> None:
    texts = [path.read_text() for folder in ("prometheus", "grafana") for path in (DEPLOY / folder).rglob("*.*")]
    named = {name for text in texts for name in re.findall(r"TENSORTAP_(\w+)", text)}
    assert named
    assert named <= {name.upper() for name in Settings.model_fields}


def test_grafana_knows_how_often_prometheus_looks() -> None:
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    (source,) = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yml").read_text())["datasources"]
    assert source["jsonData"]["timeInterval"] == config["global"]["scrape_interval"]


@pytest.mark.programs
@pytest.mark.parametrize(
    "arguments", ["check config prometheus.yml", "check rules rules.yml", "test rules rules_test.yml"]
)
def test_promtool_finds_no_fault(arguments: str) -> None:
    done = subprocess.run(
        [program("promtool"), *arguments.split()],
        cwd=PROMETHEUS,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.programs
def test_each_release_in_kubernetes_is_a_job_of_its_own(tmp_path: Path) -> None:
    """The relabeling of the ServiceMonitor, done by Prometheus, gives jobs that every rule is for."""
    text = (DEPLOY / "kubernetes/tensortap/templates/servicemonitor.yaml").read_text()
    (endpoint,) = yaml.safe_load(text)["spec"]["endpoints"]
    relabelings = [
        {re.sub("[A-Z]", lambda letter: "_" + letter[0].lower(), name): value for name, value in relabeling.items()}
        for relabeling in endpoint["relabelings"]
    ]
    releases = [("models", "weights"), ("staging", "weights"), ("models", "tensortap")]
    targets = [
        {
            "targets": ["192.0.2.1:8000"],
            "labels": {"__meta_kubernetes_namespace": namespace, "__meta_kubernetes_service_name": service},
        }
        for namespace, service in releases
    ]
    job = {"job_name": "monitor", "static_configs": targets, "relabel_configs": relabelings}
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump({"scrape_configs": [job]}))
    command = [program("promtool"), "check", "service-discovery", "--timeout=1s", "prometheus.yml", "monitor"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
    jobs = {target["labels"]["job"] for target in json.loads(done.stdout)}
    assert jobs == {f"tensortap/{namespace}/{service}" for namespace, service in releases}
    patterns = {pattern for alert in ALERTS for pattern in re.findall(r'job=~"([^"]+)"', alert["expr"])}
    assert patterns
    assert all(re.fullmatch(pattern, name) for pattern in patterns for name in jobs)


class Monitor:
    """A Prometheus with the settings of deploy/, of which only the places and the intervals are others."""

    def __init__(self, folder: Path, servers: list[Server]) -> None:
        config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        (job,) = config["scrape_configs"]
        job["static_configs"] = [{"targets": [f"127.0.0.1:{server.port}" for server in servers]}]
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        shutil.copy(PROMETHEUS / "rules.yml", folder)
        self.url = f"http://127.0.0.1:{free_port()}"
        command = [
            program("prometheus"),
            f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/data",
        ]
        command.append(f"--web.listen-address={self.url.removeprefix('http://')}")
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._client = httpx.Client(base_url=self.url, timeout=10)

    def ask(self, path: str, **parameters: str) -> Any:
        """The data of an answer of its API."""
        answer = self._client.get(f"/api/v1/{path}", params=parameters).json()
        assert answer["status"] == "success", answer
        return answer["data"]

    def values(self, expression: str, instance: str = ".+") -> dict[tuple[str, ...], float]:
        """The numbers that an expression of the dashboard has now, by their labels' values."""
        for name, value in {"$job": ".+", "$instance": instance, "$__rate_interval": "5s"}.items():
            expression = expression.replace(name, value)
        assert "$" not in expression
        result = self.ask("query", query=expression)["result"]
        values = {tuple(series["metric"].values()): float(series["value"][1]) for series in result}
        return {labels: value for labels, value in values.items() if math.isfinite(value)}

    def states(self) -> dict[str, str]:
        """The state of each alert."""
        return {rule["name"]: rule["state"] for group in self.ask("rules")["groups"] for rule in group["rules"]}

    def stop(self) -> None:
        """Stop it."""
        self._client.close()
        self.process.terminate()
        self.process.wait(20)


class Load:
    """What clients do, right and wrong, again and again until it is stopped."""

    def __init__(self, servers: list[Server]) -> None:
        self._servers = servers
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._row = 0
        self.rounds = 0
        self._held = [ask(server, "/v1/models/large/-/data/w") for server in servers]  # a stream each, read by nobody
        self._thread.start()

    def _run(self) -> None:
        while not self._over.is_set():
            for server in self._servers:
                try:
                    self._one(server)
                except (httpx.TransportError, ConnectionError):
                    server.process.wait(10)  # a test has killed it
            self.rounds += 1

    def _one(self, server: Server) -> None:
        data = "/v1/models/m/-/data/q"
        etag = server.client.get(f"{data}?rows=0").headers["etag"]
        server.client.get(f"{data}?rows=0", headers={"If-None-Match": etag})
        server.client.get(data, headers={"Range": "bytes=0-99"})
        self._row = (self._row + 64) % 1024  # another window, which another one leaves the cache for
        server.client.get(f"{data}?rows={self._row}")
        for path in ("", "/m", "/m/-/tensors", "/m/-/metadata", "/none", "/m/-/data/q?rows=x", "/large/-/data/w"):
            server.client.get(f"/v1/models{path}")  # the last is one stream too many: 503
        server.client.get("/healthz")
        server.client.get("/readyz")
        # A client that leaves with the rest of its body is counted as one that left.
        with socket.create_connection(("127.0.0.1", server.port)) as leaving:
            leaving.sendall(b"POST /v1/models/m/-/data/q HTTP/1.1\r\nHost: test\r\nContent-Length: 99\r\n\r\n{")

    def stop(self) -> None:
        """Stop it, and let go of the streams that were held."""
        self._over.set()
        self._thread.join(30)
        for connection in self._held:
            connection.close()
        assert not self._thread.is_alive()


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    volume = tmp_path_factory.mktemp("volume")
    blocks = np.zeros((ROW * 1024 // 32, 34), np.uint8).tobytes()
    (volume / "m.gguf").write_bytes(builder.build([("q", [ROW, 1024], GGMLType.Q8_0, blocks)]))
    (volume / "bad.gguf").write_bytes(b"GGU")
    write_sparse(volume / "large.gguf", GGMLType.F32, 16384, 16384 * ROW * 4)
    # The streams that are held are to last for as long as the tests do.
    settings = {"cache_bytes": 4 * MIB, "max_streams": 1, "stream_queue": 0, "stall_seconds": 3600}
    with ExitStack() as stack, ThreadPoolExecutor() as pool:
        started = [pool.submit(Server, volume, **settings) for _ in range(3)]
        yield [stack.enter_context(one.result()) for one in started]


@pytest.fixture(scope="module")
def monitor(servers: list[Server], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Monitor]:
    """A Prometheus that looks at three servers that are at work."""
    with ExitStack() as stack:
        running = Monitor(tmp_path_factory.mktemp("prometheus"), servers)
        stack.callback(running.stop)
        load = Load(servers)
        stack.callback(load.stop)
        eventually(lambda: load.rounds > 2 and "pending" in running.states().values())
        yield running


@pytest.mark.programs
@pytest.mark.parametrize("replicas", ["all", "one"])
def test_every_panel_has_data(monitor: Monitor, servers: list[Server], replicas: str) -> None:
    instance = ".+" if replicas == "all" else f"127.0.0.1:{servers[0].port}"
    missing = {(title, target["expr"]) for title, target in TARGETS}
    assert len(missing) == len(TARGETS) >= len(PANELS)

    def found() -> bool:
        missing.difference_update([one for one in missing if monitor.values(one[1], instance)])
        return not missing

    eventually(found)


@pytest.mark.programs
def test_panels_show_what_was_done(monitor: Monitor, servers: list[Server]) -> None:
    def value(title: str) -> dict[tuple[str, ...], float]:
        return next(monitor.values(target["expr"]) for name, target in TARGETS if name == title)

    def alone(title: str) -> float:
        return value(title).get((), math.nan)

    def shared(title: str) -> bool:
        shares = value(title)
        return shares.keys() == instances and sum(shares.values()) == pytest.approx(1)

    # All of it is waited for: a scrape that comes late, as it may after a second, is one that failed.
    instances = {(f"127.0.0.1:{server.port}",) for server in servers}
    eventually(lambda: {"200", "206", "304", "404", "503"} <= {key for (key,) in value("Requests by status")})
    eventually(lambda: value("Replicas up") == {(): 3})
    eventually(lambda: value("Models readable") == {(): 2})
    eventually(lambda: value("Streams open") == {(): 3})
    eventually(lambda: value("Alerts") == {(): 0})
    eventually(lambda: 0 < alone("Failed or refused") < 0.5)
    eventually(lambda: 0 < alone("Cache hit ratio") < 1)
    eventually(lambda: shared("Share of requests by replica"))
    eventually(lambda: shared("Share of decoded windows by replica"))
    eventually(
        lambda: (held := value("Bytes and budget by replica")) and all(0 < one <= 4 * MIB for one in held.values())
    )
    eventually(lambda: any(outcome == "client left" for _, outcome in value("Answers not sent to their end")))


@pytest.mark.programs
def test_alerts_see_the_service_itself(monitor: Monitor, servers: list[Server]) -> None:
    """Every rule can be evaluated, and those become pending whose cause there is."""
    expected = {"TensortapRefusing", "TensortapUnreadableModels"}
    eventually(lambda: {name for name, state in monitor.states().items() if state != "inactive"} == expected)
    servers[-1].process.kill()
    down = f"Replica 127.0.0.1:{servers[-1].port} does not answer"
    eventually(lambda: any(down in alert["annotations"]["summary"] for alert in monitor.ask("alerts")["alerts"]))
    rules = [rule for group in monitor.ask("rules")["groups"] for rule in group["rules"]]
    assert {rule["name"] for rule in rules} == {alert["alert"] for alert in ALERTS}
    assert {rule["health"] for rule in rules} == {"ok"}
