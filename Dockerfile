# The course without a GPU: docker build -t fa_tutorial . && docker run -it --rm -p 127.0.0.1:8888:8888 -v fa_tutorial_work:/course/work fa_tutorial

# What the course needs of a machine, with the Python that constraints.txt is tested with; .devcontainer/ stops here, and mounts the repository.
FROM python:3.11-slim AS machine
RUN apt-get update \
    && apt-get install --yes --no-install-recommends git make \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home reader \
    && mkdir --parents /course/work \
    && chown --recursive reader /course
USER reader
WORKDIR /course

FROM machine
# PyTorch's own index of CPU builds, which are 4 GB smaller than the CUDA builds that pip finds without it.
ARG PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
# First with what says which versions to install, and an empty package: a changed notebook leaves this layer, of 2 GB, as it is.
COPY --chown=reader Makefile pyproject.toml constraints.txt ./
RUN mkdir fa_tutorial && touch fa_tutorial/__init__.py README.md LICENSE LICENSE-TEXT && make setup
COPY --chown=reader . .
RUN make setup
# The reader's notebooks and progress are in one folder, so one volume keeps both.
ENV FA_TUTORIAL_STATE=/course/work
EXPOSE 8888
CMD [".venv/bin/python", "-m", "fa_tutorial", "lab", "--ip=0.0.0.0", "--no-browser"]
