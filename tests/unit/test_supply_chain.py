"""What is installed: few packages at run time, all of them in exact versions, the image's with hashes."""

import contextlib
import re
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement

from tests.deploy import ROOT
from tests.deploy.lock import (
    BACKEND,
    BUILD,
    CONSTRAINTS,
    EXTRAS,
    MACHINES,
    PYTHONS,
    RUN,
    Pin,
    canonical,
    pins,
)
from tests.deploy.sbom import bill

BASE_MAX, SERVER_MAX, HTTP_MAX = 3, 2, 2
"""Packages that `rdzv` names as needed, and those that `rdzv[server]` and `rdzv[http]` add."""

IMAGE_MAX = 17
"""All that the image installs. aiohttp alone brings nine."""

Environment = Mapping[str, str]


def target(python: str, machine: str = "x86_64") -> dict[str, str]:
    """What markers see under another Python on Linux."""
    named = default_environment()
    named |= {"python_version": python, "python_full_version": f"{python}.0"}
    return {**named, "platform_machine": machine, "sys_platform": "linux"}  # type: ignore[dict-item]


def needed(name: str, extras: Iterable[str], there: Environment) -> dict[str, set[str]]:
    """What a package names as needed: names, with the extras of each."""
    found: dict[str, set[str]] = {}
    listed: list[str] = []
    with contextlib.suppress(metadata.PackageNotFoundError):  # it is for another Python than this
        listed += metadata.requires(name) or []
    for text in listed:
        wanted = Requirement(text)
        marker = wanted.marker
        if marker is None or any(marker.evaluate({**there, "extra": e}) for e in ("", *extras)):
            found.setdefault(canonical(wanted.name), set()).update(wanted.extras)
    return found


def closure(names: Mapping[str, Iterable[str]], there: Environment) -> set[str]:
    """These packages, what they need, and so on."""
    seen: dict[str, set[str]] = {}
    waiting = [(name, set(extras)) for name, extras in names.items()]
    while waiting:
        name, extras = waiting.pop()
        if name not in seen or extras - seen[name]:
            seen.setdefault(name, set()).update(extras)
            waiting += needed(name, seen[name], there).items()
    return set(seen)


def of(path_pins: Iterable[Pin], there: Environment) -> dict[str, str]:
    """Names and versions of those whose marker holds."""
    found: dict[str, str] = {}
    for pin in path_pins:
        requirement = Requirement(f"{pin.name}; {pin.marker}" if pin.marker else pin.name)
        if requirement.marker is None or requirement.marker.evaluate(dict(there)):
            assert pin.name not in found, f"{pin.name} is pinned twice for {there}"
            found[pin.name] = pin.version
    return found


def tools() -> set[str]:
    """What the Makefile installs for the tests."""
    text = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    line = re.search(r"^TOOLS := (.*)$", text, re.MULTILINE)
    assert line
    return {canonical(word) for word in line[1].split()}


def test_t24_the_client_needs_three_packages_at_most_and_the_server_two_more() -> None:
    base = set(needed("rdzv", (), target("3.11")))
    server = set(needed("rdzv", ("server",), target("3.11")))
    assert 0 < len(base) <= BASE_MAX
    assert len(server - base) <= SERVER_MAX


def test_the_http_side_adds_two_packages_and_neither_client_nor_server_need_them() -> None:
    there = target("3.11")
    without, http = (set(needed("rdzv", extra, there)) for extra in (("server",), ("http",)))
    added = http - set(needed("rdzv", (), there))
    assert added == {"aiohttp", "prometheus-client"}
    assert len(added) <= HTTP_MAX
    assert not added & without


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("machine", MACHINES)
def test_the_image_installs_what_the_server_needs_and_nothing_else(
    python: str, machine: str
) -> None:
    there = target(python, machine)
    image = closure({"rdzv": EXTRAS}, there) - {"rdzv"}
    assert set(of(pins(RUN), there)) == image
    assert len(image) <= IMAGE_MAX


@pytest.mark.parametrize("python", PYTHONS)
def test_the_image_has_the_versions_that_the_tests_ran_with(python: str) -> None:
    there = target(python)
    tested = of(pins(CONSTRAINTS), there)
    image = of(pins(RUN), there) | of(pins(BUILD), there)
    assert image == {name: tested.get(name) for name in image}


@pytest.mark.parametrize("path", [RUN, BUILD], ids=lambda path: path.name)
def test_the_image_takes_no_file_whose_hash_is_not_listed(path: Path) -> None:
    listed = list(pins(path))
    lines = [line for line in path.read_text().splitlines() if line and line[0] not in " #"]
    assert len(listed) == len(lines)
    for pin in listed:
        assert pin.hashes, pin.name
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", each) for each in pin.hashes)


def test_the_build_backend_is_the_one_that_is_locked() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert re.search(rf'^requires = \["{BACKEND}[^,\]]*"\]$', text, re.MULTILINE)


def test_all_that_the_tests_install_is_pinned_and_here_in_that_version() -> None:
    there = target(".".join(map(str, sys.version_info[:2])))
    pinned = of(pins(CONSTRAINTS), there)
    installed = closure({"rdzv": {"server"}} | dict.fromkeys(tools(), ()), there) - {"rdzv"}
    here = {name: metadata.version(name) for name in installed}
    assert here == {name: pinned.get(name) for name in installed}


def test_the_bill_of_materials_names_each_package_with_its_licence_and_what_it_needs() -> None:
    made = bill()
    assert made["bomFormat"] == "CycloneDX"
    parts = made["components"]
    listed = [(pin.name, pin.version) for pin in pins(RUN)]
    assert [(part["name"], part["version"]) for part in parts] == listed
    assert all(part["licenses"][0]["expression"] for part in parts)
    edges = {edge["ref"]: edge["dependsOn"] for edge in made["dependencies"]}
    root = made["metadata"]["component"]["bom-ref"]
    reached = {root} | {ref for refs in edges.values() for ref in refs}
    assert reached == set(edges) == {root} | {part["purl"] for part in parts}
    assert made == bill()
