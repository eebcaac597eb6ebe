"""`--rdzv-conf`: every key, its twin in the environment, and what is refused."""

from typing import Any

import pytest

from rdzv_client.options import NodeOptions
from rdzv_client.torch import conf
from rdzv_client.torch.conf import KEYS, Conf, read

EXAMPLES: dict[str, tuple[str, str, Any]] = {
    "join_timeout": ("90", "join_timeout_s", 90.0),
    "last_call_timeout": ("2.5", "last_call_timeout_s", 2.5),
    "keep_alive_interval": ("2", "lease_s", 6.0),
    "keep_alive_max_attempt": ("5", "lease_s", 25.0),
    "connect_timeout": ("11", "connect_timeout_s", 11.0),
    "reconnect_timeout": ("12", "reconnect_timeout_s", 12.0),
    "rank": ("3", "rank", 3),
    "node_id": ("fixed", "node_id", "fixed"),
    "node_unit": ("2", "node_unit", 2),
    "expected_nodes": ("a;b+c d", "expected_nodes", ("a", "b", "c", "d")),
    "below_min": ("wait", "below_min", "wait"),
    "worker_store": ("rank0", "worker_store", "rank0"),
    "token_file": ("/run/token", "", "/run/token"),
    "tls_ca": ("system", "", "system"),
    "tls_cert": ("/run/node.pem", "", "/run/node.pem"),
    "tls_key": ("/run/node.key", "", "/run/node.key"),
    "tls_server_name": ("rdzv.example", "", "rdzv.example"),
    "close_timeout": ("7", "", 7.0),
    "read_timeout": ("8", "", 8.0),
}
NEEDS = {"tls_key": {"tls_cert": "/run/node.pem"}, "tls_server_name": {"tls_ca": "system"}}
"""What must be given as well."""

EACH = pytest.mark.parametrize("key", KEYS)


def value_of(settings: Conf, key: str) -> object:
    option = EXAMPLES[key][1]
    if hasattr(settings.credentials, key):
        return getattr(settings.credentials, key)
    return settings.options[option] if option else getattr(settings, f"{key}_s")


@EACH
def test_every_key_is_read_from_the_command_line(key: str) -> None:
    text, _, expected = EXAMPLES[key]
    assert value_of(read({key: text, **NEEDS.get(key, {})}, {}), key) == expected


@EACH
def test_every_key_has_a_twin_in_the_environment(key: str) -> None:
    text, _, expected = EXAMPLES[key]
    given = {key: text, **NEEDS.get(key, {})}
    environ = {f"RDZV_{name.upper()}": value for name, value in given.items()}
    assert value_of(read({}, environ), key) == expected


def test_the_command_line_wins_over_the_environment() -> None:
    settings = read({"join_timeout": "5"}, {"RDZV_JOIN_TIMEOUT": "6", "RDZV_RANK": "1"})
    assert (settings.options["join_timeout_s"], settings.options["rank"]) == (5, 1)


def test_an_empty_variable_counts_as_none() -> None:
    assert "rank" not in read({}, {"RDZV_RANK": ""}).options


def test_other_variables_are_left_alone() -> None:
    """Kubernetes injects RDZV_PORT for a service of that name; RDZV_TIMEOUT is no key of ours."""
    environ = {"RDZV_PORT": "tcp://10.0.0.1:29500", "RDZV_TIMEOUT": "x", "RDZV_NONSENSE": "1"}
    assert read({}, environ) == read({}, {})


def test_the_defaults_are_torchs_own() -> None:
    settings = read({}, {})
    assert settings.options == {
        "lease_s": 15.0,
        "join_timeout_s": 600.0,
        "last_call_timeout_s": 30.0,
        "connect_timeout_s": 300.0,
        "reconnect_timeout_s": 300.0,
        "node_id": "",
        "node_unit": 1,
        "below_min": "stop",
        "worker_store": "rank0",
        "expected_nodes": (),
    }
    assert (settings.close_timeout_s, settings.read_timeout_s, settings.warnings) == (30, 60, ())


def test_the_options_are_those_of_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RDZV_NODE_ID", raising=False)
    values = {key: text for key, (text, _, _) in EXAMPLES.items()}
    options = NodeOptions(run="llama", min_nodes=4, **read(values, {}).options)
    assert (options.rank, options.node_id, options.node_unit) == (3, "fixed", 2)


def test_what_torch_always_adds_is_ignored() -> None:
    assert read({"timeout": 900}, {}) == read({}, {})


def test_values_need_not_be_text() -> None:
    settings = read({"join_timeout": 5, "rank": 0, "last_call_timeout": 0.5}, {})
    assert settings.options["join_timeout_s"] == 5
    assert settings.options["rank"] == 0
    assert settings.options["last_call_timeout_s"] == 0.5


def test_keys_of_c10d_only_are_taken_with_one_warning_each() -> None:
    settings = read({"store_type": "file", "is_host": "1", "heartbeat_timeout": 5}, {})
    assert settings.options == read({}, {}).options
    assert len(settings.warnings) == 3
    for key, warning in zip(sorted(conf.C10D_ONLY), settings.warnings, strict=True):
        assert key in warning
        assert "c10d" in warning


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("join_timout", "join_timeout"),
        ("lastcall_timeout", "last_call_timeout"),
        ("keepalive_interval", "keep_alive_interval"),
        ("nodeid", "node_id"),
        ("belowmin", "below_min"),
    ],
)
def test_an_unknown_key_names_the_nearest_known_one(key: str, nearest: str) -> None:
    with pytest.raises(ValueError) as caught:
        read({key: "1"}, {})
    assert f"unknown --rdzv-conf key {key!r}: did you mean {nearest!r}?" in str(caught.value)
    assert all(known in str(caught.value) for known in KEYS)


def test_an_unknown_key_like_nothing_names_all() -> None:
    with pytest.raises(ValueError, match=r"known keys: below_min, .*worker_store") as caught:
        read({"zzz": "1"}, {})
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        *((key, text) for key in KEYS if key.endswith(("timeout", "interval"))
          for text in ("soon", "-1", "nan", "inf", "", "1e400")),
        *((key, text) for key in ("rank", "node_unit", "keep_alive_max_attempt")
          for text in ("first", "-1", "1.5", "", " ")),
        ("below_min", "retry"),
        ("below_min", ""),
        ("worker_store", "rank1"),
    ],
)  # fmt: skip
def test_a_bad_value_is_named_with_its_key(key: str, text: str) -> None:
    with pytest.raises(ValueError) as caught:
        read({key: text}, {})
    assert str(caught.value).startswith(f"--rdzv-conf {key}={text}: must be ")


def test_a_bad_value_in_the_environment_is_named_too() -> None:
    with pytest.raises(ValueError, match="join_timeout=soon"):
        read({}, {"RDZV_JOIN_TIMEOUT": "soon"})


@pytest.mark.parametrize("key", ["keep_alive_interval", "keep_alive_max_attempt"])
def test_a_zero_that_leaves_no_lease_is_named_with_its_key(key: str) -> None:
    with pytest.raises(ValueError, match=key):
        NodeOptions(run="llama", **read({key: "0"}, {}).options)


def test_every_key_is_explained() -> None:
    assert set(EXAMPLES) == set(KEYS), "a new key needs an example here"
    assert all(text for text in KEYS.values())
    assert not set(KEYS) & (conf.IGNORED | conf.C10D_ONLY)
