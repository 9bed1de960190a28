"""A browser's fetch, from a page of another origin."""

import http.server
import json
import re
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.programs.conftest import DATA, program
from tests.server import Server

pytestmark = pytest.mark.programs

PAGE = """<!doctype html><pre id="out"></pre><script>
const url = "%s";
async function ask(headers) {
    const answer = await fetch(url, {headers});
    const weights = new Float32Array(await answer.arrayBuffer());
    const shown = ["etag", "content-range", "x-tensor-shape", "x-request-id", "content-disposition"];
    return {status: answer.status, n: weights.length, headers: shown.map(name => answer.headers.get(name))};
}
(async () => {
    let out;
    try {
        const whole = await ask({});
        const part = await ask({"Range": "bytes=4-11", "X-Request-ID": "browser"});
        const posted = await fetch(url, {method: "POST", headers: {"Content-Type": "application/json"},
            body: JSON.stringify({rows: [1, 2], cols: "0:2", format: "json"})});
        out = {whole, part, posted: await posted.json()};
    } catch (error) {
        out = {error: String(error)};
    }
    document.getElementById("out").textContent = "RESULT" + JSON.stringify(out) + "END";
})();
</script>"""


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """A test's output is not for requests."""


@pytest.fixture
def page(server: Server, tmp_path: Path) -> Iterator[str]:
    (tmp_path / "index.html").write_text(PAGE % (server.url + DATA))
    site = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(tmp_path)))
    threading.Thread(target=site.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{site.server_address[1]}/index.html"
    site.shutdown()
    site.server_close()


def test_fetch_from_another_origin(page: str, tmp_path: Path) -> None:
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
    flags += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    flags += [f"--user-data-dir={tmp_path}/profile", "--virtual-time-budget=20000", "--dump-dom"]
    browser = subprocess.run(
        [program("chromium"), *flags, page], capture_output=True, text=True, timeout=90, check=False
    )
    found = re.search(r"RESULT(.*)END", browser.stdout.replace("&quot;", '"'))
    assert found, browser.stdout[-2000:]
    result = json.loads(found[1])
    assert result["whole"]["status"] == 200, result
    assert result["whole"]["n"] == 1 << 24
    etag, content_range, shape, request_id, disposition = result["part"]["headers"]
    assert (result["part"]["status"], result["part"]["n"]) == (206, 2)
    assert etag == result["whole"]["headers"][0]
    assert content_range == f"bytes 4-11/{64 << 20}"
    assert shape == "[4096,4096]"
    assert request_id == "browser"
    assert disposition.startswith("attachment")
    assert result["posted"]["shape"] == [2, 2]
