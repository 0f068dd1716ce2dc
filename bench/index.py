"""A package index over a directory of wheels, on the loopback interface.

Pages are PEP 503 with hashes, and PEP 658 metadata beside each wheel. Files answer ranges and may be cached for ever, as
the files of a public index do, so that each tool's cache works as it does against one.
"""

import hashlib
import html
import http.server
import os
import pathlib
import re
import shutil
import sys
import threading
import zipfile

CHUNK = 1 << 20


def normalised(name):
    """PEP 503 normalised project name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as f:
        while chunk := f.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def wheel_metadata(path):
    """Bytes of the wheel's METADATA file."""
    with zipfile.ZipFile(path) as z:
        name, version = path.name.split("-")[:2]
        for entry in z.namelist():
            folder, _, file = entry.partition("/")
            if file == "METADATA" and folder.endswith(".dist-info"):
                return z.read(entry)
    raise ValueError(f"{path}: no METADATA for {name} {version}")


def write(wheels, root):
    """Make the index's tree at root: files/ holds links to the wheels, simple/ the pages."""
    shutil.rmtree(root, ignore_errors=True)
    files = root / "files"
    files.mkdir(parents=True)
    projects = {}
    for wheel in sorted(pathlib.Path(wheels).glob("*.whl")):
        (files / wheel.name).symlink_to(wheel.resolve())
        metadata = files / (wheel.name + ".metadata")
        metadata.write_bytes(wheel_metadata(wheel))
        projects.setdefault(normalised(wheel.name.split("-")[0]), []).append((wheel, sha256(wheel), sha256(metadata)))
    for project, found in projects.items():
        page = root / "simple" / project / "index.html"
        page.parent.mkdir(parents=True)
        page.write_text(project_page(found))


def project_page(found):
    """One link per wheel. The metadata attribute has its PEP 714 name alone: pip before 23.2 misreads the older one."""
    lines = ["<!DOCTYPE html>", '<html><head><meta name="pypi:repository-version" content="1.0"></head><body>']
    for wheel, digest, metadata in found:
        name = html.escape(wheel.name)
        lines.append(
            f'<a href="../../files/{name}#sha256={digest}"'
            f' data-core-metadata="sha256={metadata}">{name}</a><br>'
        )
    return "\n".join(lines + ["</body></html>", ""])


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self):
        self.answer(body=True)

    def do_HEAD(self):
        self.answer(body=False)

    def answer(self, body):
        path = self.server.find(self.path)
        if path is None:
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        with open(path, "rb") as f:
            size = os.fstat(f.fileno()).st_size
            first, last = self.range(size)
            self.head(path, size, first, last)
            if body:
                self.send_file(f, first, last)

    def range(self, size):
        """First and last byte asked for; the whole file when there is no (simple) range."""
        m = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if not m or not (m[1] or m[2]):
            return 0, size - 1
        if not m[1]:
            return max(size - int(m[2]), 0), size - 1
        return int(m[1]), min(int(m[2]) if m[2] else size - 1, size - 1)

    def head(self, path, size, first, last):
        partial = (first, last) != (0, size - 1)
        self.send_response(206 if partial else 200)
        if partial:
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        page = path.suffix == ".html"
        self.send_header("Content-Length", str(last - first + 1))
        self.send_header("Content-Type", "text/html; charset=utf-8" if page else "application/octet-stream")
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", f'"{size}-{path.name}"')
        self.send_header("Cache-Control", "public, max-age=600" if page else "public, max-age=31536000, immutable")
        self.end_headers()

    def send_file(self, f, first, last):
        self.wfile.flush()
        offset = first
        while offset <= last:
            sent = os.sendfile(self.connection.fileno(), f.fileno(), offset, last - offset + 1)
            if sent == 0:
                return
            offset += sent

    def log_message(self, format, *args):
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, root):
        super().__init__(("127.0.0.1", 0), Handler)  # a free port
        self.root = pathlib.Path(root)

    def find(self, url_path):
        """File for a URL path, None when there is none; no path leaves the tree."""
        parts = [p for p in url_path.split("?")[0].split("/") if p]
        if not parts or parts[0] not in ("simple", "files") or ".." in parts:
            return None
        path = self.root.joinpath(*parts)
        if path.is_dir():
            path = path / "index.html"
        return path if path.is_file() else None


def main():
    """Serve ROOT; print the address; end with stdin, so that the server never outlives the benchmark."""
    server = Server(sys.argv[1])
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_port}/simple/", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
