"""Sending memory without a copy: its pages are put into a pipe, and from there into a socket (Linux: vmsplice, splice).

The system then reads the pages whenever it needs them, long after the call, so they must never be written again.
"""

import ctypes
import errno
import fcntl
import os
from contextlib import suppress

import numpy as np

__all__ = ["Pipe"]

_BYTES = 1 << 20  # a window; also the most that an unprivileged process may ask for
_NONBLOCK = 2  # SPLICE_F_NONBLOCK


class _Extent(ctypes.Structure):
    """C's struct iovec."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def _vmsplice() -> "ctypes._NamedFuncPointer | None":
    try:
        function = ctypes.CDLL(None, use_errno=True).vmsplice
    except (OSError, AttributeError):
        return None
    function.argtypes = (ctypes.c_int, ctypes.POINTER(_Extent), ctypes.c_ulong, ctypes.c_uint)
    function.restype = ctypes.c_ssize_t
    return function


_call = _vmsplice()


class Pipe:
    """A pipe that memory passes through; for one thread at a time.

    Attributes
    ----------
    left
        Bytes in it that have not gone on yet.
    """

    def __init__(self) -> None:
        self.left = 0
        self._out, self._in = os.pipe()
        with suppress(OSError, AttributeError):  # a smaller one takes more calls
            fcntl.fcntl(self._in, fcntl.F_SETPIPE_SZ, _BYTES)

    def fill(self, view: memoryview) -> bool:
        """Put the first bytes of ``view`` in, which must not change any more; False where the system cannot do that."""
        if _call is None or not hasattr(os, "splice"):
            return False
        extent = _Extent(np.frombuffer(view, np.uint8).ctypes.data, len(view))
        while (count := _call(self._in, ctypes.byref(extent), 1, _NONBLOCK)) < 0:
            if ctypes.get_errno() != errno.EINTR:
                return False
        self.left = count
        return True

    def empty_into(self, fd: int) -> int:
        """Send on what socket ``fd`` takes; raises BlockingIOError if that is nothing now, OSError if it is broken."""
        count = os.splice(self._out, fd, self.left, flags=_NONBLOCK)
        self.left -= count
        return count

    def close(self) -> None:
        """Close both ends."""
        os.close(self._out)
        os.close(self._in)
