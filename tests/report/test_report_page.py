"""The report in a real browser: it draws, asks no network, zooms, fits a phone, and runs nothing that a log says."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

import tracekit
from tests.postmortem.incidents import preemption_storm
from tests.report.browser import CHROMIUM, Page, browser
from tests.test_cli import call
from tests.test_storm import SAMPLE
from tracekit.run import Run

HOSTILE = "</script><img src=x onerror=alert(1)>"
in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
LABELS = "[...document.querySelectorAll('.chart')[0].querySelectorAll('.role-axis-label text')].map(e => e.textContent)"


@pytest.fixture(scope="module")
def storm() -> Run:
    return preemption_storm()


@pytest.fixture(scope="module")
def written(storm: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tracekit.report(storm, output=tmp_path_factory.mktemp("page") / "storm.html", remedies=False)


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    with browser(tmp_path / "profile") as found:
        yield found


def renamed(run: Run, prefix: str) -> Run:
    """The same run with ids that try to leave their place in the page."""
    names = ("request_id", "by_request_id", "victim_id", "needed_by", "external_id")
    tables = {
        table: frame.with_columns((pl.lit(prefix) + pl.col(c)).alias(c) for c in names if c in frame.columns)
        for table, frame in run.tables.items()
    }
    return replace(run, tables=tables, label=prefix)


def test_an_observed_run_is_put_beside_its_replay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "report.html"
    assert call("report", str(SAMPLE / "run"), "-o", str(path), "--no-remedies") == 0
    text = path.read_text()
    assert capsys.readouterr().out.startswith(f"{path}: ")
    assert '"observed"' in text
    assert '"simulated"' in text
    assert "preemption storm" in text
    assert path.stat().st_size < 5_000_000
    assert text.count("<script") == text.count("</script>")


def test_a_report_is_not_replaced_unasked_and_is_about_two_runs_at_most(written: Path, storm: Run) -> None:
    with pytest.raises(tracekit.TracekitError, match="exists"):
        tracekit.report(storm, output=written)
    with pytest.raises(tracekit.TracekitError, match="one run or two, found 3"):
        tracekit.report(storm, storm, storm, output=written, force=True)


@in_a_browser
def test_every_chart_is_drawn_without_a_complaint_or_a_request(written: Path, page: Page) -> None:
    page.open(written)
    assert page.value("document.querySelectorAll('.chart svg').length") >= 6
    assert page.troubles == [], page.troubles
    assert [url for url in page.requested if not url.startswith(("file:", "data:", "about:", "blob:"))] == []
    assert sum(url.startswith("file:") for url in page.requested) == 1


@in_a_browser
def test_the_brush_zooms_every_panel(written: Path, page: Page) -> None:
    page.open(written)
    before = page.value(LABELS)
    box = page.value(
        "(() => { const svg = document.querySelector('.chart svg'); svg.scrollIntoView({block: 'end'});"
        " const b = svg.getBoundingClientRect(); return [b.left, b.bottom, b.width]; })()"
    )
    left, bottom, width = box
    page.drag((left + width * 0.4, bottom - 60), (left + width * 0.6, bottom - 60))
    page.wait_for(f"JSON.stringify({LABELS}) !== {page.value(f'JSON.stringify(JSON.stringify({before}))')}")
    assert page.troubles == [], page.troubles


@in_a_browser
@pytest.mark.parametrize("width", [390, 1200])
def test_nothing_is_wider_than_the_screen(written: Path, page: Page, width: int) -> None:
    page.open(written, width=width)
    assert page.value("document.documentElement.scrollWidth") <= width
    over = "[...document.querySelectorAll('.chart')].map(c => c.querySelector('svg').getBoundingClientRect().right - c.getBoundingClientRect().right)"
    assert max(page.value(over)) <= 1


@in_a_browser
def test_dark_is_dark(written: Path, page: Page) -> None:
    def shades() -> list[str]:
        return list(page.value(
            "[getComputedStyle(document.body).backgroundColor,"
            " document.querySelector('.role-axis-label text').getAttribute('fill')]"
        ))  # fmt: skip

    page.open(written)
    light = shades()
    page.open(written, dark=True)
    assert light[0] == "rgb(255, 255, 255)"
    assert all(one != other for one, other in zip(light, shades(), strict=True))


@in_a_browser
def test_what_a_log_says_is_shown_and_never_run(storm: Run, tmp_path: Path, page: Page) -> None:
    path = tracekit.report(renamed(storm, HOSTILE), output=tmp_path / "hostile.html", remedies=False)
    page.open(path)
    assert HOSTILE in page.value("document.body.innerText")
    assert page.value("document.querySelectorAll('.chart svg').length") >= 6
    assert page.value("document.querySelectorAll('img').length") == 0
    assert page.dialogs == []
    assert page.troubles == [], page.troubles


def test_a_chart_becomes_a_picture(storm: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "run"
    storm.save(saved)
    png, svg = tmp_path / "t.png", tmp_path / "r.svg"
    arguments = ["report", str(saved), "-o", str(tmp_path / "r.html"), "--no-remedies"]
    assert call(*arguments, "--image", "timeline", str(png), "--image", "requests", str(svg)) == 0
    assert png.read_bytes().startswith(b"\x89PNG")
    assert svg.read_text().startswith("<svg")
    for name, file, message in (
        ("nonsense", "x.png", "no chart is named 'nonsense'"),
        ("ttft", "x.pdf", ".png or .svg"),
    ):
        assert call(*arguments, "--force", "--image", name, str(tmp_path / file)) == 2
        assert message in capsys.readouterr().err
    assert call(*arguments, "--force", "--image", "ttft", str(png.parent / "none" / "x.png")) == 2
    assert "no such directory" in capsys.readouterr().err
