"""``python -m app``: serve a volume, check files, or print the settings."""

import sys

if __name__ == "__main__":
    try:
        from app.cli import main
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in ("app", "decoders"):
            raise
        sys.exit(f"tensortap: the service needs {error.name}: pip install 'tensortap[server]'")
    main()
