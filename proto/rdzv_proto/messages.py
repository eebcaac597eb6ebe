"""The table of messages: every request, reply and push of the protocol, and nothing else.

Codec, reference page, golden frames and exhaustive matches all come from these classes. The rules
of the file: fields are never removed, renamed or given another meaning; a new field has a default,
which is what an absent field means, and senders may leave it out (msgspec does where it can tell), so
that the frames of older versions stay the same byte for byte. Unknown fields are ignored by both
sides. Durations are integer milliseconds, never floats (a float can be NaN) and never wall-clock
times (clocks jump).
"""

from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from rdzv_proto import limits

PRINTABLE = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]*\Z"
"""Names and texts hold no control characters: they end up in logs and on terminals. Ends in `\\Z`,
since `$` also matches before a line break at the end."""

Name = Annotated[str, Meta(min_length=1, max_length=limits.NAME_CHARS_MAX, pattern=PRINTABLE)]
BarrierName = Annotated[str, Meta(min_length=1, max_length=limits.NAME_CHARS_MAX)]
"""A `Name` too. The pattern is a tenth of what an arrival costs the server, so the first arrival at a barrier of that
name is asked for it, and not each of thousands."""
OptionalName = Annotated[str, Meta(max_length=limits.NAME_CHARS_MAX, pattern=PRINTABLE)]
Text = Annotated[str, Meta(max_length=limits.TEXT_CHARS_MAX, pattern=PRINTABLE)]
Key = Annotated[str, Meta(min_length=1, max_length=limits.KEY_CHARS_MAX)]
Prefix = Annotated[str, Meta(max_length=limits.KEY_CHARS_MAX)]
Keys = Annotated[list[Key], Meta(min_length=1, max_length=limits.KEYS_PER_REQUEST_MAX)]
Value = Annotated[bytes, Meta(max_length=limits.VALUE_BYTES_MAX)]
Ms = Annotated[int, Meta(ge=0, le=limits.DURATION_MS_MAX)]
Count = Annotated[int, Meta(ge=0, le=limits.GENERATION_MAX)]
Nodes = Annotated[int, Meta(ge=1, le=limits.MEMBERS_PER_RUN_MAX)]
Incarnation = Annotated[bytes, Meta(min_length=16, max_length=16)]
Token = Annotated[bytes, Meta(min_length=16, max_length=64)]
Proof = Annotated[bytes, Meta(min_length=32, max_length=32)]
KeyId = Annotated[bytes, Meta(min_length=8, max_length=8)]
Port = Annotated[int, Meta(ge=0, le=65535)]
Ranks = Annotated[list[Count], Meta(max_length=limits.MEMBERS_PER_RUN_MAX)]
RankCount = Annotated[int, Meta(ge=0, le=limits.RANKS_MAX)]
ProtocolVersion = Annotated[int, Meta(ge=0, le=limits.PROTOCOL_VERSION_MAX)]


# --- parts ------------------------------------------------------------------------------------


class Fence(msgspec.Struct, frozen=True, array_like=True, order=True, gc=False):
    """Names one generation for ever: `[epoch, generation]`. Later ones compare greater."""

    epoch: Count
    """Grows at each server start that could not resume its state."""
    generation: Count
    """Grows with each generation of the run."""

    def __str__(self) -> str:
        return f"{self.epoch}.{self.generation}"


class Address(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a node can be reached by the others."""

    host: OptionalName = ""
    """IP literal or name; empty if the node advertises none."""
    port: Port = 0
    explicit: bool = False
    """The user named this host (`--local-addr`): it is passed on as it is."""


class Resume(msgspec.Struct, frozen=True):
    """Proof that a new connection belongs to an older session."""

    epoch: Count
    session: Count
    token: Token


class Policy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the nodes of a run must agree on. The first join fixes it."""

    min_nodes: Nodes
    max_nodes: Nodes
    node_unit: Nodes = 1
    """World sizes are multiples of this."""
    worker_store: OptionalName = "rank0"
    """Who serves the workers' store: `rank0`, or `server` (see `Joined.store_port`)."""
    owner: Text = ""
    """User and launcher digest; compared for the run named `none` only."""
    join_timeout_ms: Ms = 600_000
    """How long a join waits for `min_nodes`, counted from that join. 0 = give up at once."""
    last_call_timeout_ms: Ms = 30_000
    """How long late nodes are waited for once `min_nodes` are there. 0 = not at all."""
    below_min: Literal["stop", "wait"] = "stop"
    """After an orderly failure that leaves fewer than `min_nodes`: tell the rest to stop, or wait."""


class Ended(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a generation ended. The first reason counts; there is only ever one."""

    kind: OptionalName
    """`lost`, `failed`, `drained`, `rejoined`, `replaced`, `scale_up`, `closed`, `finished`,
    `server_restarted`, and on the client side also `session_lost`, `fenced`, `disconnected`."""
    reason: Text
    """One sentence: who, why, when."""
    node_id: OptionalName = ""
    exit_code: int | None = None
    """Exit code of the worker that failed, where it is known."""


class View(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a participant (or its worker) must know about its generation. Always the whole state,
    so that a lost push is made good by the next one."""

    fence: Fence | None = None
    """The generation this session is or was a participant of; none before its first."""
    waiting: Count = 0
    """Nodes that could be admitted if the participants rejoined now; positive after an end."""
    reason: Text = ""
    """Who waits, in one sentence, while the generation lives."""
    ended: Ended | None = None


class MemberStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One row of a run's member table."""

    node_id: Name
    name: Name
    state: OptionalName
    """`joining`, `participant`, `standby`, `idle` (has not rejoined yet), `finished`, `suspect`."""
    group_rank: int | None = None
    incarnation_age_ms: Ms = 0
    """Since the server first saw this process."""
    heard_ms_ago: Ms = 0
    address: Address = Address()
    peer: OptionalName = ""
    """Address of the node's connection as the server sees it."""
    client: OptionalName = ""
    """Software of the node, as its hello said."""
    protocol: ProtocolVersion = 0
    """Version that is spoken with it; 0: it has not come back since the server was started."""


class RunStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One row of the list of runs."""

    run: Name
    phase: OptionalName
    """`forming`, `last_call`, `live`, `closed` or `ended`."""
    phase_age_ms: Ms = 0
    fence: Fence | None = None
    """The live generation, or the last one."""
    policy: Policy | None = None
    members: Count = 0
    participants: Count = 0
    standbys: Count = 0
    finished: Count = 0
    waiting_for: list[OptionalName] = []
    """Names of nodes that are missing, as far as they are known (at most 8)."""
    reason: Text = ""
    """The quorum decision's reason, or how the run ended."""
    ended: Ended | None = None
    """How the last generation ended, once one has."""


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Base of everything that has an `op`. It holds what a frame holds, which is never part of a cycle: the search for
    garbage need not look at it."""

    op: ClassVar[str]


class Request(Message, frozen=True, kw_only=True, omit_defaults=True):
    """Client to server. Carries a request id above 0, unique within its session."""

    answer: ClassVar[str]
    """`op` of the reply in the good case; otherwise `error` answers."""
    recorded: ClassVar[bool] = False
    """The server keeps the reply until it is acknowledged: a repeated request is not done twice."""
    carries_values: ClassVar[bool] = False
    """May exceed the size limit of control frames."""


class Reply(Message, frozen=True, kw_only=True, omit_defaults=True):
    """Server to client, with the id of the request it answers."""


class Push(Message, frozen=True, kw_only=True, omit_defaults=True):
    """Server to client, unasked, with request id 0."""


# --- opening a session ------------------------------------------------------------------------


class HelloNode(Request, frozen=True, kw_only=True, omit_defaults=True):
    """First frame of a launcher or agent. Opens a session, or resumes one."""

    op = "hello_node"
    answer = "welcome"
    run: Name
    node_id: Name
    """Unique within the run. The same id with another incarnation takes the older process's place."""
    name: Name
    """What people call the node (its host name); ranks of the first world follow its natural order."""
    incarnation: Incarnation
    """Random, picked once by each process."""
    attempt: Count = 0
    """Counts this process's connections, so that a late one cannot displace a newer one."""
    lease_ms: Ms = 15_000
    """How long this node may be silent before it counts as lost. The server may change it."""
    resume: Resume | None = None
    client: OptionalName = ""
    """Software name and version, for status and logs."""
    protocol_max: ProtocolVersion = 0
    """The newest protocol version that this client speaks. The oldest is that of this frame; 0: it is the only one."""


class HelloWorker(Request, frozen=True, kw_only=True, omit_defaults=True):
    """First frame of a training process: attaches to its agent's node and generation."""

    op = "hello_worker"
    answer = "welcome"
    run: Name
    node_id: Name
    fence: Fence
    rank: Count
    """Global rank of the worker."""
    worker_token: Token
    """From the agent's `joined`."""
    incarnation: Incarnation
    attempt: Count = 0
    lease_ms: Ms = 15_000
    resume: Resume | None = None
    client: OptionalName = ""
    protocol_max: ProtocolVersion = 0


class HelloAdmin(Request, frozen=True, kw_only=True, omit_defaults=True):
    """First frame of a tool that looks at the server and belongs to no run."""

    op = "hello_admin"
    answer = "welcome"
    client: OptionalName = ""
    protocol_max: ProtocolVersion = 0


class Authenticate(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Answer to a challenge: proof that this client knows a token, which itself is never sent. The
    transcript that is proved is described with `rdzv_proto.auth`."""

    op = "authenticate"
    answer = "welcome"
    key: KeyId
    """Which master token it is, or comes from."""
    scope: Literal["read", "join", "admin"]
    """What the token allows."""
    run: OptionalName = ""
    """The only run that the token is good for; empty: all."""
    nonce: Proof
    """Random; never the same twice."""
    proof: Proof


class Welcome(Reply, frozen=True, kw_only=True, omit_defaults=True):
    """The session is open. The version of this frame is the one that both sides speak from here on: the newest
    that both can."""

    op = "welcome"
    server: OptionalName
    """Software name and version."""
    instance: OptionalName
    """Random, picked at server start; tells two servers at one address apart."""
    epoch: Count
    session: Count = 0
    """0 for an admin, who has no session to resume."""
    token: bytes = b""
    """Secret; proves the session in a later `resume`."""
    resumed: bool = False
    lease_ms: Ms = 0
    """In force for this session. Heartbeats are due every third of it."""
    challenge: bytes = b""
    """Empty: the session is open. Otherwise nothing has happened yet, and the rest of this message
    is empty: the session opens with `authenticate`."""
    proof: Proof | None = None
    """That the server knows the token as well; in the answer to `authenticate`."""
    observed_host: OptionalName = ""
    """The client's own address as the server sees it."""
    view: View | None = None


class Heartbeat(Request, frozen=True, kw_only=True, omit_defaults=True):
    """I am alive. Any other request renews the lease as well."""

    op = "heartbeat"
    answer = "alive"
    acknowledged: Count = 0
    """Replies to all request ids up to this one have arrived: the server may forget them."""


class Alive(Reply, frozen=True, kw_only=True, omit_defaults=True):
    """The heartbeat was heard."""

    op = "alive"


# --- membership -------------------------------------------------------------------------------


class Join(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Take part in the run's next generation. Answered when one has formed with this node in it."""

    op = "join"
    answer = "joined"
    recorded = True
    policy: Policy
    last: Fence | None = None
    """The last generation the caller was in. Older than the live one: it is told the live one
    again. Equal: it ends the live one. None: it never was in any."""
    rank_hint: Count | None = None
    """Wished order among the nodes (`--rdzv-conf=rank=K`)."""
    address: Address = Address()
    """What the others are told when this node gets group rank 0 (MASTER_ADDR and MASTER_PORT)."""
    expected_nodes: Annotated[list[Name], Meta(max_length=limits.EXPECTED_NODES_MAX)] = []
    """Names or node ids: the first last call ends early when all of them are in."""


class Joined(Reply, frozen=True, kw_only=True, omit_defaults=True):
    """A generation has formed and this session is in it."""

    op = "joined"
    fence: Fence
    group_rank: Count
    world_size: Nodes
    """Number of participants (nodes, not workers)."""
    digest: bytes
    """Of the member table, so that two members can compare what they were told."""
    reason: Text
    """The quorum decision in one sentence."""
    master: Address = Address()
    """Address of group rank 0."""
    master_reason: Text = ""
    """Why this address was chosen."""
    worker_token: bytes = b""
    """Lets this node's training processes attach to this generation."""
    store_port: Port = 0
    """Where the server speaks torch's TCPStore protocol for the workers of this generation, on the
    address at which this client reached it. 0: worker 0 serves the workers' store."""


class Finished(Request, frozen=True, kw_only=True, omit_defaults=True):
    """This node's work is done: from now on its departure is no loss."""

    op = "finished"
    answer = "done"
    recorded = True
    fence: Fence


class Leave(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Leave the run in an orderly way."""

    op = "leave"
    answer = "done"
    recorded = True
    kind: Literal["finished", "failed", "drained"]
    """`failed` may stop the others (see `Policy.below_min`); `drained` makes them go on without."""
    detail: Text = ""
    exit_code: int | None = None


class CloseRun(Request, frozen=True, kw_only=True, omit_defaults=True):
    """End the run for everybody. It refuses joins for its keep time."""

    op = "close_run"
    answer = "done"
    recorded = True
    run: Name
    detail: Text = ""


class Done(Reply, frozen=True, kw_only=True, omit_defaults=True):
    """It is done."""

    op = "done"
    revision: Count = 0
    """Of the key, where the request wrote one."""


# --- KV of a generation or of a run -------------------------------------------------------------


class KvSet(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Set a key."""

    op = "kv_set"
    answer = "done"
    recorded = True
    carries_values = True
    fence: Fence | None = None
    """The generation whose keys are meant; none: the keys of the run. The same in all that follow."""
    key: Key
    value: Value


class KvGet(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Get a key; waits until it is there."""

    op = "kv_get"
    answer = "kv_value"
    fence: Fence | None = None
    key: Key
    timeout_ms: Ms = 0
    """0 = do not wait."""


class KvWait(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Wait until all keys are there."""

    op = "kv_wait"
    answer = "done"
    carries_values = True
    fence: Fence | None = None
    keys: Keys
    timeout_ms: Ms = 0


class KvAdd(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Add to a decimal counter; a missing key counts as 0. Done once, however often it is sent."""

    op = "kv_add"
    answer = "kv_number"
    recorded = True
    fence: Fence | None = None
    key: Key
    delta: int


class KvMultiGet(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Get several keys; waits until all are there."""

    op = "kv_multi_get"
    answer = "kv_values"
    carries_values = True
    fence: Fence | None = None
    keys: Keys
    timeout_ms: Ms = 0


class KvMultiSet(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Set several keys in one step. `keys` and `values` are of equal length."""

    op = "kv_multi_set"
    answer = "done"
    recorded = True
    carries_values = True
    fence: Fence | None = None
    keys: Keys
    values: Annotated[list[Value], Meta(max_length=limits.KEYS_PER_REQUEST_MAX)]


class KvCheck(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Say which of some keys are not there."""

    op = "kv_check"
    answer = "kv_missing"
    carries_values = True
    fence: Fence | None = None
    keys: Keys


class KvCas(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Set a key if it is as expected. Done once, however often it is sent."""

    op = "kv_cas"
    answer = "kv_swapped"
    recorded = True
    carries_values = True
    fence: Fence | None = None
    key: Key
    value: Value
    expected: Value | None = None
    """The value it must have; none: it must not be there. Not looked at if `revision` is given."""
    revision: Count | None = None
    """The revision it must have; 0: it must not be there."""


class KvAppend(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Append to a key's value; a missing key counts as empty. Done once, however often it is sent."""

    op = "kv_append"
    answer = "kv_number"
    recorded = True
    carries_values = True
    fence: Fence | None = None
    key: Key
    value: Value


class KvDelete(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Delete keys; missing ones are fine. Answered with how many were there."""

    op = "kv_delete"
    answer = "kv_number"
    recorded = True
    carries_values = True
    fence: Fence | None = None
    keys: Keys


class KvCount(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Count the keys that begin with a prefix."""

    op = "kv_count"
    answer = "kv_number"
    fence: Fence | None = None
    prefix: Prefix = ""


class KvList(Request, frozen=True, kw_only=True, omit_defaults=True):
    """One page of the keys that begin with a prefix, in order."""

    op = "kv_list"
    answer = "kv_page"
    fence: Fence | None = None
    prefix: Prefix = ""
    after: Prefix = ""
    """Only keys behind this one."""
    values: bool = False
    """With their values."""


class KvEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One key in a page."""

    key: str
    revision: Count
    value_bytes: Count = 0
    value: bytes | None = None
    """If values were asked for."""


class KvPage(Reply, frozen=True, kw_only=True, omit_defaults=True):
    """One page of keys."""

    op = "kv_page"
    entries: list[KvEntry] = []
    more: bool = False
    revision: Count = 0
    """Of the whole key space: the number of changes so far."""


class KvMissing(Reply, frozen=True, kw_only=True, omit_defaults=True):
    """Those keys that are not there, in the order asked for."""

    op = "kv_missing"
    keys: list[str] = []


class KvSwapped(Reply, frozen=True, kw_only=True, omit_defaults=True):
    """What a compare-and-set did, and how the key is now."""

    op = "kv_swapped"
    swapped: bool = False
    value: bytes | None = None
    """None: the key is not there."""
    revision: Count = 0


class KvValue(Reply, frozen=True, kw_only=True, omit_defaults=True):
    """The value of one key."""

    op = "kv_value"
    value: bytes
    revision: Count = 0
    """Number of the change that gave the key this value; grows with every change of its key space."""


class KvValues(Reply, frozen=True, kw_only=True, omit_defaults=True):
    """The values, in the order of the keys asked for."""

    op = "kv_values"
    values: list[bytes]


class KvNumber(Reply, frozen=True, kw_only=True, omit_defaults=True):
    """The counter after an addition, the length after an append, or a number of keys."""

    op = "kv_number"
    value: int
    revision: Count = 0
    """Of the key that was written."""


# --- barriers ---------------------------------------------------------------------------------


class Barrier(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Wait until all members of a barrier round are there. The server numbers the rounds."""

    op = "barrier"
    answer = "released"
    recorded = True
    carries_values = True
    fence: Fence | None = None
    """The generation; none with `of="count"`, whose rounds belong to the run."""
    name: BarrierName
    """Without control characters, as all names."""
    of: Literal["nodes", "workers", "count"] = "nodes"
    """Who meets: nodes (by group rank), training processes (by rank), or so many of anybody."""
    members: Ranks = []
    """The ranks that take part; empty: all of them."""
    count: RankCount = 0
    """With `of="workers"` and no `members`: the number of workers. With `of="count"`: how many."""
    round: Count | None = None
    """The round that is meant, from 1; none: the caller's next one."""
    payload: Value | None = None
    """Given to every member with the release."""
    vote: bool | None = None
    """The round commits if every member votes yes."""
    timeout_ms: Ms
    """From the first arrival; the first caller's counts for all."""


class Released(Reply, frozen=True, kw_only=True, omit_defaults=True):
    """All members were there."""

    op = "released"
    round: Count
    members: list[Count] = []
    """Who took part, in the order of `payloads`; left out if all did, from 0 up."""
    payloads: list[bytes | None] = []
    """One for each member by rank (by arrival with `of="count"`); left out if nobody gave one."""
    committed: bool | None = None
    """True: all voted yes. False: somebody did not. None: nobody voted."""
    against: list[Count] = []
    """Those that did not vote yes."""


# --- NCCL unique ids --------------------------------------------------------------------------


class NcclGet(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Get the unique ids of a communicator. A rank that must mint one is told so first."""

    op = "nccl_get"
    answer = "nccl_ids"
    fence: Fence
    group: Name
    """Names the communicator within its generation."""
    rank: RankCount
    """In the communicator."""
    nranks: Annotated[int, Meta(ge=1, le=limits.RANKS_MAX)]
    n_ids: Annotated[int, Meta(ge=1, le=limits.NCCL_IDS_MAX)] = 1
    minter: RankCount | None = None
    """The rank that mints all ids; none: the first rank of each block does."""
    attempt: Count | None = None
    """From 0; none: the caller's next one."""
    version: Count = 0
    """`ncclGetVersion` of this rank; 0: not known, and not compared."""
    timeout_ms: Ms
    """Until the ids are there."""
    init_timeout_ms: Ms = 300_000
    """From the ids being there until all ranks are ready; the first caller's counts."""


class NcclIds(Reply, frozen=True, kw_only=True, omit_defaults=True):
    """The ids, or the order to mint one."""

    op = "nccl_ids"
    attempt: Count
    mint: list[Count] = []
    """Indices of the ids that this rank must mint and `nccl_put`; then it asks again."""
    ids: list[bytes] = []
    version: Count = 0
    """NCCL version of the ranks, as far as it is known."""


class NcclPut(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Here is the id that this rank was told to mint."""

    op = "nccl_put"
    answer = "done"
    recorded = True
    fence: Fence
    group: Name
    attempt: Count
    rank: RankCount
    index: Count
    id: Annotated[bytes, Meta(max_length=limits.FRAME_BYTES_MAX_HELLO)]


class NcclReady(Request, frozen=True, kw_only=True, omit_defaults=True):
    """This rank's communicator stands."""

    op = "nccl_ready"
    answer = "done"
    recorded = True
    fence: Fence
    group: Name
    attempt: Count
    rank: RankCount


class NcclFail(Request, frozen=True, kw_only=True, omit_defaults=True):
    """This rank could not mint an id, or could not make its communicator: the others must know."""

    op = "nccl_fail"
    answer = "done"
    recorded = True
    fence: Fence
    group: Name
    attempt: Count
    rank: RankCount
    reason: Text = ""


# --- what agents report -----------------------------------------------------------------------


class MasterProbe(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Whether this node can reach MASTER_ADDR and MASTER_PORT of its generation."""

    op = "master_probe"
    answer = "done"
    recorded = True
    fence: Fence
    master: Address
    error: Text = ""
    """What went wrong; empty: it was reached."""
    refused: bool = False
    """The host answers, but nobody listens on the port: normal until worker 0 has opened its store."""
    after_ms: Ms = 0
    """Since the generation formed."""


class WorkersStarted(Request, frozen=True, kw_only=True, omit_defaults=True):
    """The processes of this node's workers, so that a store connection can be told by its rank."""

    op = "workers_started"
    answer = "done"
    recorded = True
    fence: Fence
    ranks: Ranks
    """Global ranks."""
    pids: Ranks
    """Process ids, in the same order."""
    world_size: Count = 0
    """Workers of all nodes; 0: not known."""


# --- looking at the server --------------------------------------------------------------------


class Status(Request, frozen=True, kw_only=True, omit_defaults=True):
    """How the server is."""

    op = "status"
    answer = "server_status"


class ServerStatus(Reply, frozen=True, kw_only=True, omit_defaults=True):
    """How the server is."""

    op = "server_status"
    server: OptionalName
    protocol: Count
    """The newest version that it speaks."""
    instance: OptionalName
    epoch: Count
    state: OptionalName
    """Where state is kept: `memory`, `sqlite` or `etcd`."""
    uptime_ms: Ms = 0
    stalls: Count = 0
    """Times the server itself did not run, none of which was charged to a session."""
    stalled_ms: Ms = 0
    connections: Count = 0
    sessions: Count = 0
    runs: Count = 0
    """Those that the one who asks may see."""
    denied: Count = 0
    """Attempts to get in with a wrong token, proof or certificate."""
    read_only: Text = ""
    """Why nothing can be stored now; nothing is acknowledged meanwhile."""
    leader: Text = ""
    """Own address of a server that leads a cluster (`etcd`); empty where there is only one."""
    protocol_min: ProtocolVersion = 0
    """The oldest version that it speaks; 0: `protocol` is the only one."""


class ListRuns(Request, frozen=True, kw_only=True, omit_defaults=True):
    """One page of the runs, in order of their names."""

    op = "list_runs"
    answer = "runs"
    after: OptionalName = ""
    """Only names behind this one."""
    only: OptionalName = ""
    """Only this run."""


class Runs(Reply, frozen=True, kw_only=True, omit_defaults=True):
    """One page of the runs."""

    op = "runs"
    runs: list[RunStatus] = []
    more: bool = False


class Members(Request, frozen=True, kw_only=True, omit_defaults=True):
    """One page of a run's member table: participants in rank order, then the others."""

    op = "members"
    answer = "member_page"
    run: Name
    offset: Count = 0


class MemberPage(Reply, frozen=True, kw_only=True, omit_defaults=True):
    """One page of a run's member table."""

    op = "member_page"
    fence: Fence | None = None
    """The live generation that `group_rank` belongs to."""
    members: list[MemberStatus] = []
    total: Count = 0


class ShowGeneration(Request, frozen=True, kw_only=True, omit_defaults=True):
    """What goes on inside a run's generation."""

    op = "show_generation"
    answer = "generation_status"
    run: Name


class BarrierStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A barrier round that somebody waits in."""

    name: Name
    of: OptionalName
    round: Count
    arrived: Count
    needed: Count
    missing: list[OptionalName] = []
    """At most 8, by rank and node."""
    age_ms: Ms = 0
    left_ms: Ms = 0


class StoreStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The workers' store that the server serves."""

    port: Port
    clients: Count = 0
    world_size: Count = 0
    """Workers; 0: not known."""
    ranks: list[Count] = []
    """Of the clients, as far as they can be told."""
    missing: list[OptionalName] = []
    """Workers that have not connected, as far as they can be told; at most 8."""
    keys: Count = 0
    value_bytes: Count = 0


class CommunicatorStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A NCCL communicator whose ids pass through the server. Its ids themselves are never shown."""

    name: Text
    via: OptionalName
    """`broker` or `store`."""
    state: OptionalName
    """`open`, `minting`, `published`, `spent` or `failed`."""
    attempt: Count = 0
    minter: OptionalName = ""
    """Who has to give the id, or gave it."""
    fetched: Count = 0
    ready: Count = 0
    needed: Count = 0
    """Ranks; 0: not known."""
    missing: list[OptionalName] = []
    """Ranks that have not fetched an id (or not got ready), as far as they can be told; at most 8."""
    age_ms: Ms = 0
    reason: Text = ""
    """Why it failed."""


class ProbeStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a node said of MASTER_ADDR and MASTER_PORT."""

    node: OptionalName
    error: Text = ""
    """Empty: it was reached."""
    after_ms: Ms = 0


class GenerationStatus(Reply, frozen=True, kw_only=True, omit_defaults=True):
    """What goes on inside a run's generation. Lists are cut to what a page shows."""

    op = "generation_status"
    fence: Fence | None = None
    master: Address = Address()
    master_reason: Text = ""
    barriers: list[BarrierStatus] = []
    store: StoreStatus | None = None
    store_lost: bool = False
    """The server served one, and it ended with the server process that did."""
    communicators: list[CommunicatorStatus] = []
    probes: list[ProbeStatus] = []
    keys: Count = 0
    """Of the generation."""
    run_keys: Count = 0
    value_bytes: Count = 0
    """Keys and values of the run, all key spaces together."""


# --- errors and pushes ------------------------------------------------------------------------


class Error(Reply, frozen=True, kw_only=True, omit_defaults=True):
    """The request was refused; see the table of errors for its code."""

    op = "error"
    code: int
    message: str
    """What happened, to whom, where, since when."""
    action: str = ""
    """What to do about it."""
    retry_after_ms: Ms = 0


class ViewChanged(Push, frozen=True, kw_only=True, omit_defaults=True):
    """The session's view, each time it changes."""

    op = "view"
    view: View


class Progress(Push, frozen=True, kw_only=True, omit_defaults=True):
    """How far the forming of the run is, to everyone whose join waits; at most once a second."""

    op = "progress"
    joined: Count
    min_nodes: Nodes
    max_nodes: Nodes
    left_ms: Ms | None = None
    """Until the wait ends one way or the other; none for a standby, who waits without limit."""
    waiting_for: list[OptionalName] = []
    """Names of missing nodes as far as they are known (at most 8)."""
    reason: Text = ""
    standby: bool = False


class Notice(Push, frozen=True, kw_only=True, omit_defaults=True):
    """A warning for the log of the client."""

    op = "notice"
    message: Text


class NcclRevoked(Push, frozen=True, kw_only=True, omit_defaults=True):
    """Ids that this session fetched lead nowhere: abort the communicator's init."""

    op = "nccl_revoked"
    fence: Fence
    group: Name
    attempt: Count
    code: int
    message: str


class Goodbye(Push, frozen=True, kw_only=True, omit_defaults=True):
    """Why the server closes this connection; the last frame on it."""

    op = "goodbye"
    code: int
    message: str
    retry_after_ms: Ms = 0
    leader: Text = ""
    """With NOT_LEADER: who leads, as HOST:PORT; empty if nobody does yet."""


AnyRequest = (
    HelloNode | HelloWorker | HelloAdmin | Authenticate | Heartbeat | Join | Finished | Leave | CloseRun
    | KvSet | KvGet | KvWait | KvAdd | KvMultiGet | KvMultiSet | KvCheck | KvCas | KvAppend
    | KvDelete | KvCount | KvList | Barrier | NcclGet | NcclPut | NcclReady | NcclFail
    | MasterProbe | WorkersStarted | Status | ListRuns | Members | ShowGeneration
)  # fmt: skip
AnyReply = (
    Welcome | Alive | Joined | Done | KvValue | KvValues | KvNumber | KvMissing | KvSwapped
    | KvPage | Released | NcclIds | ServerStatus | Runs | MemberPage | GenerationStatus | Error
)  # fmt: skip
AnyPush = ViewChanged | Progress | Notice | NcclRevoked | Goodbye

REQUESTS: dict[str, type[AnyRequest]] = {t.op: t for t in AnyRequest.__args__}
REPLIES: dict[str, type[AnyReply]] = {t.op: t for t in AnyReply.__args__}
PUSHES: dict[str, type[AnyPush]] = {t.op: t for t in AnyPush.__args__}
