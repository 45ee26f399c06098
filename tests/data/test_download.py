"""Downloads, against a server on this machine that can be told to misbehave."""

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from published_fakes import fake_cifar10, fake_mnist, pack_cifar10, write_cifar10, write_mnist

from idensenet.data import cifar10, resume
from idensenet.data import download as module
from idensenet.data.download import download, fetch, import_from
from idensenet.data.mnist import FASHION_MNIST, MNIST
from idensenet.errors import DataError, MissingDataError, OptionError, UnknownNameError

CONTENT = np.random.default_rng(0).bytes(1_500_000)
MD5 = hashlib.md5(CONTENT).hexdigest()


class Server:
    """Files by name; `cuts` are the numbers of bytes after which the next answers break off."""

    def __init__(self):
        self.files, self.cuts, self.requests, self.ranges, self.status, self.shift = {}, [], [], True, [], 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                outer.answer(self)

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/data"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def answer(self, handler):
        name, asked = handler.path.rpartition("/")[2], handler.headers.get("Range")
        self.requests.append((name, asked))
        if self.status:
            return handler.send_error(self.status.pop(0))
        if name not in self.files:
            return handler.send_error(404)
        data, start = self.files[name], 0
        if asked and self.ranges:
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            if start >= len(data):
                return handler.send_error(416)
            handler.send_response(206)
            handler.send_header("Content-Range", f"bytes {start + self.shift}-{len(data) - 1}/{len(data)}")
        else:
            handler.send_response(200)
        body = data[start:]
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body[: self.cuts.pop(0)] if self.cuts else body)
        return None


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(resume.time, "sleep", lambda seconds: None)
    server = Server()
    server.files["file"] = CONTENT
    yield server
    server.server.shutdown()
    server.server.server_close()


def get(server, folder, md5=MD5, mirrors=None):
    return download("file", md5, mirrors or (server.url,), folder, progress=False)


def test_a_file_arrives_once(tmp_path, server):
    for _ in range(2):
        assert get(server, tmp_path).read_bytes() == CONTENT
    assert server.requests == [("file", None)]
    assert [f.name for f in tmp_path.iterdir()] == ["file"]


def test_a_cut_connection_is_continued(tmp_path, server):
    server.cuts = [400_000, 300_000]
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert server.requests == [("file", None), ("file", "bytes=400000-"), ("file", "bytes=700000-")]


def test_the_next_call_continues_the_part(tmp_path, server):
    server.cuts = [500_000] + [0] * 20
    with pytest.raises(DataError, match="500,000 bytes are kept"):
        get(server, tmp_path)
    assert [f.name for f in tmp_path.iterdir()] == ["file.part"]
    assert (tmp_path / "file.part").read_bytes() == CONTENT[:500_000]
    server.cuts = []
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert server.requests[-1] == ("file", "bytes=500000-")


def test_a_connection_that_makes_headway_is_not_given_up(tmp_path, server):
    server.cuts = [100_000] * 14
    assert get(server, tmp_path).read_bytes() == CONTENT


def test_a_server_without_ranges_starts_anew(tmp_path, server):
    server.ranges, server.cuts = False, [400_000]
    assert get(server, tmp_path).read_bytes() == CONTENT


def test_a_server_that_always_cuts_is_given_up(tmp_path, server):
    server.ranges, server.cuts = False, [400_000, 100_000] * 20
    with pytest.raises(DataError, match=r"cut after .* of 1,500,000 bytes"):
        get(server, tmp_path)
    assert len(server.requests) < 10


def test_a_wrong_checksum_is_refused_and_leaves_nothing(tmp_path, server):
    with pytest.raises(DataError, match=r"something else than the published file .*abc"):
        get(server, tmp_path, md5="abc")
    assert not list(tmp_path.iterdir())


def test_a_part_of_another_file_is_thrown_away(tmp_path, server):
    (tmp_path / "file.part").write_bytes(b"other" * 1000)
    assert get(server, tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize("part", [CONTENT, CONTENT + b"more"])
def test_a_part_that_is_too_long_is_thrown_away(tmp_path, server, part):
    (tmp_path / "file.part").write_bytes(part)
    assert get(server, tmp_path).read_bytes() == CONTENT


def test_a_part_from_the_wrong_place_is_not_appended(tmp_path, server):
    (tmp_path / "file.part").write_bytes(CONTENT[:1000])
    server.shift = 5
    assert get(server, tmp_path).read_bytes() == CONTENT


def test_a_damaged_file_in_the_folder_is_fetched_again(tmp_path, server):
    (tmp_path / "file").write_bytes(CONTENT[:-1])
    assert get(server, tmp_path).read_bytes() == CONTENT


def test_nothing_bears_the_name_before_it_is_complete(tmp_path, server, monkeypatch):
    seen = []
    original = Server.answer

    def answer(self, handler):
        seen.append((tmp_path / "file").exists())
        original(self, handler)
        seen.append((tmp_path / "file").exists())

    monkeypatch.setattr(Server, "answer", answer)
    server.cuts = [700_000]
    get(server, tmp_path)
    assert seen[:3] == [False, False, False]


def test_the_next_mirror_helps(tmp_path, server):
    assert get(server, tmp_path, mirrors=(f"{server.url[:-5]}:/nothing", server.url)).read_bytes() == CONTENT


def test_busy_servers_are_asked_again_and_absent_files_are_not(tmp_path, server):
    server.status = [503, 429]
    assert get(server, tmp_path).read_bytes() == CONTENT
    server.files.clear()
    server.requests.clear()
    with pytest.raises(DataError, match="404"):
        get(server, tmp_path / "other")
    assert len(server.requests) == 1


def test_nobody_answers(tmp_path, server):
    server.server.shutdown()
    server.server.server_close()
    with pytest.raises(DataError, match=r"could not be downloaded: .*refused"):
        get(server, tmp_path)


def test_other_protocols_are_refused(tmp_path, server):
    with pytest.raises(OptionError, match="https://"):
        get(server, tmp_path, mirrors=("file:///etc",))


def test_the_bar_goes_to_the_error_stream(tmp_path, server, capsys):
    server.cuts = [1000]
    download("file", MD5, (server.url,), tmp_path, progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "file" in err


@pytest.fixture
def published(tmp_path, server, monkeypatch):
    """Small data sets in place of the published ones, on the server."""
    batches, digests = fake_cifar10()
    monkeypatch.setattr(cifar10, "CIFAR10_SHA256", digests)
    archive = pack_cifar10(tmp_path / "cifar-10-python.tar.gz", write_cifar10(tmp_path / "batches", batches))
    files, digests = fake_mnist()
    for known in (MNIST, FASHION_MNIST):
        for name, digest in digests.items():
            monkeypatch.setitem(known.md5, name, digest)
    server.files = {f.name: f.read_bytes() for f in write_mnist(tmp_path / "idx", files, compressed=True).iterdir()}
    sets = {"mnist": list(server.files), "fashion-mnist": list(server.files), "cifar10": [archive.name]}
    server.files[archive.name] = archive.read_bytes()
    for name, names in sets.items():
        md5s = {n: hashlib.md5(server.files[n]).hexdigest() for n in names}
        monkeypatch.setitem(module.PUBLISHED, name, module.Published(("http://127.0.0.1:1/",), md5s))
    return server


@pytest.mark.parametrize("name", ["cifar10", "mnist", "fashion-mnist"])
@pytest.mark.parametrize("by", ["argument", "variable"])
def test_a_data_set_is_downloaded_verified_and_stored(tmp_path, published, monkeypatch, name, by):
    if by == "variable":
        monkeypatch.setenv("IDENSENET_DATA_URL", published.url)
    url = published.url if by == "argument" else None
    published.cuts = [20]
    source = fetch(name, tmp_path / "root", base_url=url, progress=False)
    assert source.name == name
    assert isinstance(source.train.x, np.memmap)
    assert sorted(p.name for p in (tmp_path / "root" / name).iterdir()) == [
        "test_x.npy",
        "test_y.npy",
        "train_x.npy",
        "train_y.npy",
    ]
    assert not list((tmp_path / "root" / "downloads").iterdir())
    asked = len(published.requests)
    fetch(name, tmp_path / "root", base_url=url, progress=False)
    assert len(published.requests) == asked


def test_content_that_is_not_the_published_is_refused(tmp_path, published, monkeypatch):
    monkeypatch.setattr(cifar10, "CIFAR10_SHA256", dict.fromkeys(cifar10.CIFAR10_SHA256, "0" * 64))
    with pytest.raises(DataError, match="damaged or altered"):
        fetch("cifar10", tmp_path / "root", base_url=published.url, progress=False)
    assert not (tmp_path / "root" / "cifar10").exists()


def test_the_published_checksums():
    assert module.PUBLISHED["cifar10"].files == {"cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a"}
    for known in (MNIST, FASHION_MNIST):
        assert [f"{name}.gz" for name in known.md5] == list(module.PUBLISHED[known.name].files)


def test_names_that_cannot_be_fetched(tmp_path):
    for call in (lambda n: fetch(n, tmp_path), lambda n: import_from(n, tmp_path, tmp_path)):
        with pytest.raises(OptionError, match="needs no download"):
            call("moons")
        with pytest.raises(UnknownNameError, match="did you mean 'mnist'"):
            call("minst")
    with pytest.raises(MissingDataError, match="no file or folder"):
        import_from("mnist", tmp_path / "absent", tmp_path)
