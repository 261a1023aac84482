/*
 * The recovery protocol as a model for spin, written from its description, not from the code.
 *
 * RANKS workers run RESULTS collectives.  CRASHES times one of them dies and is replaced by a new life with
 * an empty log; SUSPICIONS times somebody suspects a link without reason.  All of this at any moment, and
 * messages on different connections overtake each other.
 *
 * Rules, and that no run stops before its end:
 *   spin -a recovery.pml && cc -O2 -DSAFETY -DCOLLAPSE -DVECTORSZ=2048 -o pan pan.c && ./pan -m100000
 * No run goes on for ever (there is no progress label, so any cycle at all would be reported):
 *   spin -a recovery.pml && cc -O2 -DNP -DCOLLAPSE -DVECTORSZ=2048 -o pan pan.c && ./pan -l -m100000
 *
 * Each -DBROKEN_..., given to spin, leaves out one rule; spin must find what that does.
 */

#ifndef RANKS
#define RANKS 3
#endif
#ifndef RESULTS
#define RESULTS 2
#endif
#ifndef CRASHES
#define CRASHES 1
#endif
#ifndef SUSPICIONS
#define SUSPICIONS 0
#endif
#define REPLICAS 2
#define LIVES (CRASHES + 1)               /* of one rank */
#define EPOCHS (2 + CRASHES + SUSPICIONS) /* number 0 is none, 1 is in force at the start */
#define ROOM 4                            /* messages under way on one connection */

#define CONNECTION(r, life) ((r) * LIVES + (life))
#define HOLDS(bits, q) (((bits) >> (q)) & 1)
#define KEEPER(r, q) ((r) == (q) % RANKS || (r) == ((q) + 1) % RANKS) /* REPLICAS of them */

mtype = { Hello, Report, Suspect, Fetched, Ended, Revoke, Plan, Settled };

/* scratch of one step, 0 between steps */
byte e, p, l, q, f, i, j, who, life;
bool wanted;
mtype kind = Ended;

/* --- workers --------------------------------------------------------------------------------- */

typedef Worker {
    byte life;
    byte position;             /* what it will complete next */
    byte log;                  /* a bit for each result that it holds */
    byte epoch, revoked;       /* of the plan in force; the highest Revoke that it has heard */
    bool stopped;              /* from the report to the plan */
    byte pinned;               /* what the report listed, until its plan is settled: a bit for each */
    bool suspicious;           /* completes nothing until the next plan */
    byte lacks;                /* a bit for each result that it still fetches */
    byte stable;               /* everybody has completed what is below, and it knows */
    byte executed[RESULTS]     /* in which epoch; 0: it did not, or was served */
}
Worker w[RANKS];

/* What was sent in an epoch outlives its sender: by rank, everything below this position. */
typedef Epoch {
    byte sent[RANKS];
    byte frontier;             /* the plan */
    byte holder[RESULTS]
}
Epoch era[EPOCHS];

byte crashes, suspicions;
bool calm;                     /* no faults any more */
bool lost;                     /* the tracker has said JobLostError */

/* One connection for each life; what is on it keeps its order. */
chan up[RANKS * LIVES] = [ROOM] of { mtype, byte, byte, byte };  /* kind, epoch, position, log */
chan down[RANKS * LIVES] = [ROOM] of { mtype, byte };            /* kind, epoch */

inline let_go(r) {             /* R3: stable results stay with their keepers alone, and pinned ones */
    for (q : 0 .. RESULTS - 1) {
        if
        :: q < w[r].stable && !HOLDS(w[r].pinned, q) && !KEEPER(r, q) -> w[r].log = w[r].log & ~(1 << q)
#ifdef BROKEN_KEEPERS
        :: q < w[r].stable && !HOLDS(w[r].pinned, q) && KEEPER(r, q) -> w[r].log = w[r].log & ~(1 << q)
#endif
        :: else
        fi
    }
    q = 0
}

inline say(r, m, me, mp, ml) {
    assert(nfull(up[CONNECTION(r, w[r].life)]));
    up[CONNECTION(r, w[r].life)]!m(me, mp, ml)
}

inline hear(r) {
    if
    :: down[CONNECTION(r, w[r].life)]?Revoke(e) ->
        assert(e > w[r].revoked);
        w[r].revoked = e;
        w[r].stopped = true;
        w[r].pinned = w[r].log;
        say(r, Report, e, w[r].position, w[r].log)
    :: down[CONNECTION(r, w[r].life)]?Plan(e) ->
        if
        :: e == w[r].revoked ->       /* R1: a plan of an older epoch is dropped */
            w[r].epoch = e;
            w[r].stopped = false;
            w[r].suspicious = false;
            assert(w[r].position <= era[e].frontier); /* R2: nothing completed is lost */
            w[r].lacks = 0;
            for (q : 0 .. RESULTS - 1) {
                if
                :: q < era[e].frontier && !HOLDS(w[r].log, q) && (q >= w[r].position || KEEPER(r, q)) ->
                    w[r].lacks = w[r].lacks | (1 << q)
                :: else
                fi
            }
            q = 0;
            if
            :: w[r].lacks == 0 -> say(r, Fetched, e, 0, 0)
            :: else
            fi
        :: else
        fi
    :: down[CONNECTION(r, w[r].life)]?Settled(e) ->
        if
        :: e == w[r].revoked -> w[r].pinned = 0; let_go(r)
        :: else
        fi
    fi;
    e = 0
}

#define RUNS(r) (!w[r].stopped && !w[r].suspicious)
#define SOURCE(r, q) era[w[r].epoch].holder[q]
#define SERVES(r, q) (w[SOURCE(r, q)].epoch == w[r].epoch && !w[SOURCE(r, q)].stopped)

inline fetch(r, x) {           /* from whom the plan names, and who is in this epoch too */
    assert(HOLDS(w[SOURCE(r, x)].log, x));       /* nobody is taken to hold what it did not report */
    w[r].log = w[r].log | (1 << x);
    w[r].lacks = w[r].lacks & ~(1 << x);
    if
    :: w[r].lacks == 0 -> say(r, Fetched, w[r].epoch, 0, 0)
    :: else
    fi
}

#define REACHED(e, j, p) (era[e].sent[j] > (p))
#define ALL_SENT(e, p) (REACHED(e, 0, p) && REACHED(e, 1, p) && (RANKS < 3 || REACHED(e, RANKS - 1, p)))

inline execute(r) {
    p = w[r].position;
    for (j : 0 .. RANKS - 1) {                   /* what a living member has completed is not run again */
        assert(j == r || w[j].position <= p || w[j].executed[p] == w[r].epoch)
    }
    j = 0;
    w[r].log = w[r].log | (1 << p);
    w[r].executed[p] = w[r].epoch;
    w[r].position = p + 1;
#ifdef BROKEN_RETENTION
    w[r].stable = p + 1;
#else
    w[r].stable = p;                             /* all entered p, so all have completed what is below */
#endif
    let_go(r);
    p = 0
}

inline die(r) {
    crashes++;
    say(r, Ended, 0, 0, 0);
    do
    :: down[CONNECTION(r, w[r].life)]?_, _
    :: empty(down[CONNECTION(r, w[r].life)]) -> break
    od;
    w[r].life++;
    w[r].position = 0; w[r].log = 0; w[r].epoch = 0; w[r].revoked = 0;
    w[r].stopped = true; w[r].pinned = 0; w[r].suspicious = false;
    w[r].lacks = 0; w[r].stable = 0;
    for (q : 0 .. RESULTS - 1) { w[r].executed[q] = 0 }
    q = 0;
    say(r, Hello, 0, 0, 0)
}

proctype worker(byte r) {
end:
    do
    :: atomic { nempty(down[CONNECTION(r, w[r].life)]) -> hear(r) }
    :: atomic { RUNS(r) && HOLDS(w[r].lacks, 0) && SERVES(r, 0) -> fetch(r, 0) }
#if RESULTS > 1
    :: atomic { RUNS(r) && HOLDS(w[r].lacks, 1) && SERVES(r, 1) -> fetch(r, 1) }
#endif
#if RESULTS > 2
    :: atomic { RUNS(r) && HOLDS(w[r].lacks, 2) && SERVES(r, 2) -> fetch(r, 2) }
#endif
    :: atomic {                                  /* served from its own log: it proves nothing */
        RUNS(r) && w[r].position < RESULTS && HOLDS(w[r].log, w[r].position) -> w[r].position++ }
    :: atomic {                                  /* enters a collective: its part goes out to all */
        RUNS(r) && w[r].position < RESULTS && !HOLDS(w[r].log, w[r].position) &&
        w[r].position >= era[w[r].epoch].frontier &&
        era[w[r].epoch].sent[r] <= w[r].position -> era[w[r].epoch].sent[r] = w[r].position + 1 }
    :: atomic {                                  /* everybody's part is here */
#ifdef BROKEN_STOP
        w[r].epoch > 0 &&
#else
        RUNS(r) &&
#endif
        w[r].position < RESULTS && !HOLDS(w[r].log, w[r].position) &&
        era[w[r].epoch].sent[r] > w[r].position && ALL_SENT(w[r].epoch, w[r].position) -> execute(r) }
    :: atomic { !calm && suspicions < SUSPICIONS && RUNS(r) ->
        suspicions++; w[r].suspicious = true; say(r, Suspect, w[r].epoch, 0, 0) }
    :: atomic { !calm && crashes < CRASHES && w[r].life + 1 < LIVES && !lost -> die(r) }
    od
}

/* --- the tracker ------------------------------------------------------------------------------- */

byte epoch = 1;
bool collecting;
byte newest[RANKS];            /* the newest life that it knows of */
byte gone, reported, fetched;  /* a bit for each rank */
byte at[RANKS], has[RANKS];    /* the reports */

inline tell(to, m) {         /* what is sent to a dead life is lost with its connection */
    if
    :: !HOLDS(gone, to) && newest[to] == w[to].life ->
        assert(nfull(down[CONNECTION(to, newest[to])]));
        down[CONNECTION(to, newest[to])]!m(epoch)
    :: else
    fi
}

inline begin_epoch() {
    assert(epoch + 1 < EPOCHS);
    epoch++;
    collecting = true;
    reported = 0;
    fetched = 0;
    for (i : 0 .. RANKS - 1) { at[i] = 0; has[i] = 0; tell(i, Revoke) }
    i = 0
}

inline forget(one) { reported = reported & ~(1 << one); at[one] = 0; has[one] = 0 }

inline decide() {
    f = 0;
    for (i : 0 .. RANKS - 1) {
#ifdef BROKEN_FRONTIER
        if
        :: i == 0 || at[i] < f -> f = at[i]      /* where the last one stands */
        :: else
        fi
#else
        if
        :: at[i] > f -> f = at[i]
        :: else
        fi;
        for (q : 0 .. RESULTS - 1) {
            if
            :: HOLDS(has[i], q) && q >= f -> f = q + 1
            :: else
            fi
        }
#endif
    }
    era[epoch].frontier = f;
    for (q : 0 .. RESULTS - 1) {
        wanted = false;
        for (i : 0 .. RANKS - 1) {
            wanted = wanted || (q < f && !HOLDS(has[i], q) && (q >= at[i] || KEEPER(i, q)))
        }
        if
        :: wanted ->
#ifdef BROKEN_HOLDER
            era[epoch].holder[q] = q % RANKS      /* its first keeper must have it */
#else
            if                                   /* any that said so */
            :: HOLDS(has[0], q) -> era[epoch].holder[q] = 0
            :: HOLDS(has[1], q) -> era[epoch].holder[q] = 1
            :: RANKS > 2 && HOLDS(has[RANKS - 1], q) -> era[epoch].holder[q] = RANKS - 1
            :: !(HOLDS(has[0], q) || HOLDS(has[1], q) || HOLDS(has[RANKS - 1], q)) ->
                assert(crashes >= REPLICAS);     /* only if every keeper can have died */
                lost = true
            fi
#endif
        :: else
        fi
    }
    collecting = false;
    for (i : 0 .. RANKS - 1) {
        at[i] = 0; has[i] = 0;
        if
        :: !lost -> tell(i, Plan)
        :: else
        fi
    }
    i = 0; q = 0; f = 0; wanted = false
}

inline receive(c) {
    who = c / LIVES;
    life = c % LIVES;
    up[c]?kind(e, p, l);
    if
    :: kind == Hello ->
        newest[who] = life;                      /* a later life wins, whether the end was heard or not */
        gone = gone & ~(1 << who);
#ifndef BROKEN_ABSORB
        forget(who);
#endif
        if
        :: collecting -> tell(who, Revoke)       /* the same epoch takes it in */
        :: else -> begin_epoch()
        fi
    :: kind == Report ->
        if
#ifdef BROKEN_STALE
        :: collecting ->
#else
        :: collecting && e == epoch && life == newest[who] && !HOLDS(gone, who) ->
#endif
            reported = reported | (1 << who); at[who] = p; has[who] = l
        :: else
        fi
    :: kind == Suspect ->
        if
        :: !collecting && e == epoch && life == newest[who] -> begin_epoch()
        :: else
        fi
    :: kind == Fetched ->
        if
        :: !collecting && e == epoch && life == newest[who] ->
            fetched = fetched | (1 << who);
            if
            :: fetched == (1 << RANKS) - 1 ->
                for (i : 0 .. RANKS - 1) { tell(i, Settled) }
                i = 0
            :: else
            fi
        :: else
        fi
    :: kind == Ended ->
        if
        :: life == newest[who] ->
            gone = gone | (1 << who);
#ifndef BROKEN_ABSORB
            forget(who);
#endif
            if
            :: !collecting -> begin_epoch()
            :: else
            fi
        :: else
        fi
    fi;
    if
    :: collecting && reported == (1 << RANKS) - 1 && gone == 0 -> decide()
    :: else
    fi;
    who = 0; life = 0; e = 0; p = 0; l = 0; kind = Ended
}

proctype tracker(byte c) {     /* what comes on one connection; there is one tracker */
end:
    do
    :: atomic { !lost && nempty(up[c]) -> receive(c) }
    od
}

/* Once the faults have ended everybody gets to the end, and enough members hold each result. */
proctype judge() {
    calm = true;
    atomic {
        timeout ->
        for (j : 0 .. RANKS - 1) { assert(lost || w[j].position == RESULTS) }
        for (q : 0 .. RESULTS - 1) {
            p = 0;
            for (j : 0 .. RANKS - 1) { p = p + HOLDS(w[j].log, q) }
            assert(lost || p >= REPLICAS)
        }
        p = 0; q = 0; j = 0
    }
}

init {
    atomic {
        for (i : 0 .. RANKS - 1) { w[i].epoch = 1; w[i].revoked = 1; run worker(i) }
        for (i : 0 .. RANKS * LIVES - 1) { run tracker(i) }
        i = 0;
        run judge()
    }
}
