# make demo   sets up .venv and trains the agent on CartPole under the callback (CPU)
# make test   sets up .venv and runs the tests
# make check  lints and type-checks
# make gpu-test, make bench   need what they say; see CONTRIBUTING.md

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt

.PHONY: demo test slow-test check gpu-test bench clean

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -e '.[rl,dev]'
	touch $@

demo: $(VENV)/.installed
	$(BIN)/sp4 fit --config configs/base.yaml --config configs/cartpole.yaml

test: $(VENV)/.installed
	$(BIN)/python -m pytest -n auto

slow-test: $(VENV)/.installed
	$(BIN)/python -m pytest -m slow

check: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

gpu-test: $(VENV)/.installed
	$(BIN)/python -m pytest -m gpu

bench: $(VENV)/.installed
	$(BIN)/python benchmarks/cpu_agent.py --out benchmarks/results/cpu_agent.json
	$(BIN)/python benchmarks/agent_speed.py --out benchmarks/results/agent_speed.json
	$(BIN)/python -m benchmarks.synthetic

clean:
	rm -rf $(VENV) runs dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
