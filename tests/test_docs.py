"""The code of README and manual runs, their links lead somewhere, figures are the results'."""

from __future__ import annotations

import json
import re

import pytest

from pages import PAGES, ROOT, Desk, blocks_of

# Blocks that cannot run in a test, each with its reason beside it: machines, days, downloads.
NOT_RUN = {"scale.md": 1, "gpu.md": 2, "comparing.md": 1, "ray.md": 3, "tracking.md": 2}


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """What several pages take as given; see `Desk`."""
    return tmp_path_factory.mktemp("shared")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # MLflow's own, as it is imported
@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_the_code_of_a_page_runs(page, shared, tmp_path, monkeypatch):
    blocks = [block for block in blocks_of(page) if block.language in ("python", "bash")]
    monkeypatch.chdir(tmp_path)
    few_trees(monkeypatch)
    desk = Desk(tmp_path, shared)
    try:
        for block in blocks:
            try:
                desk.check(block) if block.reason else desk.run(block)
            except Exception as error:
                error.add_note(f"in the block at {block}")
                raise
    finally:
        desk.close()
    assert sum(bool(block.reason) for block in blocks) == NOT_RUN.get(page.name, 0)


def few_trees(monkeypatch):
    from fieldwise import boosted

    monkeypatch.setattr(boosted, "MEMBERS", 1)
    monkeypatch.setattr(boosted, "MOST_TREES", 40)


def test_blocks_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "Text\n\n    fieldwise info m\n\n- a list\n    goes on\n\n    z = p . q\n\n"
        "```python\nx = 1\n```\n\n<!-- not run: a reason -->\n\n```bash\nmake \\\n  it\n```\n"
    )
    found = [(b.line, b.language, b.text.strip(), b.reason) for b in blocks_of(page)]
    assert found == [
        (3, "bash", "fieldwise info m", ""),
        (8, "", "z = p . q", ""),
        (10, "python", "x = 1", ""),
        (16, "bash", "make \\\n  it", "a reason"),
    ]


@pytest.mark.parametrize(
    "line",
    [
        *(
            "fieldwise trian a.csv",
            "fieldwise train a.csv --out b --no-such",
            "rm -r .",
            "make tea",
        ),
        *(
            "make tea",
            "pip install 'fieldwise[tea]'",
            "python -m benchmarks.tea",
            "curl localhost:8000/schema",
        ),
    ],
)
def test_a_wrong_line_fails(line, tmp_path):
    with pytest.raises(AssertionError):
        Desk(tmp_path, tmp_path).command(line)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)]+)\)", text):
        place, _, anchor = target.partition("#")
        if place.startswith("http"):
            continue
        file = page.parent / place if place else page
        assert file.exists(), f"{page.name} links to {target}"
        if anchor:
            heads = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
            assert anchor in map(slug, heads), f"{page.name} links to {target}"


def slug(head):
    """The anchor of a heading, as the site and code hosts have it."""
    return re.sub(r"[^\w\- ]", "", head.replace("`", "").lower()).strip().replace(" ", "-")


def results(name):
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


@pytest.mark.parametrize("page", ["README.md", "docs/speed.md"])
def test_the_figures_of_speed_are_the_results(page):
    text = (ROOT / page).read_text()
    data = results("data")
    figures = [
        " / ".join(f"{r['rows_per_second']:,.0f}" for r in data["encode"]),
        " / ".join(f"{r['peak_gb']:.2f}" for r in data["encode"]) + " GB",
        f"{data['times_plain_loop']:.1f} times",
        f"{data['import_seconds']:.2f} / {data['help_seconds']:.2f} s",
    ]
    for shape in results("cpu")["training"].values():
        speed = shape["samples_per_second"]
        for peer in ("published", "sparse"):
            figures.append(f"{speed[peer]:,.0f} ({shape[f'times_{peer}']:.0f} times)")
        figures.append(f"| {speed['fieldwise']:,.0f} |")
    cpu = results("cpu")
    figures.append(f"| {cpu['scoring']['rows_per_second']:,.0f} |")
    figures.append(f"{cpu['one_row_microseconds']['median']:.0f} microseconds")
    assert [f for f in figures if f not in text] == []


def test_the_readmes_figures_are_the_results():
    text = (ROOT / "README.md").read_text()
    figures = []
    gpu = results("gpu")
    figures.append(f"{gpu['step_microseconds']['criteo']['fieldwise']:.0f} microseconds")
    figures.append(f"{gpu['step_microseconds']['criteo']['times_published']:.0f} times less")
    figures.append(f"{gpu['whole_run']['seconds']:.1f} s")
    for table in results("presets")["tables"].values():
        for found in table["methods"].values():
            figures.append(f"{found['logloss']:.4f} ({found['seconds']:.0f} s)")
    text = text.replace("**", "")
    assert [f for f in figures if f not in text] == []


def test_the_figures_of_serving_are_the_results():
    text = " ".join((ROOT / "docs" / "serving.md").read_text().split())
    found = results("serve")
    one, steady, batch = found["one_row"], found["steady"], found["batch"]
    figures = [
        f"{one['requests_per_second']:,.0f} of {one['empty_requests_per_second']:,.0f}",
        f"{one['share_of_empty']:.0%}",
        f"{steady['milliseconds']['p99']:.1f} ms",
        f"{batch['rows_per_second']:,.0f} rows/s",
        f"{found['rank']['rank_ms']:.1f} ms",
    ]
    assert [f for f in figures if f not in text] == []
    text = " ".join((ROOT / "docs" / "exporting.md").read_text().split())
    onnx = found["onnx"]
    figures = [f"{onnx[f'onnx_{n}_fields_row_microseconds']:.0f} microseconds" for n in (39, 22)]
    assert [f for f in figures if f not in text] == []
    text = " ".join((ROOT / "docs" / "compressing.md").read_text().split())
    compressed = found["compress"]
    tables = {**compressed["unseen"], **{k: compressed[k] for k in ("flights", "frappe")}}
    figures = [f"{x['times_smaller']:.1f} | {x['test_loss_added']:+.5f} |" for x in tables.values()]
    assert [f for f in figures if f not in text] == []


def test_the_figures_of_scale_are_the_results():
    text = " ".join((ROOT / "docs" / "scale.md").read_text().split())
    found = results("scale")
    figures = [f"{found['speed'][f'{n}_workers']['times_one']:.2f} times" for n in (2, 3)]
    exact = [found["exactness"][f"{n}_workers"]["largest_difference"] for n in (1, 2, 3, 4)]
    figures.append(f"{max(exact):.1e}")
    assert [f for f in figures if f not in text] == []


def test_the_gpus_figures_are_the_results():
    text = " ".join((ROOT / "docs" / "gpu.md").read_text().split())
    gpu = results("gpu")
    figures = [
        f"{gpu['whole_run']['seconds']:.1f} s, {min(gpu['whole_run']['epoch_seconds']):.1f} s an",
        f"{gpu['whole_run']['peak_gpu_gb']:.1f} GB",
        f"{gpu['streaming']['times_resident']:.2f} times as long",
    ]
    for name, shape in gpu["step_microseconds"].items():
        assert shape["same_bits"]
        figures.append(f"| {shape['fieldwise']:.0f} | {shape['published']:,.0f}")
        for peer in ("published", "torch_sparse"):
            figures.append(f"{shape[peer]:,.0f} ({shape[f'times_{peer}']:.0f} times)")
        figures.append(f"{shape['half']:.0f} " + ("microseconds" if name == "criteo" else "at"))
    stages = [s["stages"]["microseconds"] for s in gpu["step_microseconds"].values()]
    for stage in stages[0]:
        figures.append(" | ".join(f"{s[stage]:.1f}" for s in stages))
    tables = gpu["both_engines"]
    figures.append(f"{abs(tables['frappe']['difference']):.0e} on Frappe")
    figures.append(f"{tables['planted']['difference']:.0e} on a planted")
    figures.append(f"{tables['frappe']['difference_of_half']:.1e}")
    figures.append(f"{tables['planted']['difference_of_half']:.1e}")
    assert [f for f in figures if f not in text] == []


def test_the_comparisons_figures_are_the_results():
    text = (ROOT / "docs" / "results.md").read_text()
    found = results("compare")["tables"]
    for table in found.values():
        for row in table["methods"]:
            assert row["status"] in ("ok", "out of time"), row
            assert f"{row['logloss']:.4f}" in text
            assert f"{row['parameters']:,}" in text
    words = " ".join((ROOT / "docs" / "comparing.md").read_text().split())
    speed = results("baselines")["epochs"]
    assert f"takes {speed['FM']['times_as_fast']:.1f} times less" in words
    assert f"FFM {speed['FFM']['times_as_fast']:.1f} times less" in words
    time = results("compare_time")
    assert f"{sum(time['rows'].values()):,} rows" in words
    assert f"take {time['compare_flights_seconds'] / 60:.0f} minutes" in words
    ours = next(row for row in found["frappe"]["methods"] if row["name"] == "fieldwise")
    default = results("accuracy")["tables"]["frappe"]["models"]["fieldwise"]
    assert f"{default['logloss']:.4f} instead of {ours['logloss']:.4f}" in words


def test_the_explanations_figures_are_the_results():
    text = " ".join((ROOT / "docs" / "explaining.md").read_text().split())
    found = results("explain")
    criteo, rows, page = found["criteo"], found["rows"], found["page"]
    cards = [criteo[f"card_of_a_{kind}_field_seconds"] * 1000 for kind in ("large", "small")]
    figures = [
        f"{criteo['fields_and_bound_seconds']:.1f} s",
        " / ".join(f"{card:.0f}" for card in cards) + " ms",
        f"{rows['rows_per_second']:,.0f} (",
        f"a hundred trees: {rows['lightgbm_rows_per_second']:,.0f})",
        f"report of {page['categories']:,} categories",
        f"{page['numbers_seconds'] + page['page_seconds']:.0f} s, {page['megabytes']:.1f} MB",
    ]
    assert [f for f in figures if f not in text] == []


def test_the_tasks_figures_are_the_results():
    text = " ".join((ROOT / "docs" / "tasks.md").read_text().split())
    tasks = results("tasks")
    outputs = {k: v["times_one_output"] for k, v in tasks["outputs"].items()}
    some = tasks["aggregation"]
    figures = [
        f"four members takes {outputs['4 members']:.1f} times",
        f"two {outputs['2 members']:.1f} times",
        f"{some['as_they_are']['seconds']:.1f} s, and {some['aggregated']['seconds']:.1f} s with",
        f"{some['times_training_seconds']:.1f} times as fast",
        f"to {abs(some['difference']):.0e}",
    ]
    for row in tasks["tables"].values():
        for name in ("fieldwise", "LightGBM"):
            found = row[name]
            value = f"{found['logloss']:.4f}" if "logloss" in found else f"{found['rmse']:.2f}"
            figures.append(f"{value} ({found['seconds']:.0f} s)")
    for row in results("components")["tables"].values():
        figures.append(
            " | ".join(
                f"{row[c]['test_logloss']:.4f} ({row[c]['seconds']:.0f} s)"
                for c in ("linear", "fm")
            )
        )
    assert [f for f in figures if f not in text] == []
