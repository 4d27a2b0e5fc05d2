"""How large the report of 1,000 networks is, and how fast a browser opens it, by its own clock.

Run it on a quiet machine: `python benchmarks/report_page.py [FOLDER]`; without a folder, of 1,000
networks with 130 samples each. "Opened" is when the table stands there, "drawn" when all charts do.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import synthetic
from browsing import FLAGS
from steptime.core.copying import replace
from steptime.records.data import Data
from steptime.reports.page import page

NETWORKS, SAMPLES, TIMES, WAIT_S = 1000, 130, 3, 8


FRAME = """<!doctype html><iframe src="report.html" width="1280" height="1000"></iframe><pre></pre>
<img src="http://127.0.0.1:PORT/">
<script>onmessage = (event) => { document.querySelector("pre").textContent = event.data; };</script>
"""  # the browser prints the page when its late picture is there
TELLS = """<script>setInterval(() => { const { opened, drawn } = document.body.dataset;
if (drawn) parent.postMessage(`opened ${opened} ms, drawn ${drawn} ms`, "*"); }, 200);</script>"""


class Late(ThreadingHTTPServer):
    """A server whose every answer comes late."""


class Answer(BaseHTTPRequestHandler):
    """Nothing, after a while."""

    def do_GET(self) -> None:  # the library's name
        """Answer late."""
        time.sleep(WAIT_S)
        self.send_response(204)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Say nothing."""


def made() -> Data:
    """Return the records of networks, predicted and measured."""
    records = []
    for index in range(NETWORKS):
        workload = replace(synthetic.workloads()[0], params={"layers": 4, "nodes": 8 + index})
        measured = synthetic.measured(workload)
        step = measured.quantities["step_s"]
        more = -(-SAMPLES // len(step.samples))
        longer = replace(
            step,
            samples=(step.samples * more)[:SAMPLES],
            columns={name: (one * more)[:SAMPLES] for name, one in step.columns.items()},
        )
        quantities = {**measured.quantities, "step_s": longer}
        records += [*synthetic.predicted(workload), replace(measured, quantities=quantities)]
    return Data.from_records(records)


def main() -> None:
    """Print the size, the seconds to make the page, and those to open it."""
    data = Data.load([Path(sys.argv[1])], print) if sys.argv[1:] else made()
    start = time.perf_counter()
    text, found = page(data, "benchmark")
    size = len(text.encode()) / 1e6
    print(
        f"{found['networks']} networks: {size:.2f} MB, {time.perf_counter() - start:.1f} s to make"
    )
    with tempfile.TemporaryDirectory() as folder, Late(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        (Path(folder) / "report.html").write_text(text + TELLS)
        path = Path(folder) / "frame.html"
        path.write_text(FRAME.replace("PORT", str(server.server_port)))
        for _ in range(TIMES):
            command = ["chromium", *FLAGS, f"--user-data-dir={folder}/profile", "--dump-dom"]
            done = subprocess.run(
                [*command, path.as_uri()], capture_output=True, text=True, check=True
            )
            told = re.search(r"<pre>(.*?)</pre>", done.stdout)
            print(told[1] if told else "no page")
        server.shutdown()


if __name__ == "__main__":
    main()
