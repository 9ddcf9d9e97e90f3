# The course's commands; `make help` lists them. Each but doctor sets .venv up first if that is not done.
#   make lab ARGS="--no-browser --port=8889"    arguments for JupyterLab
#   make take CHAPTER=1                         or CHAPTER="1 5"
#   make test ARGS="-k softmax"                 arguments for pytest
#   make notebooks ARGS=notebooks/01_*.ipynb    only these notebooks
#   make setup PYTHON=python3.12                makes .venv anew if it has another Python
#   make test CONSTRAINTS=constraints-oldest.txt   other versions; none named: the newest in pyproject.toml's ranges. `make clean` first

ARGS ?=
CONSTRAINTS ?= constraints.txt
VENV := .venv
PYTHON ?= $(or $(wildcard $(VENV)/bin/python),python3)
RUN := $(VENV)/bin/python
INSTALL := pip install --disable-pip-version-check $(CONSTRAINTS:%=-c %) -e
INSTALLED := $(VENV)/.installed
SITE_INSTALLED := $(VENV)/.site_installed
MODELS_INSTALLED := $(VENV)/.models_installed
BROWSER_INSTALLED := $(VENV)/.browser_installed

.DEFAULT_GOAL := help
.PHONY: help setup lab work take check-work test test-slow browser-test figures notebooks site doctor compile-report clean

help:
	@echo "make setup         make .venv, and install what constraints.txt pins, or what of it is missing"
	@echo "make lab           open your copies of the notebooks, in work/, in JupyterLab"
	@echo "make work          copy the notebooks that work/ lacks, and say which chapters are newer than yours"
	@echo "make take          take a chapter as the course has it now (CHAPTER=1), and keep your copy beside it"
	@echo "make check-work    run your copies, and print what their checks say (CHAPTER=1 for one of them)"
	@echo "make test          ruff, the tests, and every notebook of the course; never reads work/"
	@echo "make test-slow     every kernel compiled, every exercise solved in its notebook, models, images, the site"
	@echo "make browser-test  the notebooks, the site and the explorable figures in headless Chromium"
	@echo "make doctor        say what this machine can run, and what is wrong with the installation"
	@echo "make site          render the course for reading without running it, in build/site"
	@echo "make figures       draw images/ again"
	@echo "make notebooks     run the notebooks and store their outputs again"
	@echo "make compile-report  compile every kernel for GPUs that are not there"
	@echo "make clean         remove .venv and every cache; work/ stays"
	@echo "Arguments go on in ARGS: make lab ARGS=--no-browser. Another Python: make PYTHON=python3.12 setup"

setup:
	@rm -f $(INSTALLED)
	@$(MAKE) --no-print-directory $(INSTALLED)

lab: $(INSTALLED)
	@$(RUN) -m fa_tutorial lab $(ARGS)

work: $(INSTALLED)
	@$(RUN) -m fa_tutorial work

take: $(INSTALLED)
	@test -n "$(CHAPTER)" || { echo 'name the chapter: make take CHAPTER=1' >&2; exit 1; }
	@$(RUN) -m fa_tutorial work take $(CHAPTER)

check-work: $(INSTALLED)
	@$(RUN) -m fa_tutorial work check $(CHAPTER)

# pytest comes last, so that its closing line is the last line printed. Two workers, each with whole files: a notebook's cells stay in order.
test: $(INSTALLED)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m pytest -n 2 --dist loadfile --nbval --nbval-current-env --nbval-cell-timeout=120 $(ARGS)

test-slow: $(INSTALLED) $(SITE_INSTALLED) $(MODELS_INSTALLED)
	$(RUN) -m pytest -n 2 --dist loadgroup -m slow tests $(ARGS)

browser-test: $(BROWSER_INSTALLED)
	$(RUN) -m pytest -rs -m browser tests/test_browser.py tests/test_explore.py $(ARGS)

figures: $(INSTALLED)
	PYTHONPATH=images $(RUN) -m draw $(ARGS)

notebooks: $(INSTALLED)
	$(RUN) tools/store_notebooks.py $(or $(ARGS),notebooks/*.ipynb)

# -W: a link, a picture or a reference that leads nowhere fails the build. -E: a page that changed may be named on every other.
site: $(SITE_INSTALLED)
	$(RUN) -m sphinx -q -W --keep-going -E -c site -d build/doctrees $(ARGS) . build/site
	@echo "build/site/index.html"

doctor:
	@test -e $(INSTALLED) || { echo "Nothing is installed in $(VENV), or not all of it. This goes on, and says what fails: make setup" >&2; exit 1; }
	$(RUN) -m fa_tutorial doctor

compile-report: $(INSTALLED)
	$(RUN) tools/compile_report.py $(if $(ARGS),$(ARGS),compile_report.md)

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .ruff_cache
	find . -path ./work -prune -o \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune -exec rm -rf {} +

# The stamp says that .venv holds what these two files ask for; a second call finds it and installs nothing.
$(INSTALLED): $(CONSTRAINTS) pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not installed, or not on the path; name another: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed, and $(PYTHON) is $$($(PYTHON) -V 2>&1). Name another: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "$(PYTHON) has no venv module. On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@$(RUN) -m pip --version 2>&1 | grep -q "$$($(PYTHON) -c 'import sys; print("(python %d.%d)" % sys.version_info[:2])')" || $(PYTHON) -m venv --clear $(VENV)
	@echo "Installing into $(VENV), once, which takes some minutes: about 6 GB with a GPU's build of PyTorch. If it stops, the same command goes on."
	$(RUN) -m $(INSTALL) '.[lab,test]'
	@touch $@

$(SITE_INSTALLED): $(INSTALLED)
	$(RUN) -m $(INSTALL) '.[site]'
	@touch $@

$(MODELS_INSTALLED): $(INSTALLED)
	$(RUN) -m $(INSTALL) '.[models]'
	@touch $@

$(BROWSER_INSTALLED): $(SITE_INSTALLED)
	$(RUN) -m $(INSTALL) '.[browser]'
	$(RUN) -m playwright install chromium || echo "Playwright's Chromium cannot be had; a Chromium or Chrome on the path is taken instead" >&2
	@touch $@
