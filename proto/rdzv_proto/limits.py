"""Every bound on the wire, each with its reason. Units are last in each name."""

NAME_CHARS_MAX = 128
"""Run, node and host names. Long enough for a pod name (63) with a domain; short in a log line."""

PROTOCOL_VERSION_MAX = 255
"""A version of the protocol is one byte in the preamble."""

TEXT_CHARS_MAX = 1024
"""Free text in a message (reasons, error texts). One screen paragraph."""

KEY_CHARS_MAX = 1024
"""A KV key. torch's own keys are below 100 characters."""

VALUE_BYTES_MAX = 1 << 20
"""A KV value. Rendezvous values are addresses and small tables; checkpoints do not belong here."""

KEYS_PER_REQUEST_MAX = 16_384
"""Keys in one multi-get, multi-set or wait: torch asks for one key per node in its rank exchange."""

EXPECTED_NODES_MAX = 4_096
"""Names in `expected_nodes`; with names of 14 characters this fills one control frame."""

MEMBERS_PER_PAGE_MAX = 256
"""Rows in one page of the member table: 256 rows of about 400 bytes stay below 128 KiB."""

RUNS_PER_PAGE_MAX = 256
"""Rows in one page of the run list, for the same reason."""

FRAME_BYTES_MAX_HELLO = 4_096
"""Before the hello is accepted nobody has a name yet, so nobody gets more than a hello needs."""

FRAME_BYTES_MAX_CONTROL = 64 * 1024
"""Requests without values. The largest honest one is a join with `expected_nodes`."""

FRAME_BYTES_MAX = VALUE_BYTES_MAX + 64 * 1024
"""Requests that carry values: one value of the largest size plus its key and envelope."""

FRAME_BYTES_MAX_CLIENT = 16 * 1024 * 1024
"""What a client accepts from its server: a multi-get for every node of a large world."""

REPLIES_RECORDED_MAX = 1_024
"""Unacknowledged recorded replies of one session. A client has far fewer requests in flight."""

PARKED_PER_SESSION_MAX = 1_024
"""Requests of one session that may wait at the same time (joins, KV waits, barriers, ids)."""

KEYS_PER_PAGE_MAX = 1_024
"""Rows in one page of a key list; without values a page stays below 1.2 MiB at the longest keys."""

PAGE_BYTES_MAX = 1 << 20
"""Values in one page of a key list, so that listing large values cannot hold up the loop."""

RANKS_MAX = 1_000_000
"""Workers of one run, and ranks of one communicator: a hundred for each node of the largest world."""

BARRIER_NAMES_MAX = 1_024
"""Barrier names that one generation (or run) remembers. A name whose last round is over makes way for a
new one, so that names with a step number in them cannot fill the memory."""

BARRIER_ROUNDS_KEPT = 8
"""Decisions of one barrier that are kept for late comers."""

BARRIER_PAYLOADS_BYTES_MAX = 4 * 1024 * 1024
"""Payloads of one barrier round together: every member gets all of them, so N times as much leaves the
server."""

NCCL_ID_BYTES = 128
"""`sizeof(ncclUniqueId)`, the same in every release and in RCCL (NCCL.md 1)."""

NCCL_IDS_MAX = 1_024
"""Unique ids of one communicator; torch uses one per 128 ranks."""

NCCL_GROUPS_MAX = 4_096
"""Communicators whose ids one generation brokers; a member of every group of a large job has dozens."""

STORE_KEY_BYTES_MAX = 8 * 1024
"""A key of a TCPStore client: torch's own limit."""

STORE_VALUE_BYTES_MAX = 8 * 1024 * 1024
"""A value of a TCPStore client: torch's own limit."""

STORE_KEYS_PER_REQUEST_MAX = 128 * 1024
"""Keys in one request of a TCPStore client: torch's own limit."""

STORE_REQUEST_BYTES_MAX = 64 * 1024 * 1024
"""One request of a TCPStore client in all. torch has no such limit, which lets one request of 131,072
values hold a terabyte; no request can usefully be larger than what its run may hold."""

STORE_ANSWER_BYTES_MAX = 80 * 1024 * 1024
"""Answers to one TCPStore client that it has not read: everything a run may hold, with lengths. A
request that asks for one large value a thousand times is cut here."""

KV_KEYS_PER_RUN_MAX = 100_000
"""Keys of one run: ten for each node of the largest world."""

KV_BYTES_PER_RUN_MAX = 64 * 1024 * 1024
"""Keys and values of one run together. One run must not use up the server's memory."""

MEMBERS_PER_RUN_MAX = 10_000
"""Nodes of one run, standbys included: the largest world that was measured (9,900)."""

RUNS_MAX = 1_000
"""Runs that one server keeps at a time."""

DURATION_MS_MAX = 10 * 365 * 24 * 3600 * 1000
"""Ten years. Longer than any job, and small enough that sums of durations stay exact."""

GENERATION_MAX = (1 << 63) - 1
"""Generation and epoch numbers are signed 64-bit, so that any client language can hold them."""
