"""`python -m h2o_llama` is `h2o-llama`."""

from h2o_llama._cli import app

app(prog_name="h2o-llama")
