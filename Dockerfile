ARG PYTHON_IMAGE=python:3.13-slim

# What the service needs, as deploy/requirements.lock has it: a layer that changes with the lock only.
FROM ${PYTHON_IMAGE} AS dependencies
RUN python -m venv /opt/tools && python -m venv --without-pip /opt/venv
WORKDIR /src
COPY deploy/requirements.lock ./
RUN /opt/tools/bin/python -m pip --python /opt/venv/bin/python install --quiet --no-cache-dir --disable-pip-version-check \
    --no-compile --only-binary :all: --require-hashes -r requirements.lock
# What only tests, compilers and type checkers read; most of it is numpy's.
RUN cd /opt/venv/lib/python3*/site-packages \
 && rm -r numpy/f2py /opt/venv/bin/f2py /opt/venv/bin/numpy-config \
 && find . -depth -type d \( -name tests -o -path ./numpy/_core/include \) -exec rm -r {} + \
 && find . -type f \( -name '*.pyi' -o -name '*.a' -o -name '*.[ch]' -o -name '*.pyx' -o -name '*.pxd' \) -delete
# The same bytes in each build: bytecode that holds whatever the times of files are, and times that are fixed. Layers are
# copied with their parent folders, which else would have the time of the build.
ARG SOURCE_DATE_EPOCH=315532800
ENV PYTHONHASHSEED=0
RUN python -m compileall -q -j 1 --invalidation-mode unchecked-hash /opt/venv/lib \
 && mkdir -p /dependencies/opt && cp -a /opt/venv /dependencies/opt \
 && find /dependencies -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +

# The project itself, by the build backend of deploy/build.lock.
FROM dependencies AS project
COPY deploy/build.lock ./
RUN /opt/tools/bin/python -m pip install --quiet --no-cache-dir --disable-pip-version-check \
    --only-binary :all: --require-hashes -r build.lock
COPY pyproject.toml README.md ./
COPY app app
COPY decoders decoders
COPY tensortap tensortap
RUN /opt/tools/bin/python -m pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps -w /dist . \
 && /opt/tools/bin/python -m pip --python /opt/venv/bin/python install --quiet --disable-pip-version-check \
    --no-compile --no-deps --root /project /dist/*.whl \
 && python -m compileall -q -j 1 --invalidation-mode unchecked-hash -s /project -p / /project \
 && find /project -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +

FROM ${PYTHON_IMAGE}
COPY --from=dependencies /dependencies /
COPY --from=project /project /
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    TENSORTAP_HOST=0.0.0.0 \
    TENSORTAP_PORT=8000 \
    TENSORTAP_ROOT=/models
WORKDIR /tmp
EXPOSE 8000
USER 65532:65532
# Not urllib: it would ask the proxy that the container's environment may name.
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s --retries=3 \
    CMD ["python", "-c", "import http.client as h, os, sys; c = h.HTTPConnection('127.0.0.1', int(os.environ['TENSORTAP_PORT']), timeout=2); c.request('GET', '/healthz'); sys.exit(c.getresponse().status != 200)"]
CMD ["python", "-m", "app", "serve"]
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG PYTHON_IMAGE
LABEL org.opencontainers.image.title="tensortap" \
      org.opencontainers.image.description="GGUF files over HTTP: metadata, and any rows of any tensor." \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="${PYTHON_IMAGE}"
