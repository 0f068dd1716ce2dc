"""An HTTP proxy on 127.0.0.1 for apt that remembers what it fetched, so that nothing measured touches the network."""

import http.server
import pathlib
import shutil
import threading
import urllib.error
import urllib.parse
import urllib.request


class Archive:
    """Files of Debian's archive, by URL. After freeze() it serves what it has and nothing else."""

    def __init__(self, directory):
        self.directory = pathlib.Path(directory)
        self.frozen, self.requests = False, 0
        self.known = {}  # URL: content, or None for what the archive does not have
        self.lock = threading.Lock()
        for indices in self.directory.glob("*/*/dists"):
            shutil.rmtree(indices)  # they expire; packages do not
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self):
                outer.answer(self)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def freeze(self):
        self.frozen = True

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def answer(self, handler):
        self.requests += 1
        body = self.get(handler.path)
        handler.send_response(404 if body is None else 200)
        handler.send_header("Content-Length", str(len(body or b"")))
        handler.end_headers()
        handler.wfile.write(body or b"")

    def get(self, url):
        with self.lock:
            if url not in self.known and not self.frozen:
                self.known[url] = self.fetch(url)
            return self.known.get(url)

    def fetch(self, url):
        parts = urllib.parse.urlsplit(url)
        file = self.directory / parts.netloc / parts.path.lstrip("/")
        if file.is_file():
            return file.read_bytes()
        try:
            with urllib.request.urlopen(url, timeout=60) as response:
                body = response.read()
        except urllib.error.HTTPError as e:
            if e.code == 404:
                return None
            raise
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(body)
        return body
