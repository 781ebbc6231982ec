"""docs/results.md and the demo: every number comes from results/*.json, and no setting was chosen by a test result."""

import json
import re
import shutil
from pathlib import Path

import pytest

from results import demo
from results.numbers import reached
from results.page import DOCS, page
from results.store import FOLDER, TUNING_SEED, Store, best
from results.studies import STUDIES, Study

STORED = [study for study in STUDIES if Store(study.name).runs]


def test_the_page_is_what_the_results_say() -> None:
    assert (DOCS / "results.md").read_text() == page(), "the results changed: run `python -m results --page`"
    for picture in re.findall(r"\]\((results-.*?)\)", page()):
        assert (DOCS / picture).stat().st_size < 200_000


def test_a_changed_result_changes_the_page(tmp_path: Path) -> None:
    for file in FOLDER.glob("*.json"):
        shutil.copy(file, tmp_path)
    assert page(tmp_path) == page()
    store = Store("fashion-mnist-rho0.6", tmp_path)
    run = store.of("final")[0]
    run["last_tenth_accuracy"] += 0.01
    store.write()
    assert page(tmp_path) != page()


@pytest.mark.parametrize("path", demo.PAGES)
def test_the_table_of_the_demo_is_what_its_runs_say(path: str, tmp_path: Path) -> None:
    text = (demo.ROOT / path).read_text()
    assert text == demo.page(path), "the results changed: run `python -m results --page`"
    shutil.copy(FOLDER / "demo.json", tmp_path)
    store = Store("demo", tmp_path)
    store.of("final", "FedBCGD")[1]["curve"]["accuracy"] = [0.5] * 60
    store.write()
    assert "never" in demo.page(path, tmp_path)


@pytest.mark.parametrize("study", STORED, ids=lambda study: study.name)
def test_every_run_is_documented_and_names_no_machine(study: Study) -> None:
    store = Store(study.name)
    assert len({(run["stage"], run["label"], run["key"]) for run in store.runs}) == len(store.runs)
    for run in store.runs:
        assert {"seed", "settings", "versions"} <= run.keys()
        assert re.fullmatch("[0-9a-f]{64}", run["sha256"]) if "error" not in run else run["score"] is None
    text = store.path.read_text()
    assert "/" not in json.dumps(store.config).replace("1/(MN)", "").replace("1/M", "")
    assert '"data.root"' not in text
    assert len(text) < 400_000


@pytest.mark.parametrize("study", [s for s in STORED if s.tune_rounds or s.tuned_as], ids=lambda study: study.name)
def test_final_runs_use_the_settings_that_were_best_on_validation_data(study: Study) -> None:
    store = Store(study.name)
    if study.tuned_as is not None:
        name, label = study.tuned_as
        found = best(Store(name).of("tune", label))
        assert found is not None
        for key, value in found["point"].items():
            assert store.config["algorithm"][key.removeprefix("algorithm.")] == value
        return
    for label in store.labels():
        points = store.of("tune", label)
        assert len(points) == study.points, "every method gets the same number of points"
        assert all(run["seed"] == TUNING_SEED for run in points)
        assert all(run["settings"]["data.evaluate_on"] == "validation" for run in points)
        chosen = best(points)
        assert chosen is not None
        for run in store.of("final", label):
            assert "data.evaluate_on" not in run["settings"]
            assert run["seed"] in study.seeds
            for key, value in chosen["point"].items():
                assert run["settings"].get(key, store.config["algorithm"].get(key.removeprefix("algorithm."))) == value


def test_a_target_is_reached_at_the_first_evaluation_or_running_mean_that_is_high_enough() -> None:
    run = {"curve": {"round": [2, 4, 6, 8], "upload_d": [1.0, 2.0, 3.0, 4.0], "accuracy": [0.1, 0.8, 0.6, 0.9]}}
    assert reached(run, 0.7) == (4, 2.0)
    assert reached(run, 0.7, smooth=3) == (8, 4.0)
    assert reached(run, 0.95) is None
