"""``python -m bench``: the command line of the benchmarks."""

import os

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

if __name__ == "__main__":
    # The decoders are measured in one thread, also where numpy hands work to a BLAS: that looks here when it is loaded.
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    from bench._run import main

    # The servers that are started later run as they would anywhere else.
    for name in _THREADS:
        del os.environ[name]
    main()
