# Serves the model that ships, or the one named behind `serve`, as a user without privileges:
#
#   docker build -t ramiform .
#   docker run -p 30000:30000 -v ./models:/models ramiform serve /models/NAME --host 0.0.0.0
#
# For NVIDIA GPUs (PyTorch from PyPI brings CUDA; the host brings the driver; Triton needs a C compiler):
#
#   docker build -t ramiform:cuda --build-arg BASE=ubuntu:24.04 --build-arg TORCH_INDEX= --build-arg EXTRAS=gpu,gguf \
#     --build-arg PACKAGES="gcc libc6-dev python3-dev" .
#   docker run --gpus all -p 30000:30000 -v ./models:/models ramiform:cuda serve /models/NAME --host 0.0.0.0
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS build
RUN apt-get update && apt-get install -y --no-install-recommends python3 python3-venv && rm -rf /var/lib/apt/lists/*
COPY . /source
RUN python3 -m venv /opt/build && /opt/build/bin/pip wheel -q --no-deps -w /wheels /source

FROM ${BASE}
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ARG EXTRAS=gguf
ARG PACKAGES=
RUN apt-get update && apt-get install -y --no-install-recommends python3 python3-venv ca-certificates ${PACKAGES} \
    && rm -rf /var/lib/apt/lists/* && useradd --create-home --uid 10001 ramiform
COPY constraints.txt /opt/ramiform/
COPY --from=build /wheels /wheels
RUN python3 -m venv /opt/ramiform/env \
    && if [ -n "${TORCH_INDEX}" ]; then /opt/ramiform/env/bin/pip install -q --no-cache-dir --no-deps \
        -c /opt/ramiform/constraints.txt --index-url "${TORCH_INDEX}" torch; fi \
    && /opt/ramiform/env/bin/pip install -q --no-cache-dir -c /opt/ramiform/constraints.txt \
        "$(echo /wheels/ramiform-*.whl)[${EXTRAS}]"
# The cache is the user's: on another kind of processor the first start compiles the loops again.
ENV PATH=/opt/ramiform/env/bin:$PATH NUMBA_CACHE_DIR=/home/ramiform/loops
USER ramiform
WORKDIR /home/ramiform
RUN python -m ramiform.runtime.compile_ahead
EXPOSE 30000
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:30000/health', timeout=4)"]
# Inside a container 127.0.0.1 cannot be reached from outside; set RAMIFORM_API_KEY where the port is not private.
ENTRYPOINT ["ramiform"]
CMD ["serve", "--host", "0.0.0.0"]
