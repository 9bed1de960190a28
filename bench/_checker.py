"""Clients that check every byte: ``python -m bench._checker PORT FOLDER CONNECTIONS SEED PAUSE``.

Each of so many connections asks for random things, one after another, with ``PAUSE`` seconds between. An answer must be
that of one version, whole: the one that its ETags have stood for before.
"""

import socket
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from bench._asks import Answer, Ask, draw
from bench._helper import help_with
from bench._versions import Version, load_versions

__all__ = ["Checker", "Connection"]

_NICENESS = 5
_PATIENCE_SECONDS = 90
_POOL, _POOL_SEED, _POOL_SHARE = 300, 1, 0.4
_FOLLOW_UP = 0.3
_MOST_TOLD = 5
_BACK_OFF_SECONDS = 0.05


class Connection:
    """One HTTP/1.1 connection, which is made anew where it has ended."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._socket: socket.socket | None = None
        self._rest = b""

    def ask(self, ask: Ask) -> Answer:
        """Send a request and give its whole answer. Raises OSError where there is none."""
        try:
            if self._socket is None:
                self._socket = socket.create_connection(("127.0.0.1", self._port), _PATIENCE_SECONDS)
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._rest = b""
            self._socket.sendall(_request(ask))
            answer = self._answer(self._socket, ask.method == "HEAD")
        except (OSError, ValueError):
            self.close()
            raise
        if answer.headers.get("connection") == "close":
            self.close()
        return answer

    def close(self) -> None:
        """Close it."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _answer(self, connection: socket.socket, is_head: bool) -> Answer:
        data = self._rest
        while (end := data.find(b"\r\n\r\n")) < 0:
            received = connection.recv(1 << 16)
            if not received:
                raise ConnectionAbortedError("the connection ended before an answer")
            data += received
        status, *fields = data[:end].decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, value in (one.split(": ", 1) for one in fields)}
        data = data[end + 4 :]
        code = int(status.split()[1])
        length = 0 if is_head or code == 304 else int(headers["content-length"])
        body = bytearray(length)
        count = min(len(data), length)
        body[:count] = data[:count]
        self._rest = data[count:]
        view = memoryview(body)
        while count < length:
            received_bytes = connection.recv_into(view[count:])
            if not received_bytes:
                raise ConnectionAbortedError("the connection ended within an answer")
            count += received_bytes
        return Answer(code, headers, body)


class Checker:
    """What one client asks and finds. Its figures are a dict of counts, and the ETags of what all clients ask for."""

    def __init__(self, port: int, versions: dict[str, list[Version]], seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.etags: dict[str, str] = {}
        self._versions = versions
        self._rng = Random(seed)
        pool = Random(_POOL_SEED)
        self._pool = [draw(pool, versions) for _ in range(_POOL)]
        self._connection = Connection(port)
        self._latest = dict.fromkeys(versions, 0)

    def run(self, over: threading.Event, pause: float) -> None:
        """Ask until ``over`` is set, with so many seconds between."""
        while not over.wait(pause):
            self.step()
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def step(self) -> None:
        """Ask for one thing, and for some of it again with a condition."""
        is_pooled = self._rng.random() < _POOL_SHARE
        ask = self._rng.choice(self._pool) if is_pooled else draw(self._rng, self._versions)
        answer = self._ask(ask)
        if answer is None or answer.status not in ask.statuses:
            return
        number = self._version_of(ask, answer)
        if number is None:
            return
        if ask.is_telling:
            self._compare_etags(ask, answer, number, is_pooled=is_pooled)
        if ask.method == "GET" and answer.status == 200 and self._rng.random() < _FOLLOW_UP:
            self._follow_up(ask, answer, number)

    def figures(self) -> dict[str, Any]:
        """What was seen, for `json`."""
        return {"counts": self.counts, "wrong": self.wrong, "etags": self.etags}

    def _ask(self, ask: Ask, *allowed: int) -> Answer | None:
        try:
            answer = self._connection.ask(ask)
        except (OSError, ValueError) as error:
            self.counts[f"error {type(error).__name__}"] += 1
            time.sleep(_BACK_OFF_SECONDS)
            return None
        self.counts["requests"] += 1
        self.counts["bytes"] += len(answer.body)
        if answer.status not in (*ask.statuses, *allowed):
            self.counts[f"error {answer.status}"] += 1
            if answer.status != 503:
                self._tell(ask, f"status {answer.status}: {bytes(answer.body[:200])!r}")
            time.sleep(_BACK_OFF_SECONDS)
        return answer

    def _version_of(self, ask: Ask, answer: Answer) -> int | None:
        """The version that an answer is of, or the latest one where it may be of any; None where it is of none."""
        latest = self._latest[ask.model]
        versions = self._versions[ask.model]
        reason = "no version has this"
        for version in (versions[latest], *versions[:latest], *versions[latest + 1 :]):
            try:
                is_right = ask.check(answer, version)
            except (KeyError, ValueError, IndexError, TypeError) as error:
                reason, is_right = f"cannot be read: {error!r}", False
            if is_right:
                if ask.is_telling:
                    self._latest[ask.model] = version.number
                return version.number
        self._is_wrong(ask, reason)
        return None

    def _compare_etags(self, ask: Ask, answer: Answer, number: int, *, is_pooled: bool) -> None:
        """One ETag of a model for each version, and one version for each ETag; so also of what is asked repeatedly."""
        self._compare(ask, f"the state of {ask.model}", answer.headers["x-model-etag"], number)
        if is_pooled:
            self._compare(ask, f"{ask.method} {ask.target} {ask.body.decode()}", answer.headers["etag"], number)

    def _compare(self, ask: Ask, what: str, etag: str, number: int) -> None:
        for key, value in ((f"version of {etag}, {what}", str(number)), (f"ETag of version {number}, {what}", etag)):
            if self.etags.setdefault(key, value) != value:
                self._is_wrong(ask, f"the {key} was {self.etags[key]} and is {value}")

    def _follow_up(self, ask: Ask, before: Answer, number: int) -> None:
        """Ask again, with a condition on the ETag; what is answered under the same ETag is of the same version."""
        etag = before.headers["etag"]
        kind = self._rng.choice(("If-None-Match", "If-Match", "If-Range", "HEAD"))
        if kind == "HEAD":
            again = Ask(ask.model, ask.target, ask.check, "HEAD")
            answer = self._ask(again)
            if answer is not None and answer.status == 200 and answer.headers["etag"] == etag:
                told = answer.headers.get("content-length", str(len(before.body)))
                self._expect(again, not answer.body and int(told) == len(before.body), "HEAD has another length")
            return
        is_ranged = kind != "If-None-Match" and ask.expected is not None and len(before.body) > 1
        headers = {**ask.headers, kind: etag}
        if is_ranged:
            first = self._rng.randrange(len(before.body) - 1)
            stop = self._rng.randint(first + 1, len(before.body))
            headers["Range"] = f"bytes={first}-{stop - 1}"
        again = Ask(ask.model, ask.target, ask.check, headers=headers)
        answer = self._ask(again, 206, 304, 412)
        if answer is None or answer.status == 503:
            return
        is_same = answer.headers.get("etag") == etag
        if answer.status == 304:
            self._expect(again, kind == "If-None-Match" and is_same and not answer.body, "304 for another state")
        elif answer.status == 412:
            now = self._ask(Ask(ask.model, ask.target, ask.check, "HEAD"))
            if now is not None and now.status == 200:
                self._expect(again, kind == "If-Match" and now.headers["etag"] != etag, "412 for the same state")
        elif answer.status == 206:
            is_right = is_ranged and is_same and answer.body == before.body[first:stop]
            self._expect(again, is_right, "a range is not of the same state")
        elif answer.status == 200:
            if is_same:
                is_right = kind == "If-Match" and not is_ranged and answer.body == before.body
                is_right |= kind == "If-Range" and not is_ranged and answer.body == before.body
                self._expect(again, is_right, "200 for the same state")
            elif kind == "If-Match":
                self._is_wrong(again, "200 for another state")
            elif (other := self._version_of(ask, answer)) is not None and ask.is_telling:
                self._expect(again, other != number, "another ETag for the same version")

    def _expect(self, ask: Ask, is_right: bool, otherwise: str) -> None:
        if not is_right:
            self._is_wrong(ask, otherwise)

    def _is_wrong(self, ask: Ask, reason: str) -> None:
        self.counts["wrong"] += 1
        self._tell(ask, reason)

    def _tell(self, ask: Ask, reason: str) -> None:
        if len(self.wrong) < _MOST_TOLD:
            self.wrong.append(f"{ask.method} {ask.target} {ask.headers} {ask.body[:300]!r}: {reason}")


def _request(ask: Ask) -> bytes:
    fields = {"Host": "bench", **ask.headers}
    if ask.body:
        fields["Content-Length"] = str(len(ask.body))
    lines = [f"{ask.method} {ask.target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join([*lines, "", ""]).encode() + ask.body


def _main() -> None:
    port, folder, connections, seed, pause = sys.argv[1:]
    versions = load_versions(Path(folder))
    checkers = [Checker(int(port), versions, int(seed) * 1000 + number) for number in range(int(connections))]

    def work(over: threading.Event) -> list[dict[str, Any]]:
        threads = [threading.Thread(target=checker.run, args=(over, float(pause))) for checker in checkers]
        for thread in threads:
            thread.start()
        for thread in threads:
            with suppress(KeyboardInterrupt):
                thread.join()
        return [checker.figures() for checker in checkers]

    help_with(work, niceness=_NICENESS)


if __name__ == "__main__":
    _main()
