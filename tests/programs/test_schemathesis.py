"""schemathesis, which makes requests out of the API description, finds nothing in a running server.

It runs as the program it is, with all of its checks, on requests that are right and on requests that are wrong.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.demo import demo_model
from tests.server import Server

pytestmark = pytest.mark.programs

# The same requests each time. Without the names, nearly all requests would be for models that are not there.
CONFIG = """
continue-on-failure = true

[generation]
max-examples = {examples}
database = "none"
deterministic = true

# What is right by itself may still be about another state (412), in no form (406), or past the end (416).
[checks]
positive_data_acceptance.expected-statuses = ["2xx", "304", "401", "404", "406", "412", "416"]

# No schema can say which parameters go together (rows not with slice), nor what depends on the tensor (a row that it
# has, a type that is stored as numbers), on the key (only an array has a slice) or on the model (whose types may have
# names of other programs): 400.
[[operations]]
include-name-regex = "/-/(data|safetensors|metadata/|tensors$)|/v1/data"
checks.positive_data_acceptance.expected-statuses = ["2xx", "304", "400", "401", "404", "406", "412", "416"]
"""
NAMES = """
[parameters]
"path.model" = "demo"
"path.tensor" = "blk.0.attn_q.weight"
"query.model" = "demo"
"query.tensor" = "blk.0.attn_q.weight"
"""
KEY = """
[auth.openapi.bearer]
bearer = "k1"
"""


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    root = tmp_path / "volume"
    root.mkdir()
    (root / "demo.gguf").write_bytes(demo_model())
    return root


def run(server: Server, folder: Path, config: str, *options: str) -> None:
    (folder / "schemathesis.toml").write_text(config)
    answer = server.client.get("/openapi.json", headers={"X-API-Key": "k1"})
    (folder / "openapi.json").write_bytes(answer.content)
    program = Path(sys.executable).with_name("schemathesis")
    assert program.exists(), "schemathesis is not installed: make programs installs it"
    command = [str(program), "run", "openapi.json", f"--url={server.url}", "--checks=all", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    described = sum(len(item) for item in answer.json()["paths"].values())
    assert f"Tested: {described}" in done.stdout, done.stdout
    assert not [line for line in server.log if "Traceback" in line]


@pytest.mark.parametrize(("names", "examples"), [(NAMES, 20), ("", 5)], ids=["names of the model", "any names"])
def test_no_request_gets_what_is_not_described(volume: Path, tmp_path: Path, names: str, examples: int) -> None:
    with Server(volume) as server:
        run(server, tmp_path, CONFIG.format(examples=examples) + names)


def test_no_request_gets_around_the_keys(volume: Path, tmp_path: Path) -> None:
    with Server(volume, api_keys="k1") as server:
        run(server, tmp_path, CONFIG.format(examples=3) + NAMES + KEY, "--phases=examples,fuzzing")
