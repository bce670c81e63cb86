# h2o-llama serve, for all CPUs of the architecture that it is built on:
#   docker build -t h2o-llama .
#   docker run --rm -p 127.0.0.1:8080:8080 -v "$PWD/models:/models:ro" h2o-llama /models/model.gguf
# Without a model it serves the demo model. What follows the image's name are arguments of `h2o-llama serve`.
FROM python:3.13-slim-bookworm AS build
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
RUN python -m venv /opt/h2o-llama \
    && H2O_LLAMA_WHEEL=1 /opt/h2o-llama/bin/pip install --no-cache-dir .

FROM python:3.13-slim-bookworm
RUN useradd --create-home --uid 1000 h2o
COPY --from=build /opt/h2o-llama /opt/h2o-llama
USER 1000
EXPOSE 8080
HEALTHCHECK --interval=10s --start-period=120s \
    CMD ["/opt/h2o-llama/bin/python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/health')"]
ENTRYPOINT ["/opt/h2o-llama/bin/h2o-llama", "serve", "--host", "0.0.0.0", "--port", "8080"]
