"""``python -m tensortap`` is the command ``tensortap``."""

from .cli import main

if __name__ == "__main__":
    main()
