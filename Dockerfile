ARG PYTHON_IMAGE=python:3.13-slim

FROM ${PYTHON_IMAGE} AS build
RUN python -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH
WORKDIR /src
COPY pyproject.toml README.md ./
COPY app app
COPY decoders decoders
COPY tensortap tensortap
RUN python -m pip install --no-cache-dir --disable-pip-version-check --no-compile '.[server]' \
 && python -m pip uninstall --yes --quiet --disable-pip-version-check pip \
 && python -m compileall -q /opt/venv/lib

FROM ${PYTHON_IMAGE}
COPY --from=build /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    TENSORTAP_HOST=0.0.0.0 \
    TENSORTAP_PORT=8000 \
    TENSORTAP_ROOT=/models
WORKDIR /tmp
EXPOSE 8000
USER 65532:65532
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen('http://127.0.0.1:' + os.environ['TENSORTAP_PORT'] + '/healthz', timeout=2)"]
CMD ["python", "-m", "app", "serve"]
