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
from importlib.metadata import PackageMetadata
from typing import Any

from rdzv_proto import __version__
from tests.deploy.lock import EXTRAS, RUN, Pin, canonical, pins

NAME = "rdzv"

NO_EXPRESSION = {
    "aiohappyeyeballs": "PSF-2.0",
    "aiosignal": "Apache-2.0",
    "async-timeout": "Apache-2.0",
    "frozenlist": "Apache-2.0",
    "propcache": "Apache-2.0",
    "uvloop": "MIT OR Apache-2.0",
    "yarl": "Apache-2.0",
}
"""Licences of packages whose metadata has no SPDX expression, or that this Python does not have."""

ELSEWHERE = {"async-timeout"}
"""Only Python 3.10 has these. They need nothing."""


def about(name: str) -> PackageMetadata | None:
    """What an installed package says of itself; None if it is for another Python.

    Raises:
        metadata.PackageNotFoundError: it should be here.
    """
    try:
        return metadata.metadata(name)
    except metadata.PackageNotFoundError:
        if name in ELSEWHERE:
            return None
        raise


def needs(name: str, *extras: str) -> list[str]:
    """What a package names as needed, on any platform, with these extras."""
    found = set()
    told = about(name)
    for text in [] if told is None else told.get_all("Requires-Dist") or []:
        word = re.match(r"[A-Za-z0-9._-]+", text)
        wanted = re.search(r"extra\s*==\s*['\"](.+?)['\"]", text)
        if word and (wanted is None or wanted[1] in extras):
            found.add(canonical(word[0]))
    return sorted(found)


def purl(name: str, version: str) -> str:
    """What names a package everywhere."""
    return f"pkg:pypi/{name}@{version}"


def component(name: str, version: str, kind: str = "library", marker: str = "") -> dict[str, Any]:
    """One package."""
    told, said = about(name), "License-Expression"
    expression = told[said] if told is not None and said in told else NO_EXPRESSION[name]
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
    have: dict[str, list[Pin]] = {}
    for pin in pins(RUN):  # one Python may have another version than the next
        have.setdefault(pin.name, []).append(pin)
    every = [pin for each in have.values() for pin in each]
    root = purl(NAME, __version__)
    edges = {root: needs(NAME, *EXTRAS)}
    edges |= {purl(pin.name, pin.version): needs(pin.name) for pin in every}
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": component(NAME, __version__, "application")},
        "components": [component(p.name, p.version, marker=p.marker) for p in every],
        "dependencies": [
            {
                "ref": ref,
                "dependsOn": [purl(p.name, p.version) for name in names for p in have[name]],
            }
            for ref, names in edges.items()
        ],
    }


if __name__ == "__main__":
    json.dump(bill(), sys.stdout, indent=2)
    sys.stdout.write("\n")
