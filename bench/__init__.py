"""The yardstick: benchmarks of the decoders and the service beside their peers; README.md says what each measures.

``python -m bench`` runs them, from the root of the repository.
"""
