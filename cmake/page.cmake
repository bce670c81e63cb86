# The page of `h2o-llama serve` has these libraries in its folder, which is a part of the Python package.
h2o_fetch(markdown vendor/*.py vendor/requirements-*.txt)
install(DIRECTORY python/h2o_llama/page/app/markdown DESTINATION h2o_llama/page/app)
