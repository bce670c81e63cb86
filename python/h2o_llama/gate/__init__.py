"""Acceptance of eviction, cold store and codec on a model and a text: what `h2o-llama gate` runs.

Every figure is measured on the spot and compared with its bound in `h2o_llama.gate.bounds`.
"""
