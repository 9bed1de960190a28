"""The compose file of several replicas: what names something names what is there."""

from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"


class _Loader(yaml.SafeLoader):
    """With the tags of compose files."""


def _reset(loader: _Loader, node: yaml.Node) -> list[object]:
    assert isinstance(node, yaml.SequenceNode)
    return list(loader.construct_sequence(node))


_Loader.add_constructor("!reset", _reset)


def _compose() -> dict[str, Any]:
    text = (DEPLOY / "compose.scale.yml").read_text(encoding="utf-8")
    loaded = yaml.load(text, _Loader)  # a safe loader and one more tag
    assert isinstance(loaded, dict)
    return loaded


def _replicas() -> dict[str, Any]:
    return {name: service for name, service in _compose()["services"].items() if name.startswith("tensortap-")}


def test_nginx_is_given_every_replica_and_waits_for_them() -> None:
    nginx = _compose()["services"]["nginx"]
    assert nginx["environment"]["REPLICAS"].split() == [f"{name}:8000" for name in _replicas()]
    assert list(nginx["depends_on"]) == list(_replicas())
    assert len(_replicas()) == 3


def test_the_replicas_are_those_of_the_other_file_but_for_the_port() -> None:
    for replica in _replicas().values():
        assert replica["extends"] == {"file": "../docker-compose.yml", "service": "tensortap"}
        assert replica["ports"] == []


def test_prometheus_asks_every_replica_by_its_lasting_name() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    (job,) = config["scrape_configs"]
    assert not [key for key in job if key.endswith("_sd_configs")]  # by DNS, one that has stopped would go unmissed
    (targets,) = job["static_configs"]
    assert targets["targets"] == [f"{name}:8000" for name in _replicas()]


def test_grafana_is_given_the_prometheus_of_the_file() -> None:
    services = _compose()["services"]
    sources = yaml.safe_load(next((DEPLOY / "grafana/provisioning/datasources").iterdir()).read_text(encoding="utf-8"))
    name, port = sources["datasources"][0]["url"].removeprefix("http://").split(":")
    assert name in services
    assert services[name]["ports"][0].endswith(f":{port}")


def test_what_is_mounted_is_there_and_nothing_listens_beyond_this_host() -> None:
    compose = _compose()
    for service in compose["services"].values():
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            assert (DEPLOY / source).exists() if source.startswith(".") else source in compose["volumes"]
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:")
