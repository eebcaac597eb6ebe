/* Join, loss and barriers with incarnations, fences and a server that crashes: `python -m tests.spin`.
 *
 * N nodes, each with one process after the other (incarnations), meet at one server. Between a process and
 * the server there are connections, at most two of a node at a time: the present one and what is left of the
 * one before. A connection keeps its order, and breaks: then nothing comes back on it any more, what was sent
 * on it is lost or arrives late, after whatever came on its successor, and the process asks again there, so
 * requests come twice. Who reads a reply later could as well act on it later, so replies that arrive arrive
 * at once. Time is not modelled: what may happen after a while may happen at any time.
 *
 * Each transition is one step of the core, and names the module that it stands for; modules without a folder
 * are those of server/rdzv_server/core. MUTANT leaves one rule out (tests/spin/__main__.py lists them).
 *
 * Fences are (epoch, generation) in one number, so that `<` is their order.
 */

#define N 3
#define MIN 2

/* Faults and what people do, all nodes together: the state space ends where these do. */
#ifndef STARTS
#define STARTS 2        /* new processes; no node has more than three */
#endif
#ifndef BREAKS
#define BREAKS 2        /* connections that break though their process lives on */
#endif
#ifndef LOSSES
#define LOSSES 1        /* sessions that expire */
#endif
#ifndef CRASHES
#define CRASHES 1       /* of the server */
#endif
#ifndef FAULTS
#define FAULTS 2        /* of all these kinds together */
#endif
#ifndef LATE_CALLS
#define LATE_CALLS 1    /* with the fence of a generation that is over */
#endif
#ifndef GENERATIONS
#define GENERATIONS 3   /* at most 3: fences have two bits for them */
#endif
#ifndef ROUNDS
#define ROUNDS 2        /* of the barrier, in one generation */
#endif

/* Rules that a mutant lacks, one at a time. */
#define NO_INCARNATION_CHECK 1
#define NO_GENERATION_CHECK 2
#define COUNT_NOT_SET 3
#define STALE_CLOSE 4
#define NO_RECHECK 5
#define NO_EPOCH_BUMP 6
#define FENCED_FORGOTTEN 7
#define RETRY_COUNTS_AGAIN 8
#define PHANTOM_QUORUM 9
#define NO_EPOCH_IN_FENCE 10
#define LOSS_NOT_TOLD 11
#define OLD_ATTEMPT_WINS 12
#define REPLIES_NOT_STORED 13
#ifndef MUTANT
#define MUTANT 0
#endif
#ifndef DURABLE
#define DURABLE 0       /* 0: --state memory; 1: what was decided outlives the server */
#endif

#define FENCE(e, g) (((e) << 2) | (g))
#define NOW FENCE(epoch, generation)
#define BIT(i) (1 << (i))
#define NODE(x) ((x) >> 1)
#define NOWHERE 255

/* --- connections: x = 2 * node + (0 or 1) ------------------------------------------------------------- */

#define FREE 0          /* there is none */
#define DIALLED 1       /* the server has not heard its hello */
#define ATTACHED 2      /* it is a session's */
#define CUT 3           /* the server has closed it, and has still to hear that it is gone */
byte line[6];
byte by[6];             /* incarnation of the process that opened it */
byte attempt[6];        /* which connection of that process it is */
bool ended[6];          /* its process will send nothing more on it */

#define NOTHING 0
#define HELLO 1         /* about: the session to resume, 0 for none; number: the epoch of that session */
#define JOIN 2          /* about: the last fence the process was in; number: request id */
#define ARRIVE 3        /* about: the fence; number: request id */
byte under_way[6];
byte about[6];
byte number[6];

/* --- the processes (client/rdzv_client) --------------------------------------------------------------- */

#define OUT 0
#define JOINING 1
#define IN 2
#define ARRIVING 3
#define LATE 4          /* somebody in the process asks with the fence of a generation that it has left */
#define FENCED 5        /* for ever */
byte doing[N];
byte incarnation[N] = 1;
byte dialled[N];        /* connections so far */
byte on[N] = NOWHERE;   /* its connection */
bool deaf[N];           /* what is sent to it there is lost */
bool welcome[N];        /* its hello was answered there */
byte my_session[N];
byte my_epoch[N];
byte my_fence[N];       /* the newest it was told, 0 for none */
byte my_round[N];       /* barriers it has called in it */
bool my_join[N];        /* request id of its last join: calls are told apart from retries, no more is needed */

#define WELCOME 1
#define JOINED 2
#define RELEASED 3
#define STALE 4

/* --- the server --------------------------------------------------------------------------------------- */

byte epoch = 1;
byte generation;
bool live;
byte members;           /* of the generation; a set, as all below */
byte member_session[N];
byte arrived;           /* in the open round */
byte rounds;            /* that were released */
byte session[N];        /* of the node, 0 for none */
byte session_by[N];     /* incarnation */
byte session_on[N] = NOWHERE;
byte session_attempt[N];
byte sessions[N];       /* how many there have been: ids and tokens are never used twice */
bool parked[N];         /* its join waits */
bool parked_id[N];
byte joined_fence[N];   /* recorded reply to a join */
bool joined_id[N];
byte released_fence[N]; /* recorded reply to a barrier */
byte released_id[N];
byte superseded[N];     /* incarnations */
#if MUTANT == COUNT_NOT_SET
byte arrivals;
#endif

/* --- what properties are about, and nobody reads ------------------------------------------------------ */

short used;             /* fences */
byte newest;            /* fence */
byte formed;            /* generations, of all epochs */
byte member_by[N];      /* incarnations in the table of the generation; 0: not in it */
byte asked[N];          /* incarnations that called join */
byte called[N];         /* the last round that its process called in this very generation */
byte fenced[N];         /* incarnations, by this server or by one whose state it has */
byte passed_fence[N];   /* the last round that was released for the node */
byte passed_round[N];

byte starts, breaks, losses, crashes, late_calls, hit;
hidden byte j, was, seats, what, arg, id;

#define IN_WORLD(i) ((members & BIT(i)) && session[i] && member_session[i] == session[i])

/* Nodes are alike, so they are numbered in the order of their first fault. */
#define MAY_FAIL(i) (starts + breaks + losses + crashes < FAULTS && (i) <= hit)
#define FAILS(i) hit = ((i) == hit -> hit + 1 : hit)

inline send(i, request, fact, number_) {
    under_way[on[i]] = request; about[on[i]] = fact; number[on[i]] = number_
}

/* A fence before this one: of the generation before, or of the first one in the epoch before. */
#define OLDER(fence) (fence - 4 + 3 * ((fence & 3) > 1))

inline ask_again(i) {
    /* client/rdzv_client/inflight: what is not answered is asked again, under its old request id */
    if
    :: doing[i] == JOINING -> send(i, JOIN, my_fence[i], my_join[i])
    :: doing[i] == ARRIVING -> send(i, ARRIVE, my_fence[i], my_round[i])
    :: doing[i] == LATE -> send(i, ARRIVE, OLDER(my_fence[i]), ROUNDS + 1)
    :: else
    fi
}

inline nobody_here() {
    arrived = 0;
#if MUTANT == COUNT_NOT_SET
    arrivals = 0;
#endif
    skip
}

inline tell(i, reply, fact, number_) {
    /* shell/connection: it goes where the session is now. client/rdzv_client/session: a reply to a request
     * that is not in flight any more is passed over. */
    if
    :: session_on[i] == NOWHERE || on[i] != session_on[i] || deaf[i]
    :: else ->
        if
        :: reply == WELCOME ->
            welcome[i] = true; my_session[i] = fact; my_epoch[i] = epoch; ask_again(i)
        :: reply == JOINED && doing[i] == JOINING && number_ == my_join[i] ->
            assert(fact > my_fence[i]);                 /* S3: fences only rise, whoever tells them */
            assert(member_by[i] == incarnation[i]);     /* S4: this very process is in the table */
            my_fence[i] = fact; my_round[i] = 0; doing[i] = IN
        :: reply == RELEASED && doing[i] == ARRIVING && number_ == my_round[i] ->
            assert(fact == my_fence[i]);
            doing[i] = IN
        :: reply == STALE && doing[i] == ARRIVING && number_ == my_round[i] ->
            /* S14: one decision, also for whoever asks again */
            assert(passed_fence[i] != my_fence[i] || passed_round[i] < my_round[i]);
            doing[i] = OUT
        :: reply == STALE && doing[i] == LATE && number_ > ROUNDS -> doing[i] = IN
        :: else
        fi
    fi
}

inline tell_joined(i, fence, number_) {
    /* S4, S8: you are in, and it is true in this very step */
    assert(live && fence == NOW && IN_WORLD(i) && member_by[i] == session_by[i]);
    tell(i, JOINED, fence, number_)
}

inline cut(x) {
    /* tables.close: nothing that still comes on it is heard; its process notices */
    line[x] = CUT;
#if MUTANT != NO_INCARNATION_CHECK
    under_way[x] = NOTHING; about[x] = 0; number[x] = 0;
#endif
    if
    :: on[NODE(x)] == x -> on[NODE(x)] = NOWHERE; welcome[NODE(x)] = false; deaf[NODE(x)] = false
    :: else
    fi
}

inline clear(x) {
    line[x] = FREE; by[x] = 0; attempt[x] = 0; ended[x] = false;
    under_way[x] = NOTHING; about[x] = 0; number[x] = 0
}

inline end_generation() {
    /* generations.end, waits.generation_over: who waits at the barrier learns it (S11, L3) */
    live = false;
    j = 0;
    do
    :: j < N && (arrived & BIT(j)) -> tell(j, STALE, 0, rounds + 1); j++
    :: j < N && !(arrived & BIT(j)) -> j++
    :: j == N -> break
    od;
    nobody_here()
}

inline session_over(i) {
    /* generations.session_over and session_replaced: a member's end is its generation's (S9) */
    if
    :: live && IN_WORLD(i) && MUTANT != LOSS_NOT_TOLD -> end_generation()
    :: else
    fi;
    if
    :: session_on[i] != NOWHERE -> cut(session_on[i])
    :: else
    fi;
    session[i] = 0; session_by[i] = 0; session_on[i] = NOWHERE; session_attempt[i] = 0;
    parked[i] = false; parked_id[i] = false;
    joined_fence[i] = 0; joined_id[i] = false; released_fence[i] = 0; released_id[i] = 0
}

inline attach(x, i) {
    /* sessions._attach: the older connection is cut; a hello that comes after a later one changes nothing */
    was = session_attempt[i];
    if
    :: attempt[x] < session_attempt[i] && MUTANT != OLD_ATTEMPT_WINS -> cut(x)
    :: else ->
        session_attempt[i] = attempt[x];
        if
        :: session_on[i] != NOWHERE && session_on[i] != x -> cut(session_on[i])
        :: else
        fi;
        session_on[i] = x;
        line[x] = ATTACHED;
        tell(i, WELCOME, session[i], 0)
    fi;
    assert(session_attempt[i] >= was)                   /* S5: nobody is fenced by his own past */
}

inline forget_session(x, i) {
    /* client/rdzv_client/session: refused with SESSION_LOST or UNKNOWN_EPOCH; its generation is over */
    if
    :: on[i] == x ->
        my_session[i] = 0; my_epoch[i] = 0;
        if
        :: doing[i] == IN || doing[i] == ARRIVING || doing[i] == LATE -> doing[i] = OUT
        :: else
        fi
    :: else
    fi;
    cut(x)
}

inline hear_hello(x, i) {
    /* sessions.hello_node, _proven, supersede */
    if
    :: (superseded[i] & BIT(by[x])) ->
        if
        :: on[i] == x -> doing[i] = FENCED
        :: else
        fi;
        cut(x)
    :: !(superseded[i] & BIT(by[x])) && arg && (id != epoch || arg != session[i]) ->
        forget_session(x, i)
    :: else ->
        if
        :: session[i] && session_by[i] != by[x] ->
            if
            :: MUTANT != FENCED_FORGOTTEN -> superseded[i] = superseded[i] | BIT(session_by[i])
            :: else
            fi;
            fenced[i] = fenced[i] | BIT(session_by[i]);
            session_over(i)
        :: else
        fi;
        if
        :: !session[i] ->                               /* sessions._open */
            sessions[i]++; session[i] = sessions[i]; session_by[i] = by[x]
        :: else
        fi;
        assert(!(fenced[i] & BIT(session_by[i])));  /* S5: fenced is for ever */
        attach(x, i)
    fi
}

inline park_join(x, i) {
    /* membership.join */
    if
    :: live && IN_WORLD(i) && arg < NOW ->         /* it is in, and does not know it yet */
        joined_fence[i] = NOW; joined_id[i] = id;
        tell_joined(i, NOW, id)
    :: else ->
        if
        :: live && IN_WORLD(i) -> end_generation()      /* it restarts its workers */
        :: else
        fi;
        parked[i] = true; parked_id[i] = id;
        joined_fence[i] = 0; joined_id[i] = false
    fi
}

inline hear_join(x, i) {
    /* coordinator._session_reply, replies.outdated: a recorded "you are in" is repeated while it is true (S8) */
    if
    :: joined_fence[i] && joined_id[i] == id &&
            ((live && joined_fence[i] == NOW) || MUTANT == NO_RECHECK) ->
        tell_joined(i, joined_fence[i], id)
    :: else -> park_join(x, i)
    fi
}

inline release() {
    /* barriers._decide, rounds.decide: one decision, and it is recorded for retries (S14) */
    rounds++;
    nobody_here();
    j = 0;
    do
    :: j < N && (members & BIT(j)) ->
        /* S13, S15: every member, by the very process that is in, and in this round */
        assert(called[j] == rounds);
        assert(IN_WORLD(j));                            /* S9 */
        released_fence[j] = NOW; released_id[j] = rounds;
        passed_fence[j] = NOW; passed_round[j] = rounds;
        tell(j, RELEASED, NOW, rounds);
        j++
    :: j < N && !(members & BIT(j)) -> j++
    :: j == N -> break
    od;
    j = 0
}

#if MUTANT == NO_EPOCH_IN_FENCE
#define IS_NOW(fence) ((fence & 3) == generation)
#elif MUTANT == NO_GENERATION_CHECK
#define IS_NOW(fence) (true)
#else
#define IS_NOW(fence) (fence == NOW)
#endif

#if MUTANT == COUNT_NOT_SET
#define HERE(i) arrivals++
#define ALL_HERE (arrivals >= (members & 1) + ((members >> 1) & 1) + (members >> 2))
#else
#define HERE(i) skip
#define ALL_HERE (arrived == members)
#endif

inline hear_arrive(x, i) {
    /* coordinator._session_reply: a retry is answered as the first time, and not counted again;
     * waits.generation_of: the fence and the membership are checked (S10, S16); barriers.arrive */
    if
    :: released_fence[i] == arg && released_id[i] == id && MUTANT != RETRY_COUNTS_AGAIN ->
        tell(i, RELEASED, arg, id)
    :: else ->
        if
        :: live && IS_NOW(arg) && IN_WORLD(i) ->
            arrived = arrived | BIT(i);
            HERE(i);
            if
            :: ALL_HERE -> release()
            :: else
            fi
        :: else -> tell(i, STALE, 0, id)
        fi
    fi
}

#if MUTANT == NO_INCARNATION_CHECK
#define IS_OF_SESSION(x) (session[NODE(x)] != 0)
#else
#define IS_OF_SESSION(x) (session_on[NODE(x)] == x)
#endif

inline hear(x) {
    /* coordinator.request, or shell/connection for one that was cut: keyed by session, never by node (S6) */
    what = under_way[x]; arg = about[x]; id = number[x];
    under_way[x] = NOTHING; about[x] = 0; number[x] = 0;
    if
    :: what == HELLO && line[x] == DIALLED -> hear_hello(x, NODE(x))
    :: what == JOIN && IS_OF_SESSION(x) -> hear_join(x, NODE(x))
    :: what == ARRIVE && IS_OF_SESSION(x) -> hear_arrive(x, NODE(x))
    :: else
    fi
}

inline hear_end(x) {
    /* sessions.connection_lost: a suspect, if this is the session's present connection (S6) */
    was = session_on[NODE(x)];
    if
    :: session_on[NODE(x)] == x || (MUTANT == STALE_CLOSE && by[x] == session_by[NODE(x)]) ->
        session_on[NODE(x)] = NOWHERE
    :: else
    fi;
    assert(was == x || was == session_on[NODE(x)]);
    clear(x)
}

inline leave_line(i) {
    /* its end is on its way, behind what it sent */
    if
    :: on[i] != NOWHERE -> ended[on[i]] = true; on[i] = NOWHERE
    :: else
    fi;
    welcome[i] = false; deaf[i] = false
}

inline dial(i, x) {
    /* client/rdzv_client/reconnect, session: a hello, with what proves the session if there is one */
    dialled[i]++;
    line[x] = DIALLED; by[x] = incarnation[i]; attempt[x] = dialled[i]; on[i] = x;
    send(i, HELLO, my_session[i], my_epoch[i])
}

/* --- a node: its processes, its connections, and the server's end of them ------------------------------- */

#define I _pid
#define QUIET (!welcome[_pid] || !under_way[on[_pid]])
#define A (2 * _pid)
#define B (2 * _pid + 1)

active [N] proctype node() {
end:
    do
    /* A process asks to be in: at first, after its generation, or because it restarts its workers. */
    :: d_step { (doing[I] == OUT || doing[I] == IN) && QUIET ->
        doing[I] = JOINING; my_join[I] = !my_join[I]; asked[I] = asked[I] | BIT(incarnation[I]);
        if
        :: welcome[I] -> send(I, JOIN, my_fence[I], my_join[I])
        :: else
        fi
        }
    /* It calls the barrier of its generation. */
    :: d_step { doing[I] == IN && my_round[I] < ROUNDS && QUIET ->
        doing[I] = ARRIVING; my_round[I]++;
        if
        :: live && my_fence[I] == NOW && incarnation[I] == member_by[I] -> called[I] = my_round[I]
        :: else
        fi;
        if
        :: welcome[I] -> send(I, ARRIVE, my_fence[I], my_round[I])
        :: else
        fi
        }
    /* Code of it that still holds the generation before this one calls that one's barrier. */
    :: d_step { late_calls < LATE_CALLS && doing[I] == IN && welcome[I] && QUIET &&
            my_fence[I] > FENCE(1, 1) && (used & BIT(OLDER(my_fence[I]))) ->
        late_calls++; doing[I] = LATE;
        send(I, ARRIVE, OLDER(my_fence[I]), ROUNDS + 1)
        }
    /* It connects. */
    :: d_step { on[I] == NOWHERE && doing[I] != FENCED && line[A] == FREE -> dial(I, A) }
    :: d_step { on[I] == NOWHERE && doing[I] != FENCED && line[A] != FREE && line[B] == FREE -> dial(I, B) }
    /* Its connection breaks: nothing comes back any more, and some time later it notices. */
    :: d_step { on[I] != NOWHERE && !deaf[I] && breaks < BREAKS && MAY_FAIL(I) ->
        breaks++; FAILS(I); deaf[I] = true
        }
    :: d_step { deaf[I] -> leave_line(I) }
    /* A new process starts under the same node id; the one before is dead, or is heard no more. */
    :: d_step { starts < STARTS && incarnation[I] < 3 && MAY_FAIL(I) ->
        starts++; FAILS(I);
        leave_line(I);
        incarnation[I]++; doing[I] = OUT; dialled[I] = 0; my_session[I] = 0; my_epoch[I] = 0;
        my_fence[I] = 0; my_round[I] = 0; my_join[I] = false
        }
    /* The server hears what comes first on a connection. */
    :: d_step { under_way[A] -> hear(A) }
    :: d_step { under_way[B] -> hear(B) }
    /* It hears that one is over: the other end closed it, or it did itself. */
    :: d_step { line[A] != FREE && (ended[A] || line[A] == CUT) && !under_way[A] -> hear_end(A) }
    :: d_step { line[B] != FREE && (ended[B] || line[B] == CUT) && !under_way[B] -> hear_end(B) }
    /* What was under way when it broke is lost. */
    :: d_step { under_way[A] && ended[A] ->
        under_way[A] = NOTHING; about[A] = 0; number[A] = 0 }
    :: d_step { under_way[B] && ended[B] ->
        under_way[B] = NOTHING; about[B] = 0; number[B] = 0 }
    /* sessions.expire: silence, or it did not come back. */
    :: d_step { session[I] && losses < LOSSES && MAY_FAIL(I) ->
        losses++; FAILS(I); session_over(I)
        }
    od
}

/* --- the server, beside what it hears ------------------------------------------------------------------- */

#if MUTANT == PHANTOM_QUORUM
#define READY(i) (parked[i] * BIT(i))
#else
#define READY(i) ((parked[i] && session_on[i] != NOWHERE) * BIT(i))
#endif
#define ALL_READY (READY(0) | READY(1) | READY(2))
#define SEATS(set) (((set) & 1) + (((set) >> 1) & 1) + (((set) >> 2) & 1))

inline form() {
    /* forming.settle, quorum.decide, generations.form */
    members = ALL_READY;
    generation++; formed++;
    live = true; rounds = 0; nobody_here();
    assert(NOW > newest && !(used & BIT(NOW)));         /* S2: never lower, never used before */
    newest = NOW; used = used | BIT(NOW);
    seats = SEATS(members);
    assert(seats >= MIN && seats <= N);                 /* S1 */
    j = 0;
    do
    :: j < N && (members & BIT(j)) ->
        assert(session_on[j] != NOWHERE);               /* S7: nobody counts who is not there */
        assert(asked[j] & BIT(session_by[j]));          /* S6: it was this process that asked */
        member_session[j] = session[j];
        member_by[j] = session_by[j]; called[j] = 0;
        j++
    :: j < N && !(members & BIT(j)) -> member_session[j] = 0; member_by[j] = 0; called[j] = 0; j++
    :: j == N -> break
    od;
    was = 0;
    do
    :: was < N && (members & BIT(was)) ->
        joined_fence[was] = NOW; joined_id[was] = parked_id[was];
        parked[was] = false; parked_id[was] = false;
        tell_joined(was, NOW, joined_id[was]);
        was++
    :: was < N && !(members & BIT(was)) -> was++
    :: was == N -> break
    od;
    was = 0
}

inline restart() {
    /* main: a new process of the server. Connections end, and who waits will ask again. */
    j = 0;
    do
    :: j < N ->
        cut(2 * j); clear(2 * j); cut(2 * j + 1); clear(2 * j + 1);
        session_on[j] = NOWHERE; parked[j] = false; parked_id[j] = false;
#if DURABLE
        /* durable/restoring: sessions, the generation and the replies on record are there again */
        if
        :: MUTANT == REPLIES_NOT_STORED -> released_fence[j] = 0; released_id[j] = 0
        :: else
        fi;
#else
        session[j] = 0; session_by[j] = 0; session_attempt[j] = 0; superseded[j] = 0; fenced[j] = 0;
        joined_fence[j] = 0; joined_id[j] = false; released_fence[j] = 0; released_id[j] = 0;
        member_session[j] = 0; member_by[j] = 0; called[j] = 0;
#endif
        j++
    :: j == N -> break
    od;
    nobody_here();
#if !DURABLE
    /* settings.Identity: a start without state has a higher epoch (S29) */
    if
    :: MUTANT != NO_EPOCH_BUMP -> epoch++
    :: else
    fi;
    generation = 0; live = false; members = 0; rounds = 0;
#endif
}

active proctype server() {
end:
    do
    :: d_step { !live && formed < GENERATIONS && SEATS(ALL_READY) >= MIN -> form() }
    :: d_step { crashes < CRASHES && MAY_FAIL(0) -> crashes++; restart() }
    od
}
