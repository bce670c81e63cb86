# The page of `h2o-llama serve` has these libraries in its folder, which is a part of the Python package.
foreach(name pdfjs markdown)
    h2o_fetch(${name} vendor/*.py vendor/requirements-*.txt)
    install(DIRECTORY python/h2o_llama/page/app/${name} DESTINATION h2o_llama/page/app)
endforeach()
