"""wrk, the load generator: requests per second and their latency."""

import subprocess
import tempfile
from dataclasses import dataclass

__all__ = ["Load", "load", "load_each"]

# wrk calls these: `request` for each request, `done` at the end with times in microseconds.
_SCRIPT = """
math.randomseed({seed})
function request()
    return wrk.format("GET", {path})
end
function done(summary, latency, requests)
    local e = summary.errors
    io.write(string.format("FIGURES %d %d %f %f %d %.0f\\n", summary.requests, summary.duration, latency:percentile(50),
        latency:percentile(99), e.connect + e.read + e.write + e.status + e.timeout, summary.bytes))
end
"""


@dataclass(frozen=True, slots=True)
class Load:
    """What wrk saw: how many requests and bytes in how many seconds, and their latency in milliseconds."""

    requests: int
    n_bytes: int
    seconds: float
    p50: float
    p99: float

    @property
    def rate(self) -> float:
        """Requests per second."""
        return self.requests / self.seconds


def load(port: int, path: str, numbers: tuple[int, int], connections: int, seconds: int) -> Load:
    """GETs of ``path`` followed by a random number (first and last possible), each connection sending one at a time.

    Raises RuntimeError if an answer is no success or a connection fails.
    """
    first, last = numbers
    return load_each(port, f'"{path}" .. math.random({first}, {last})', connections, seconds, seed=1)


def load_each(port: int, path: str, connections: int, seconds: int, *, seed: int) -> Load:
    """The same with paths that an expression of Lua makes, one for each request; ``seed`` is that of math.random."""
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(_SCRIPT.format(path=path, seed=seed))
        script.flush()
        command = [
            "wrk",
            "-t1",
            f"-c{connections}",
            f"-d{seconds}s",
            "--timeout",
            "30s",
            "-s",
            script.name,
            f"http://127.0.0.1:{port}",
        ]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    line = next(line for line in output.splitlines() if line.startswith("FIGURES"))
    count, duration, p50, p99, errors, n_bytes = map(float, line.split()[1:])
    if errors:
        raise RuntimeError(f"{errors:.0f} of {count:.0f} requests of {path} failed:\n{output}")
    return Load(int(count), int(n_bytes), duration / 1e6, p50 / 1e3, p99 / 1e3)
