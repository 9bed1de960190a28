"""``python -m fuzz``: the command line of the fuzzer."""

from fuzz._run import main

if __name__ == "__main__":
    main()
