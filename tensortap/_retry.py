"""How often a failed attempt is tried again, and how long after."""

from __future__ import annotations

import random
from dataclasses import dataclass

import tenacity

from ._flow import Ask
from ._http import PassingError

__all__ = ["Patience"]

_FIRST_WAIT = 0.1
_LONGEST_WAIT = 10.0
_LONGEST_RETRY_AFTER = 60.0


@dataclass
class Patience:
    """The patience with one request: ``retries`` failures in a row that brought no new byte, each a longer wait.

    A body that breaks off every now and then comes through however long it is; one that begins anew each time, since it
    cannot be resumed, has to come further each time.
    """

    ask: Ask
    retries: int
    _failures: int = 0
    _furthest: int = 0
    _counted: int = 0

    def stop(self, state: tenacity.RetryCallState) -> bool:
        """Whether it is over, after a failure."""
        return self._failed(state) > self.retries

    def wait(self, state: tenacity.RetryCallState) -> float:
        """Seconds until the next attempt: what the service asks for, or twice as long each time, give or take."""
        error = state.outcome.exception() if state.outcome is not None else None
        wished = error.retry_after if isinstance(error, PassingError) else 0.0
        longest = min(_LONGEST_WAIT, _FIRST_WAIT * 2 ** (self._failed(state) - 1))
        # Spread, so that many clients of a service that was away do not come back at once.
        return min(_LONGEST_RETRY_AFTER, wished) + random.uniform(longest / 2, longest)  # noqa: S311

    def _failed(self, state: tenacity.RetryCallState) -> int:
        """How many failures in a row there are now; each attempt is counted once, whoever asks first."""
        if state.attempt_number != self._counted:
            self._counted = state.attempt_number
            filled = self.ask.sink.filled if self.ask.sink is not None else 0
            if filled > self._furthest:
                self._failures = 0
                self._furthest = filled
            self._failures += 1
        return self._failures
