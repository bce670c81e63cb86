"""Acceptance of eviction, cold store and codec on a model and a text: what `python benchmarks/gate.py` runs.

Every figure is measured on the spot and compared with its bound in `acceptance.bounds`.
"""
