# Two commands for a newcomer: `make demo` runs the main job, `make test` passes the tests. With a Kubernetes at hand:
# `make test-cluster KUBECONFIG=... YOLO_TEST_DATA=...`.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test stress test-cluster lint bench clean

demo: $(STAMP)
	$(BIN)/yolo-airflow demo $(if $(DATA),--data $(DATA)) $(if $(EPOCHS),--epochs $(EPOCHS)) $(if $(MODEL),--model $(MODEL)) $(if $(IMGSZ),--imgsz $(IMGSZ)) $(if $(MEMORY_BUDGET),--memory-budget $(MEMORY_BUDGET)) $(if $(RUNS),--runs $(RUNS))

test: $(STAMP)
	$(BIN)/python -m pytest $(ARGS)

# Fifty processes on one profile store for a minute, and its server killed under them.
stress: export YOLO_STRESS_SECONDS ?= 60
stress: $(STAMP)
	$(BIN)/python -m pytest -m stress tests --durations=5 $(ARGS)

# On a real Kubernetes: KUBECONFIG is an administrator's, YOLO_TEST_DATA the folder with bccd/.
test-cluster: export KUBECONFIG := $(KUBECONFIG)
test-cluster: export YOLO_TEST_DATA := $(YOLO_TEST_DATA)
test-cluster: $(STAMP)
	$(BIN)/python -m pytest tests/cluster --durations=10 $(ARGS)

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
	$(BIN)/python -m pip install --quiet --constraint docker/constraints.txt --editable '.[worker,postgres,plot,dev]'
	touch $@

clean:
	rm -rf $(VENV) .demo build dist
