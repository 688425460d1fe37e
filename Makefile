# Everything a developer runs. The environment is made once and remade when its inputs change.

PYTHON ?= python3
BIN := .venv/bin
# Two processes of one thread each: libraries of NumPy and SciPy would start one thread a core in both.
# Bytecode is kept, so that tests and library are compiled once, whatever the shell says.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist worksteal

.PHONY: demo test test-all lint docs notebooks charts pages bench bench-check bench-baseline bench-neural-tangents coverage \
  zoo bestiary release-check browser clean

# Tune small, train large, on one page: out/demo/report.html. A minute, by the base package alone. The check exits with
# 1, as it finds that PyTorch's defaults do not scale.
demo: .venv/base
	$(BIN)/nfd check examples/small_transformer.py --widths 32 64 128 --depths 2 4 8 --lr 0.004 --rule standard \
	  --out out/demo/check || test $$? = 1
	$(BIN)/nfd transfer examples/small_transformer.py --widths 32 128 --depths 2 --rules standard complete-p \
	  --out out/demo/transfer || test $$? = 1
	$(BIN)/nfd paper study --steps 12 --depths 2 4 8 --limit-width 512 --widths 32 128 --seeds 3 --block-depths 4 8 16 \
	  --block-seeds 3 --out out/demo/paper
	$(BIN)/python -m makers.demo out/demo

test: lint
	$(PYTEST)

test-all: lint
	$(PYTEST) -m ""

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/codespell
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m tests.rooms

# The site, in build/docs; it needs no network, nor does its reader.
docs: .venv/installed
	$(BIN)/python -m sphinx -q -E -W --keep-going docs build/docs

# The notebooks of the gallery, executed: make notebooks, or NAMES="scaling_law" for some.
notebooks: .venv/installed
	$(BIN)/python -m ipykernel install --sys-prefix --name python3
	$(BIN)/python -m makers.notebooks $(NAMES)

# The images of the documentation, from stored numbers.
charts: .venv/installed
	$(BIN)/python -m makers.evidence
	$(BIN)/python -m makers.question_charts

# The pages of evidence, from stored numbers.
pages: .venv/installed
	$(BIN)/python -m makers.pages

# Every part, or some: make bench ONLY="dense structured". SHARED=1 where others use the machine.
bench: .venv/installed
	$(BIN)/python -m benchmarks.run $(if $(ONLY),--only $(ONLY)) $(if $(SHARED),--shared)

# Measure again, and compare ratios with benchmarks/baseline.json: shares of bounds on another machine.
bench-check: bench
	$(BIN)/python -m benchmarks.check "$$(ls -t out/bench/*.json | head -1)"

# The last result becomes the baseline, and the page is made from it.
bench-baseline: .venv/installed
	$(BIN)/python -m benchmarks.check --accept "$$(ls -t out/bench/*.json | head -1)"
	$(BIN)/python -m makers.benchmarks_page
	$(BIN)/python -m makers.evidence

# How often intervals contain the truth: docs/coverage.csv and .md. make coverage ONLY="means slopes" for some parts.
coverage: .venv/installed
	$(BIN)/python -m calibration.coverage --keep $(if $(ONLY),--only $(ONLY)) $(if $(REPETITIONS),--repetitions $(REPETITIONS))

# Every question put to models that others wrote: docs/zoo.md. The zoo has an environment of its own, as timm needs a
# torchvision that fits PyTorch; so its tests and its page are run here, too. make zoo AGAIN="Llama ViT" asks of some
# again.
zoo: out/zoo/installed
	out/zoo/bin/python -m pytest tests/test_frameworks.py tests/test_docs.py -k timm
	out/zoo/bin/python -m tests.zoo --again $(AGAIN)

out/zoo/installed: pyproject.toml
	$(PYTHON) -m venv out/zoo
	out/zoo/bin/python -m pip install --quiet --disable-pip-version-check -e '.[zoo]'
	touch $@

# What a check says of twenty scaling bugs of public code, and of their twins: docs/bestiary.md.
bestiary: .venv/installed
	$(BIN)/python -m tests.bestiary

# Sdist and wheel, built, installed and tried away from the repository. It needs a package index with PyTorch, some
# minutes, and 2 GB of disk (8 GB where that PyTorch brings CUDA). VERSIONS=oldest or tested and INTERPRETER=python3.14
# try others; VENV=DIR installs into an environment that is kept; EXTRA=1 tries an extra too.
release-check:
	$(PYTHON) -m tests.release --versions $(or $(VERSIONS),newest) --interpreter $(or $(INTERPRETER),$(PYTHON)) \
	  $(if $(VENV),--venv $(VENV)) $(if $(EXTRA),--extra)

# An opponent of the kernels that needs an old JAX, and so an environment of its own.
bench-neural-tangents: out/neural-tangents/installed

out/neural-tangents/installed: benchmarks/neural-tangents.txt
	$(PYTHON) -m venv out/neural-tangents
	out/neural-tangents/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	touch $@

# For the tests that look at pages: Debian's chromium, where no browser is there and it can be installed.
browser:
	@if command -v chromium || command -v chromium-browser || command -v google-chrome; then :; \
	elif [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
	  echo "No browser, and none can be installed here: the tests that need one will be skipped."; \
	else \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive timeout 600 \
	    apt-get install -y -qq --no-install-recommends chromium >/dev/null; } \
	  || echo "Chromium could not be installed: the tests that need a browser will be skipped."; \
	fi

.venv/base: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e . -c constraints.txt
	touch $@

.venv/installed: .venv/base
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]' -c constraints.txt
	touch $@

clean:
	rm -rf .venv out build dist
