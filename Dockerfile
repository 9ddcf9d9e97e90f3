# The course without a GPU: docker build -t fa_tutorial . && docker run -p 8888:8888 fa_tutorial

# What the course needs of a machine; .devcontainer/ stops here, and mounts the repository.
FROM python:3.12-slim AS machine
RUN apt-get update \
    && apt-get install --yes --no-install-recommends git make \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home reader \
    && mkdir /course \
    && chown reader /course
USER reader
WORKDIR /course

FROM machine
# An index with CPU builds of torch, which are much smaller than the CUDA builds that pip finds without it: --build-arg PIP_EXTRA_INDEX_URL=...
ARG PIP_EXTRA_INDEX_URL
COPY --chown=reader . .
RUN make setup
EXPOSE 8888
CMD ["make", "lab", "ARGS=--ip=0.0.0.0 --no-browser"]
