"""Speed and memory of attention, dense and sparse, beside each other: what `h2o-llama bench` runs."""

from h2o_llama.bench.bandwidth import read_bandwidth
from h2o_llama.bench.case import Mode, Sample
from h2o_llama.bench.measure import Bench
from h2o_llama.bench.plan import DENSE, Plan, beside_dense
from h2o_llama.bench.report import Report

__all__ = ["DENSE", "Bench", "Mode", "Plan", "Report", "Sample", "beside_dense", "read_bandwidth"]
