"""Version rules: the boundaries stand where the recorded decisions change, and nowhere else."""

from itertools import pairwise

import pytest

from tracekit.errors import ConfigError
from tracekit.model.rules import Engine, rules_for, rules_note

V1_CLASSES = (
    ("0.7.1", "0.7.2", "0.7.3", "0.8.0", "0.8.1", "0.8.2"),
    ("0.8.3", "0.8.4"),
    ("0.8.5", "0.8.5.post1", "0.9.0", "0.9.0.1", "0.9.1"),
    ("0.9.2", "0.10.0", "0.10.1", "0.10.1.1"),
    ("0.10.2", "0.11.0"),
    ("0.11.1", "0.11.2"),
    ("0.12.0", "0.13.0", "0.14.0", "0.14.1", "0.15.0", "0.15.1", "0.16.0", "0.17.0", "0.17.1", "0.18.0", "0.18.1"),
    ("0.19.0", "0.19.1", "0.20.0", "0.20.1", "0.20.2", "0.21.0", "0.22.0", "0.22.1", "0.23.0"),
    ("0.24.0", "0.25.0", "0.25.1", "0.26.0", "0.27.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0"),
    ("0.31.0", "0.32.0"),
    ("0.33.0",),
)
V0_CLASSES = (
    ("0.4.2", "0.4.3"),
    ("0.5.0.post1", "0.5.1", "0.5.2", "0.5.3.post1"),
    ("0.5.4", "0.5.5"),
    ("0.6.0", "0.6.1.post2", "0.6.2"),
    ("0.6.3", "0.6.3.post1", "0.6.4.post1"),
    ("0.6.5", "0.6.6.post1", "0.7.0", "0.7.3", "0.8.0", "0.8.5.post1", "0.9.0"),
    ("0.9.1",),
    ("0.9.2", "0.10.0", "0.10.1.1", "0.10.2"),
)


@pytest.mark.parametrize(("engine", "classes"), [("v0", V0_CLASSES), ("v1", V1_CLASSES)])
def test_versions_of_one_class_have_equal_rules(engine: Engine, classes: tuple[tuple[str, ...], ...]) -> None:
    for versions in classes:
        assert len({rules_for(version, engine) for version in versions}) == 1, versions


@pytest.mark.parametrize(("engine", "classes"), [("v0", V0_CLASSES), ("v1", V1_CLASSES)])
def test_neighbouring_classes_have_different_rules(engine: Engine, classes: tuple[tuple[str, ...], ...]) -> None:
    for before, after in pairwise(classes):
        assert rules_for(before[-1], engine) != rules_for(after[0], engine)


def test_v1_is_the_default_from_0_8_on() -> None:
    assert rules_for("0.7.3").engine == "v0"
    assert rules_for("0.8.0").engine == "v1"
    assert rules_for("0.9.2", "v0").engine == "v0"


def test_unrecorded_versions_get_the_nearest_rules_and_a_note() -> None:
    assert rules_for("0.34.1") == rules_for("0.33.0")
    assert "newer" in (rules_note("0.34.1") or "")
    assert rules_for("0.3.0") == rules_for("0.4.2")
    assert "older" in (rules_note("0.3.0") or "")
    assert rules_for("0.20.2rc1.dev7+g1234abc") == rules_for("0.20.2")
    assert "development" in (rules_note("0.20.2rc1.dev7+g1234abc") or "")
    assert "no V0" in (rules_note("0.12.0", "v0") or "")
    assert rules_note("0.33.0") is None
    assert rules_note("0.8.5.post1") is None


def test_prefix_statistics_do_not_make_rules_different() -> None:
    assert rules_for("0.26.0") == rules_for("0.27.0")
    assert rules_for("0.26.0").prefix_stats.counts == "lookups"
    assert rules_for("0.27.0").prefix_stats.counts == "admissions"


def test_a_text_that_is_no_version_is_refused() -> None:
    with pytest.raises(ConfigError):
        rules_for("latest")
