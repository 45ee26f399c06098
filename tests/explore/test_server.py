"""The server over plain HTTP: on this machine alone, for whoever has the address, until Ctrl-C."""

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from explore_models import HOSTILE, IMAGE, plane_subject, serving, table_subject

from idensenet.cli import main
from idensenet.explore.explorer import Explorer
from idensenet.explore.page import page, policy
from idensenet.explore.server import LONGEST, WAITING, Server


@pytest.fixture(scope="module")
def server():
    with serving(table_subject()) as running:
        yield running


def ask(server, path, host=None, method="GET", token=None):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    hosts = [f"127.0.0.1:{server.server_port}"] if host is None else host
    connection.putrequest(method, f"/{server.token if token is None else token}/{path}", skip_host=True)
    for each in hosts:
        connection.putheader("Host", each)
    connection.endheaders()
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer, content


def test_listens_on_loopback_alone(server):
    assert server.socket.getsockname()[0] == "127.0.0.1"
    assert server.address.startswith(f"http://127.0.0.1:{server.server_port}/")
    assert len(server.token) >= 20
    others = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)} - {"127.0.0.1"}
    for address in others:
        with pytest.raises(OSError, match="refused"):
            socket.create_connection((address, server.server_port), timeout=5)


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_page_under_its_own_name(server, name):
    answer, content = ask(server, "", [f"{name}:{server.server_port}"])
    assert answer.status == 200
    assert answer.getheader("Content-Type") == "text/html; charset=utf-8"
    assert content.decode() == page()


@pytest.mark.parametrize("host", [["evil.example"], ["evil.example:80"], [], ["127.0.0.1"], ["127.0.0.1:{}", "evil.example"]])
def test_a_page_elsewhere_cannot_reach_it_by_a_name_of_its_own(server, host):
    for path in ("", "about"):
        answer, content = ask(server, path, [each.format(server.server_port) for each in host])
        assert answer.status == 421
        assert b"on this machine alone" in content


def test_nothing_without_the_word_in_the_address(server):
    for token in ("", "x", server.token[:-1], server.token + "x", server.token + "/..", "%2e"):
        answer, content = ask(server, "about", token=token)
        assert answer.status == 404
        assert server.token.encode() not in content
    for path in ("../about", "about/x", "//"):
        assert ask(server, path)[0].status == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "HEAD"])
def test_other_methods_are_not_there(server, method):
    assert ask(server, "about", method=method)[0].status == 501


def test_answers_are_json_with_strict_headers(server):
    answer, content = ask(server, "about")
    assert answer.status == 200
    assert json.loads(content)["columns"][0]["name"] == IMAGE
    assert answer.getheader("Content-Type") == "application/json; charset=utf-8"
    assert answer.getheader("X-Content-Type-Options") == "nosniff"
    assert answer.getheader("Cache-Control") == "no-store"
    assert answer.getheader("Cross-Origin-Resource-Policy") == "same-origin"
    assert answer.getheader("Access-Control-Allow-Origin") is None
    assert answer.getheader("Content-Security-Policy") == policy()
    assert answer.getheader("Server").strip() == "idensenet"


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("pair?i=99", 400, "i='99' must be a whole number from 0 to 4."),
        ("nothing", 400, "There is nothing called 'nothing'"),
        (f"{HOSTILE.replace('/', '').replace(' ', '')}", 400, "There is nothing called"),
        ("pair?" + "&".join(f"a{i}=1" for i in range(30)), 400, "The parameters cannot be read"),
        ("pair?i=%ff", 400, "The parameters cannot be read"),
        ("pair?i=" + "1" * LONGEST, 414, "at most 2000 characters"),
    ],
)
def test_bad_questions_are_one_sentence(server, path, status, words):
    answer, content = ask(server, path)
    assert answer.status == status
    assert answer.getheader("Content-Type") == "application/json; charset=utf-8"
    assert words in json.loads(content)["error"]


def test_a_model_that_cannot_compute_is_one_sentence(server, monkeypatch):
    from idensenet.errors import ConvergenceError

    def fails(query):
        raise ConvergenceError("The solver stopped short.")

    monkeypatch.setitem(server.explorer._answers, "pair", fails)
    answer, content = ask(server, "pair")
    assert (answer.status, json.loads(content)) == (500, {"error": "The solver stopped short."})


def test_requests_that_wait_are_bounded():
    with serving(plane_subject()) as server:
        server.explorer._working.acquire()  # an answer that takes long
        threads = [threading.Thread(target=ask, args=(server, "about")) for _ in range(WAITING)]
        for thread in threads:
            thread.start()
        end = time.monotonic() + 60
        while time.monotonic() < end:
            answer, content = ask(server, "") if server.room._value else ask(server, "about")
            if answer.status == 503:
                break
        server.explorer._working.release()
        assert answer.status == 503
        assert "waiting already" in json.loads(content)["error"]
        for thread in threads:
            thread.join(60)


# The page


def test_page_carries_everything_with_it():
    text = page()
    assert "/* style */" not in text
    assert "/* program */" not in text
    addresses = re.findall(r"""(?:src|href|url\()\s*=?\s*["'(]([^"')]+)""", text)
    assert all(each.startswith(("data:", "#", "url(#")) for each in addresses)
    assert re.findall(r"https?://[^\"'`\s]+", text) == ["http://www.w3.org/2000/svg"]  # a name, not an address
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "DOMParser"):
        assert way not in text
    assert "'unsafe-inline'" not in policy()
    assert "default-src 'none'" in policy()


# The command


def test_command_serves_until_ctrl_c():
    code = "import sys; from idensenet.cli import main; sys.exit(main())"
    words = [sys.executable, "-c", code, "explore", "moons", "--open", "false"]
    # a shell starts what is in its background without Ctrl-C, and children inherit that
    heard = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    signal.signal(signal.SIGINT, heard)
    try:
        first = process.stdout.readline()
        port, token = re.fullmatch(r"moons is at http://127\.0\.0\.1:(\d+)/([\w-]+)/\n", first).groups()
        assert process.stdout.readline() == "Press Ctrl-C to end.\n"
        connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=60)
        connection.request("GET", f"/{token}/about")
        assert json.loads(connection.getresponse().read())["kind"] == "plane"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert (out, err, process.returncode) == ("\nThe page has ended.\n", "", 0)
    finally:
        process.kill()


def test_ctrl_c_waits_for_an_answer_unless_it_is_pressed_twice(monkeypatch, capsys):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    server = Server(Explorer(plane_subject()))
    monkeypatch.setattr(server, "serve_forever", interrupted)
    server.explorer._working.acquire()
    threading.Timer(0.3, server.explorer._working.release).start()
    server.run()
    assert "Finishing an answer; Ctrl-C again ends at once." in capsys.readouterr().out
    assert not server.explorer.busy
    monkeypatch.setattr(server.explorer, "close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        server.run()
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nowhere"], "holds no model"),
        (["moons", "--port", "70000"], "--port 70000 must lie between 0 and 65535"),
        (["moons", "--data.table", "missing.csv"], "missing.csv"),
    ],
)
def test_bad_input_is_one_sentence(words, sentence, capsys):
    assert main(["explore", *words, "--open", "false"]) == 2
    captured = capsys.readouterr()
    assert sentence in captured.err
    assert captured.err.count("\n") == 1


def test_taken_port_is_said(server, capsys):
    assert main(["explore", "moons", "--open", "false", "--port", str(server.server_port)]) == 2
    assert f"--port {server.server_port} cannot be used" in capsys.readouterr().err


def test_command_opens_a_browser_and_says_what_is_missing(monkeypatch, tmp_path, capsys):
    import webbrowser

    import idensenet as idn

    opened = []
    monkeypatch.setattr(webbrowser, "open", lambda address: opened.append(address))
    monkeypatch.setattr(Server, "run", lambda self: self.server_close())
    idn.save(idn.load("moons").double(), tmp_path / "<b>mine")
    flow = idn.IDenseNet(features=2, blocks=2, growth=4)
    flow.config = None
    idn.save(flow, tmp_path / "<b>hand")
    assert main(["explore", str(tmp_path / "<b>mine")]) == 0
    said = capsys.readouterr().out
    assert "<b>mine is at http://127.0.0.1:" in said
    assert "No browser could be opened" in said
    assert opened[0] in said
    assert main(["explore", str(tmp_path / "<b>hand"), "--open", "false"]) == 0
    assert "without data: The model does not say what it was trained on." in capsys.readouterr().out
    assert len(opened) == 1
