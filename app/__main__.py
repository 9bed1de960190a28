"""``python -m app``: serve a volume, check files, or print the settings."""

import os
import sys

if __name__ == "__main__":
    # numpy's linear algebra, which nothing here uses, starts a thread for each core of the host when it is loaded.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        from app.cli import main
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in ("app", "decoders"):
            raise
        sys.exit(f"tensortap: the service needs {error.name}: pip install 'tensortap[server]'")
    main()
