"""The command that installs an extra, for how ftcomm itself was installed."""

import json
from importlib.metadata import PackageNotFoundError, distribution
from urllib.parse import urlsplit
from urllib.request import url2pathname

NAME = "ftcomm"


def pip_install(extra: str) -> str:
    """Return the command that adds an extra to this installation.

    An index may not have this package, or have another one of its name.  So it names the checkout
    or wheel from which ftcomm was installed (PEP 610), and an index only if it came from one.
    """
    try:
        origin = json.loads(distribution(NAME).read_text("direct_url.json") or "{}")
    except PackageNotFoundError:  # run from a checkout that is not installed
        origin = {}
    url = urlsplit(origin.get("url", ""))
    if url.scheme == "file":
        editable = "-e " if origin.get("dir_info", {}).get("editable") else ""
        return f"pip install {editable}'{url2pathname(url.path)}[{extra}]'"
    if "vcs_info" in origin:
        return f"pip install '{NAME}[{extra}] @ {origin['vcs_info']['vcs']}+{origin['url']}'"
    where = f" @ {origin['url']}" if url.scheme else ""
    return f"pip install '{NAME}[{extra}]{where}'"
