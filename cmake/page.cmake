# The page of `h2o-llama serve` has pdf.js in its folder, which is a part of the Python package.
h2o_fetch(pdfjs vendor/*.py vendor/requirements-*.txt)
install(DIRECTORY python/h2o_llama/page/app/pdfjs DESTINATION h2o_llama/page/app)
