# Two commands for a newcomer: `make demo` runs the main job, `make test` passes the tests.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test lint bench clean

demo: $(STAMP)
	$(BIN)/yolo-airflow demo $(if $(DATA),--data $(DATA)) $(if $(EPOCHS),--epochs $(EPOCHS)) $(if $(MODEL),--model $(MODEL)) $(if $(IMGSZ),--imgsz $(IMGSZ)) $(if $(MEMORY_BUDGET),--memory-budget $(MEMORY_BUDGET)) $(if $(RUNS),--runs $(RUNS))

test: $(STAMP)
	$(BIN)/python -m pytest $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP)
	@$(BIN)/python -m benchmarks.$(NAME) $(ARGS)

# torch and torchvision have to be chosen together, so they come first and with exact versions.
$(STAMP): pyproject.toml docker/constraints.txt
	$(BIN)/python -m pip --version > /dev/null 2>&1 || { rm -rf $(VENV) && $(PYTHON) -m venv $(VENV); }
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint docker/constraints.txt torch torchvision
	$(BIN)/python -m pip install --quiet --constraint docker/constraints.txt --editable '.[worker,postgres,dev]'
	touch $@

clean:
	rm -rf $(VENV) .demo build dist
