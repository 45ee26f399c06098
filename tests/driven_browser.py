"""A headless Chromium that is driven over a pipe: it opens pages, emulates a phone, clicks, and tells what it sees."""

import base64
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

from report_browser import QUIET, chromium

# the browser reads from descriptor 3 and writes to 4
AS_3_AND_4 = """import fcntl, os, sys
ends = [fcntl.fcntl(int(word), fcntl.F_DUPFD, 20) for word in sys.argv[1:3]]
for end, wanted in zip(ends, (3, 4)):
    os.dup2(end, wanted)
os.execvp(sys.argv[3], sys.argv[3:])"""

READY = "document.documentElement?.dataset.ready === 'yes'"  # of the page of `explore`


class Browser:
    """Commands of the DevTools protocol, one after the other, on one page."""

    def __init__(self, into, out):
        self.into, self.out, self.rest = into, out, b""
        self.number, self.session = 0, None
        self.said = []  # warnings and errors of the page
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.addresses = []  # everything that the page asked for

    def _read(self):
        while b"\0" not in self.rest:
            part = os.read(self.out, 1 << 16)
            assert part, "the browser has gone"
            self.rest += part
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        os.write(self.into, json.dumps(message | ({"sessionId": self.session} if self.session else {})).encode() + b"\0")
        while True:
            found = self._read()
            if found.get("id") == self.number:
                assert "error" not in found, found
                return found["result"]
            self._event(found.get("method"), found.get("params", {}))

    def _event(self, method, params):
        if method == "Runtime.exceptionThrown":
            self.said.append(params["exceptionDetails"].get("exception", {}).get("description", "exception"))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.said.append(str(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.said.append(params["entry"]["text"] + " " + params["entry"].get("url", ""))
        elif method == "Network.requestWillBeSent":
            self.addresses.append(params["request"]["url"])

    def evaluate(self, expression):
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, condition, seconds=50):
        end = time.monotonic() + seconds
        while not self.evaluate(condition):
            assert time.monotonic() < end, f"{condition} did not come true; the page said {self.said}"
            time.sleep(0.05)

    def open(self, address, width, height=900, phone=False, dark=False, ready=READY):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        self.call(
            "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        )
        self.said.clear()
        self.addresses.clear()
        self.call("Page.navigate", url=address)
        self.wait(ready)
        self.settle()

    def settle(self):
        """Until no answer is awaited any more."""
        self.wait("!document.querySelector('.busy')")

    def click(self, selector, x=0.5, y=0.5):
        """A click of the mouse inside an element, at a fraction of its width and height."""
        quoted = json.dumps(selector)
        self.evaluate(f"document.querySelector({quoted}).scrollIntoView({{block: 'center'}})")
        left, top, width, height = self.evaluate(
            f"(() => {{ const b = document.querySelector({quoted}).getBoundingClientRect();"
            " return [b.left, b.top, b.width, b.height]; })()"
        )
        place = {"x": left + x * width, "y": top + y * height, "button": "left", "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type="mousePressed", **place)
        self.call("Input.dispatchMouseEvent", type="mouseReleased", **place)
        self.settle()

    def slide(self, label, value):
        """Move a slider, found by its label."""
        self.evaluate(
            f"(() => {{ const i = document.querySelector('input[aria-label={json.dumps(label)}]'); i.value = {value};"
            " i.dispatchEvent(new Event('input')); })()"
        )
        self.settle()

    def text(self):
        return self.evaluate("document.body.innerText")

    def needed(self):
        """The width that the page needs."""
        return self.evaluate("document.documentElement.scrollWidth")

    def broken(self):
        return self.evaluate("[...document.images].filter(i => !i.complete || !i.naturalWidth).map(i => i.alt)")

    def smallest_text(self):
        """The smallest font of any text that is shown, in pixels."""
        return self.evaluate(
            """(() => { const all = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT); let least = 99;
            while (all.nextNode()) { const node = all.currentNode, parent = node.parentElement;
              if (!node.textContent.trim() || ['SCRIPT', 'STYLE', 'NOSCRIPT'].includes(parent.tagName)) continue;
              if (!parent.getClientRects().length) continue;
              const svg = parent.ownerSVGElement;
              const scale = svg ? svg.getBoundingClientRect().width / svg.viewBox.baseVal.width : 1;
              least = Math.min(least, parseFloat(getComputedStyle(parent).fontSize) * scale); }
            return least; })()"""
        )

    def screenshot(self, path: Path):
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        found = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(found["data"]))


@contextmanager
def driven(folder: Path):
    """A browser with a profile of its own; it is ended afterwards."""
    here_read, there_write = os.pipe()
    there_read, here_write = os.pipe()
    words = [chromium(), *QUIET, f"--user-data-dir={folder / 'profile'}", "--remote-debugging-pipe", "about:blank"]
    start = [sys.executable, "-S", "-c", AS_3_AND_4, str(there_read), str(there_write), *words]
    process = subprocess.Popen(
        start, pass_fds=(there_read, there_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    os.close(there_read)
    os.close(there_write)
    try:
        yield Browser(here_write, here_read)
    finally:
        os.close(here_write)
        os.close(here_read)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
