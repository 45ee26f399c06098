"""The page in a real browser at the width of a desk and of a phone: it answers, it escapes, and nothing sticks out."""

import os
import re
from pathlib import Path

import pytest
from explore_models import HOSTILE, IMAGE, image_subject, plane_subject, serving, table_subject

from driven_browser import driven
from report_browser import chromium

pytestmark = pytest.mark.skipif(chromium() is None, reason="Chromium is not installed")

WIDTHS = [(1280, False), (390, True)]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with driven(tmp_path_factory.mktemp("browser")) as found:
        yield found


def opened(browser, server, name):
    """Opens the page at both widths, the phone last, and checks what holds for every page."""
    for width, phone in WIDTHS:
        browser.open(server.address, width, phone=phone)
        assert browser.said == []
        assert browser.needed() == width
        assert browser.broken() == []
        assert browser.smallest_text() > 10.5
        assert {address.split("?")[0].rpartition("/")[0] + "/" for address in browser.addresses if address[:5] != "data:"} == {
            server.address
        }
        assert browser.evaluate("window.hacked === undefined")
        if folder := os.environ.get("IDENSENET_SCREENSHOTS"):
            browser.screenshot(Path(folder) / f"explore-{name}-{width}.png")


def test_two_columns(browser):
    with serving(plane_subject()) as server:
        opened(browser, server, "plane")
        assert f"moons {HOSTILE}" in browser.text()
        before = browser.text()
        browser.click(".pick", 0.5, 0.4)
        after = browser.text()
        path = [line for line in after.splitlines() if "Its log-density is" in line]
        assert path
        assert path[0] not in before  # the way of another point
        browser.slide("Slice at", -2)
        (at,) = re.findall(r"Line: density of x2 given x1 = (\S+);", browser.text())
        assert float(at) == pytest.approx(-2, abs=0.03)
        browser.slide("After step", 1)
        assert "After block 1. " in browser.text()
        assert browser.evaluate("document.querySelectorAll('.dots.ofsamples').length") == 0
        browser.evaluate("[...document.querySelectorAll('button')].find(b => b.innerText === 'New samples').click()")
        browser.settle()
        assert browser.evaluate("document.querySelectorAll('.dots.ofsamples').length") == 1
        assert browser.said == []


def test_tables(browser):
    with serving(table_subject()) as server:
        opened(browser, server, "table")
        text = browser.text()
        for name in (HOSTILE, IMAGE, f"people {IMAGE}", f"A note with {IMAGE}."):
            assert name in text
        assert browser.evaluate("document.querySelectorAll('tbody tr').length") == 12
        assert "Scroll sideways for more columns" in text  # on a phone
        browser.click("tbody tr:nth-child(2)", 0.1)
        assert browser.evaluate("document.querySelectorAll('circle.mark').length") == 1
        browser.click(".matrix button:last-of-type")
        assert browser.evaluate("[...document.querySelectorAll('select')].map(s => s.value).join()") == "3,4"
        assert browser.said == []
        assert browser.evaluate("window.hacked === undefined")


def test_images(browser):
    with serving(image_subject()) as server:
        opened(browser, server, "images")
        around = "document.querySelector('img[alt*=neighbours]')"
        before = browser.evaluate(f"{around}.src")
        browser.slide("Angle between neighbours, degrees", 25)
        assert browser.evaluate(f"{around}.src") != before
        assert "25 degrees apart" in browser.evaluate(f"{around}.alt")
        browser.click(".thumbs button:nth-child(3)")
        assert "Image 2: " in browser.text()
        browser.slide("Temperature", 0.5)
        assert browser.evaluate("document.querySelector('img[alt=\"24 samples at temperature 0.5\"]') !== null")
        assert browser.said == []


def test_without_data_the_page_says_so(browser):
    with serving(table_subject(data=False)) as server:
        browser.open(server.address, 390, phone=True)
        assert f"Without data: no file {HOSTILE}" in browser.text()
        assert browser.needed() == 390
        assert browser.said == []
        assert browser.evaluate("window.hacked === undefined")


def test_a_server_that_has_ended_is_said(browser):
    with serving(plane_subject()) as server:
        browser.open(server.address, 1280)
    browser.slide("Slice at", 1)
    assert "has ended" in browser.text()
    assert "start 'idensenet explore' again" in browser.text()
