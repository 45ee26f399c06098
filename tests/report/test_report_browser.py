"""The page in a real browser, if there is one: no complaint on its console, and nothing sticks out."""

import pytest
import torch

from idensenet.report.page import write_report
from report_browser import chromium, render
from report_runs import HYBRID_OPTIONS, expanding_flow, fake_run, image_flow, image_source, toy_source

pytestmark = pytest.mark.skipif(chromium() is None, reason="Chromium is not installed")


@pytest.mark.parametrize(
    ("width", "said", "broken", "needed"), [(390, 1, 1, 900), (1280, 1, 1, 1280)], ids=["phone", "desktop"]
)
def test_faults_would_be_seen(width, said, broken, needed):
    page = (
        '<p style="width:900px;margin:0">wide</p><img src="data:image/png;base64,AAAA"><script>console.error("fault")</script>'
    )
    found = render(f'<!DOCTYPE html><body style="margin:0">{page}</body>', width)
    assert (len(found.console), found.broken, found.needed) == (said, broken, needed)


@pytest.mark.parametrize("kind", ["toy", "hybrid"])
def test_renders_on_desktop_and_phone(tmp_path, kind):
    torch.manual_seed(0)
    if kind == "toy":
        flow, source = expanding_flow(), toy_source()  # with an alarm
    else:
        flow = image_flow(**HYBRID_OPTIONS)
        source = image_source(flow, 3)
    run = fake_run(
        tmp_path / ("a-rather-long-name-" * 6), flow, source, "toy-idensenet" if kind == "toy" else "digits-idensenet"
    )
    page = write_report(run, source).read_text().replace("<details>", "<details open>")
    for width in (1280, 390):
        found = render(page, width)
        assert found.console == []
        assert found.needed == width
        assert found.broken == 0
        assert found.images == page.count("<img ")
