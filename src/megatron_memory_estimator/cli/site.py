"""`megatron-memory site`: the page with the library inside, as a folder for any file host."""

from __future__ import annotations

import json

import click

from ..job.hardware import MIB
from .verb import Verb


def run(out: str, pyodide: str | None, numpy: str | None, docs: str | None, as_json: bool) -> None:
    """Write the site and say how large it is."""
    from ..web.static import LISTED, folder_of, site, write_site

    folder_of(out)  # before the work
    files = site(pyodide, numpy, docs=docs)
    write_site(out, files)
    nbytes = sum(map(len, files.values()))
    compiled = bool(json.loads(files[LISTED])["compiled"])
    if as_json:
        click.echo(json.dumps({"out": out, "files": len(files), "bytes": nbytes, "compiled": compiled}))
        return
    if not compiled:
        click.echo(
            "Node.js, which compiles the Python files, is missing or did not: the page starts in twice the time."
        )
    click.echo(f"{out}: {len(files)} files, {nbytes / MIB:.1f} MiB. Any file host serves it; to look at it here:")
    click.echo(f"python -m http.server --bind 127.0.0.1 --directory {out}")


command = Verb(
    "site",
    params=[
        click.Option(["--out"], metavar="DIR", required=True, help="the folder: new, empty, or an older site"),
        click.Option(
            ["--pyodide"],
            metavar="PATH",
            help="a folder or tarball of the npm package pyodide (default: npm fetches it)",
        ),
        click.Option(
            ["--numpy"], metavar="WHEEL", help="Pyodide's wheel of NumPy, for plans over the whole of large spaces"
        ),
        click.Option(
            ["--docs"],
            metavar="DIR",
            help="the built documentation (`make docs` of the repository), which the words of the page link to then",
        ),
        click.Option(["--json", "as_json"], is_flag=True, help="print the folder and its size as JSON"),
    ],
    callback=run,
    help="Write the page as a folder for any file host; the library runs in the browser, and nothing that is typed leaves it.",
)
