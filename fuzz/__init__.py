"""Hostile input, made by a fuzzer that is guided by coverage; README.md says how to run it and how to add a target.

``python -m fuzz`` runs it, from the root of the repository. A target is a module with a function ``run`` that takes any
bytes and raises where something does not hold; it needs no fuzzer, and the tests give it all that was ever found.
"""
