"""Hosts on one machine: network namespaces, joined by a bridge that this process reaches, too (Linux, as root)."""

import fcntl
import subprocess
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["Network"]

_NAME = "ttap"
_SUBNET = "10.213.77"
_LOCK = Path("/run", f"{_NAME}.lock")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


class Network:
    """So many hosts; each has an address and a cable that can be pulled or throttled. A context manager.

    There is one at a time on a machine, whatever processes want one: each waits until that before it is gone.
    """

    def __init__(self, n_hosts: int) -> None:
        self._hosts = [f"{_NAME}{number}" for number in range(n_hosts)]
        # The bridge is a host, too: in this one, rules of a firewall could be in its way.
        self._bridge = f"{_NAME}b"
        self._stack = ExitStack()

    def address(self, number: int) -> str:
        """The address of a host."""
        return f"{_SUBNET}.{10 + number}"

    def command(self, number: int) -> list[str]:
        """What a command line begins with to run on that host."""
        return ["ip", "netns", "exec", self._hosts[number]]

    def unplug(self, number: int) -> None:
        """Pull the cable: what is sent to the host is lost, and nothing says so."""
        _ip("-n", self._bridge, "link", "set", f"{_NAME}v{number}", "down")

    def plug(self, number: int) -> None:
        """Put it in again."""
        _ip("-n", self._bridge, "link", "set", f"{_NAME}v{number}", "up")

    def throttle(self, number: int, bits_per_second: int) -> None:
        """What the host sends goes at this speed from now on."""
        device = ["dev", f"{_NAME}h{number}", "root"]
        speed = ["tbf", "rate", str(bits_per_second), "burst", "64kb", "limit", "1mb"]
        command = [*self.command(number), "tc", "qdisc", "replace", *device, *speed]
        subprocess.run(command, check=True, capture_output=True)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            fcntl.flock(stack.enter_context(_LOCK.open("w")), fcntl.LOCK_EX)  # given back when the process dies, too
            self._remove()
            stack.callback(self._remove)
            self._make()
            self._stack = stack.pop_all()
        return self

    def _make(self) -> None:
        _ip("netns", "add", self._bridge)
        _ip("-n", self._bridge, "link", "add", f"{_NAME}br", "type", "bridge")
        _ip("-n", self._bridge, "link", "set", f"{_NAME}br", "up")
        _ip("link", "add", _NAME, "type", "veth", "peer", "name", f"{_NAME}v", "netns", self._bridge)
        _ip("addr", "add", f"{_SUBNET}.1/24", "dev", _NAME)
        _ip("link", "set", _NAME, "up")
        _ip("-n", self._bridge, "link", "set", f"{_NAME}v", "master", f"{_NAME}br", "up")
        for number, host in enumerate(self._hosts):
            outer, inner = f"{_NAME}v{number}", f"{_NAME}h{number}"
            _ip("netns", "add", host)
            _ip("-n", host, "link", "add", inner, "type", "veth", "peer", "name", outer, "netns", self._bridge)
            _ip("-n", self._bridge, "link", "set", outer, "master", f"{_NAME}br", "up")
            _ip("-n", host, "addr", "add", f"{self.address(number)}/24", "dev", inner)
            _ip("-n", host, "link", "set", inner, "up")
            _ip("-n", host, "link", "set", "lo", "up")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    def _remove(self) -> None:
        """Take down what there is, of a run before that was killed, too."""
        if Path("/sys/class/net", _NAME).exists():
            _ip("link", "del", _NAME)
        for host in (*self._hosts, self._bridge):  # a cable goes with either of its ends
            if Path("/run/netns", host).exists():
                _ip("netns", "del", host)
