"""The bill of materials of what the image installs, in CycloneDX 1.6.

    python -m tests.deploy.sbom > dist/rdzv.cdx.json

Versions are those of deploy/requirements.txt, where the hashes are too; licences and who needs whom are
read from the installed packages. No time and no random number is in it: the same source gives the same
bytes.
"""

import json
import re
import sys
from importlib import metadata
from typing import Any

from rdzv_proto import __version__
from tests.deploy.lock import RUN, Pin, canonical, pins

NAME = "rdzv"

NO_EXPRESSION = {"uvloop": "MIT OR Apache-2.0"}
"""Licences of packages whose metadata has no SPDX expression."""


def needs(name: str, extra: str = "") -> list[str]:
    """What a package names as needed, on any platform, with the extra if one is given."""
    found = set()
    for text in metadata.requires(name) or []:
        word = re.match(r"[A-Za-z0-9._-]+", text)
        wanted = re.search(r"extra\s*==\s*['\"](.+?)['\"]", text)
        if word and (wanted is None or wanted[1] == extra):
            found.add(canonical(word[0]))
    return sorted(found)


def purl(name: str, version: str) -> str:
    """What names a package everywhere."""
    return f"pkg:pypi/{name}@{version}"


def component(name: str, version: str, kind: str = "library", marker: str = "") -> dict[str, Any]:
    """One package."""
    about = metadata.metadata(name)
    said = "License-Expression"
    expression = about[said] if said in about else NO_EXPRESSION[name]
    made: dict[str, Any] = {
        "type": kind,
        "bom-ref": purl(name, version),
        "name": name,
        "version": version,
        "licenses": [{"expression": expression}],
        "purl": purl(name, version),
    }
    if marker:
        made["properties"] = [{"name": "rdzv:only-where", "value": marker}]
    return made


def bill() -> dict[str, Any]:
    """All of it."""
    have: dict[str, Pin] = {pin.name: pin for pin in pins(RUN)}
    root = purl(NAME, __version__)
    edges = {root: needs(NAME, "server")}
    edges |= {purl(pin.name, pin.version): needs(pin.name) for pin in have.values()}
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": component(NAME, __version__, "application")},
        "components": [component(p.name, p.version, marker=p.marker) for p in have.values()],
        "dependencies": [
            {"ref": ref, "dependsOn": [purl(name, have[name].version) for name in names]}
            for ref, names in edges.items()
        ],
    }


if __name__ == "__main__":
    json.dump(bill(), sys.stdout, indent=2)
    sys.stdout.write("\n")
