"""``python -m app``: serve a volume, check files, or print the settings."""

from app.cli import main

if __name__ == "__main__":
    main()
