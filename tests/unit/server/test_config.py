"""A configuration is checked as a whole: what contradicts itself is refused, with a text for people."""

from pathlib import Path

import msgspec
import pytest

from rdzv_proto import PORT_DEFAULT
from rdzv_server.config import DATABASE, Config

HERE = "/nowhere/at/all"

# --- where state is kept ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "path"),
    [
        (Config(), None),
        (Config(state="memory"), None),
        (Config(state="memory", data_dir=HERE), None),
        (Config(data_dir=HERE), Path(HERE) / DATABASE),
        (Config(state=f"sqlite:{HERE}/x.db"), Path(HERE) / "x.db"),
        (Config(state="sqlite:x.db"), Path("x.db")),
        (Config(state="sqlite:/a:b/x.db"), Path("/a:b/x.db")),
    ],
)
def test_the_database_that_was_named(config: Config, path: Path | None) -> None:
    assert config.state_path() == path


@pytest.mark.parametrize(
    "state", ["sqlite", "sqlite:", "disk", "memory:", "memory:x", "etcd:h", "SQLITE:x", ":x"]
)
def test_a_state_that_is_no_way_to_keep_it_is_named(state: str) -> None:
    with pytest.raises(
        ValueError, match="must be memory, sqlite:PATH or etcd://HOST:PORT"
    ) as caught:
        Config(state=state).state_path()
    assert f"--state {state}:" in str(caught.value)


@pytest.mark.parametrize("state", ["sqlite:x.db", "etcd://h/p"])
def test_two_places_for_state_contradict_each_other(state: str) -> None:
    with pytest.raises(ValueError, match="--state and --data-dir both say"):
        Config(state=state, data_dir=HERE).state_path()


# --- several servers --------------------------------------------------------------------------

ETCD = "etcd://h:1,i:2/p"


def test_a_cluster_s_state_is_in_etcd_and_in_no_file() -> None:
    config = Config(state=ETCD)
    assert config.state_path() is config.state_path_default({"STATE_DIRECTORY": HERE}) is None
    place = config.etcd_place()
    assert place is not None
    assert place.endpoints == ("h:1", "i:2")
    assert Config(state="memory").etcd_place() is None


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (Config(state="etcd://h"), "keeps this cluster's keys apart"),
        (Config(state=ETCD, port=0), "--port 0 goes not together with --state etcd://"),
        (Config(state=ETCD, host="0.0.0.0"), "needs --advertise HOST"),
        (Config(state=ETCD, host="::"), "needs --advertise HOST"),
        (Config(state=ETCD, leader_lease_s=1.9), "must be from 2s to 60s"),
        (Config(state=ETCD, leader_lease_s=61), "must be from 2s to 60s"),
        (Config(state=ETCD, cluster_id=""), "--cluster-id must be a name"),
        (Config(state=ETCD, cluster_id="a\nb"), "--cluster-id must be a name"),
        (Config(state=ETCD, etcd_key="k"), "--etcd-key needs --etcd-cert"),
        (Config(state=ETCD, etcd_user="u"), "--etcd-user and --etcd-password-file go together"),
        (Config(state=ETCD, etcd_password_file="f"), "go together"),
    ],
)
def test_what_a_cluster_cannot_be_is_named(config: Config, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        config.state_path()


@pytest.mark.parametrize(
    ("host", "advertise", "address"),
    [
        ("10.0.0.7", "", "10.0.0.7:7"),
        ("::1", "", "[::1]:7"),
        ("0.0.0.0", "a.example", "a.example:7"),
        ("0.0.0.0", "a.example:9", "a.example:9"),
        ("::", "fe80::1", "[fe80::1]:7"),
        ("::", "[fe80::1]", "[fe80::1]:7"),
        ("::", "[fe80::1]:9", "[fe80::1]:9"),
    ],
)
def test_clients_are_sent_to_the_address_that_they_can_reach(
    host: str, advertise: str, address: str
) -> None:
    assert Config(host=host, port=7, advertise=advertise).address() == address


# --- where state is kept, if nothing was said ---------------------------------------------------


@pytest.mark.parametrize(
    ("config", "environ", "path"),
    [
        (Config(), {"STATE_DIRECTORY": HERE}, f"{HERE}/{DATABASE}"),
        (Config(), {"STATE_DIRECTORY": f"{HERE}:/other"}, f"{HERE}/{DATABASE}"),
        (
            Config(),
            {"STATE_DIRECTORY": HERE, "XDG_STATE_HOME": "/other"},
            f"{HERE}/{DATABASE}",
        ),
        (
            Config(),
            {"XDG_STATE_HOME": HERE},
            f"{HERE}/rdzv/127.0.0.1-{PORT_DEFAULT}/{DATABASE}",
        ),
        (
            Config(host="::", port=7),
            {"XDG_STATE_HOME": HERE, "STATE_DIRECTORY": ""},
            f"{HERE}/rdzv/::-7/{DATABASE}",
        ),
        (Config(host="../x", port=7), {"XDG_STATE_HOME": HERE}, f"{HERE}/rdzv/.._x-7/{DATABASE}"),
    ],
)
def test_the_usual_place(config: Config, environ: dict[str, str], path: str) -> None:
    assert config.state_path_default(environ) == Path(path)


def test_the_usual_place_of_a_user_is_at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: Path(HERE))
    expected = Path(HERE) / ".local/state/rdzv" / f"127.0.0.1-{PORT_DEFAULT}" / DATABASE
    assert Config().state_path_default({}) == expected
    assert Config().state_path_default({"XDG_STATE_HOME": ""}) == expected


def test_two_servers_of_one_user_have_two_places() -> None:
    environ = {"XDG_STATE_HOME": HERE}
    places = {
        Config(host=host, port=port).state_path_default(environ)
        for host in ("127.0.0.1", "0.0.0.0", "::")
        for port in (1, 2)
    }
    assert len(places) == 6


@pytest.mark.parametrize("config", [Config(port=0), Config(state="memory")])
def test_there_is_no_usual_place_for_a_free_port_or_where_memory_was_asked_for(
    config: Config,
) -> None:
    environ = {"XDG_STATE_HOME": HERE, "STATE_DIRECTORY": HERE}
    assert config.state_path_default(environ) is None


def test_there_is_no_usual_place_for_a_user_without_a_home(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in a container with a user id that has no entry and no HOME: state is in memory, with a warning."""

    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", home)
    assert Config().state_path_default({}) is None


# --- who may come in --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (
            Config(token_file="t", insecure_no_auth=True),
            "--token-file and --insecure-no-auth contradict",
        ),
        (Config(token_file="t", tcpstore=True), "--tcpstore goes not together with --token-file"),
        (Config(tls_cert="c", tcpstore=True), "--tcpstore goes not together with --tls-cert"),
        (Config(tls_key="k"), "need --tls-cert"),
        (Config(tls_client_ca="ca"), "need --tls-cert"),
        (Config(tls_key="k", tls_client_ca="ca"), "need --tls-cert"),
    ],
)
def test_flags_that_contradict_each_other_are_named(config: Config, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        config.check_access()


@pytest.mark.parametrize(
    "config",
    [
        Config(),
        Config(insecure_no_auth=True, tcpstore=True),
        Config(tcpstore=True),
        Config(token_file="t"),
        Config(token_file="t", tls_cert="c", tls_key="k", tls_client_ca="ca"),
        Config(tls_cert="c"),
        Config(tls_cert="c", insecure_no_auth=True),
    ],
)
def test_flags_that_go_together(config: Config) -> None:
    config.check_access()


# --- the rest ---------------------------------------------------------------------------------


@pytest.mark.parametrize("port", ["", "off", "0", "9000", "65535"])
def test_a_port_for_http(port: str) -> None:
    Config(http_port=port).check_http()


@pytest.mark.parametrize("port", ["on", "-1", "65536", "9 000", "OFF", "٣"])
def test_what_is_no_port_for_http_is_named(port: str) -> None:
    with pytest.raises(ValueError, match="--http-port"):
        Config(http_port=port).check_http()


def test_the_core_gets_what_concerns_it() -> None:
    config = Config(reconnect_grace_s=2, scale_up_delay_s=3, run_keep_s=4, token_file="t")
    settings = config.settings("sqlite")
    assert (settings.reconnect_grace_s, settings.scale_up_delay_s, settings.run_keep_s) == (2, 3, 4)
    assert settings.guarded
    assert settings.state == "sqlite"
    assert not Config().settings().guarded
    assert Config().settings().state == "memory"


@pytest.mark.parametrize("name", ["reconnect_grace_s", "scale_up_delay_s", "run_keep_s"])
def test_a_negative_time_is_named(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        msgspec.convert({name: -1.0}, Config).settings()


def test_a_setting_that_is_not_known_is_refused_and_named() -> None:
    with pytest.raises(msgspec.ValidationError, match="stat_path"):
        msgspec.convert({"stat_path": "x"}, Config)


def test_a_configuration_does_not_change() -> None:
    with pytest.raises(AttributeError):
        Config().port = 5  # type: ignore[misc]
