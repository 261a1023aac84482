/* The compiled core: exchanges between the ranks of one host through one shared segment.

   A small call. Every rank copies its header and its payload into a slot of its own, publishes it
   by raising its counter `ready`, and waits until all counters are there. Then it compares the
   headers, and reads all payloads: it folds them in rank order, or copies them one behind the
   other. Each rank does all of that for itself, so one synchronisation is enough whatever the
   number of ranks. There are two slots per rank, used in turn. Nobody acknowledges a slot: a rank
   that has seen `ready` = g of all ranks knows that all have left call g - 1, whose slots call g +
   1 reuses.

   A large reduction. The array passes in chunks, and of each chunk every rank reduces a block of
   its own. It copies the blocks of the others into its window and raises `ready`. It folds its own
   block of all windows and of its own array into a shared place and raises `folded`. Then it copies
   the blocks of the others from there. These three steps work on three chunks one behind the other,
   so that a rank waits only for one that is a whole step behind. Windows and places are used again
   after DEPTH chunks. All ranks have read a window once they have folded that chunk. They have
   copied a block once they have folded the second chunk behind it.

   Waiting. Some pauses with the GIL, which are shorter than giving it up. Then, without it, a
   bounded spin, and at last a sleep of at most 100 ms in futex(2) on the own word `bell`.

   How no wake-up is lost. A sleeper reads its bell, sets `asleep`, and looks at all counters once
   more before it sleeps. A rank that publishes raises `ready`, and then looks at `asleep` of all
   others. These four accesses are sequentially consistent, so one of the two sees the other:
   either the sleeper finds the counter, or the publisher finds it asleep and rings. A ring changes
   the bell, so a futex call that begins only then returns at once. Each ring writes a value that
   was never there before, so that plain stores do (Python has no atomic addition), and none hides
   another.

   An interrupt comes from another thread of this process. It sets `interrupted`, then rings the
   own bell. `interrupted` is set with the GIL alone, and run() keeps the GIL from its last look
   until it returns: so a call that has returned DONE had completed before the interrupt, as rule
   R2 wants.

   Arithmetic. There is none here. The core calls the inner loops of numpy's ufuncs, which are
   public in PyUFuncObject. So the bits are numpy's for every operation and dtype. Small folds write
   into memory of the core, always the same, and never into the user's array before the call is
   complete. A large reduction fills that array on its way, and a second one while the bytes are in
   the caches: the log's and the user's. It is cut at whole cache lines, so that the cuts do not
   show in the bits.

   A repeated reduction asks nobody. Python shares words and a list with the core: until when calls
   may be completed without asking, the position, what room there is. repeat() looks at them, makes
   the call, looks again, and writes position and result there. From that second look on it keeps
   the GIL. So a thread that has cleared UNTIL_NS finds all of a call there, or nothing for good
   (R2).

   The segment is shared with processes that may be broken. Nothing in it is used as a size or as
   an address.

   Built for the stable ABI: one binary for every CPython from 3.11 on. Layout: segment.py. The
   same protocol in Python: python_core.py. */

#define _GNU_SOURCE /* sched_getcpu, CPU_COUNT */
#include "core.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#define PAUSE() _mm_pause()
#else
#define PAUSE() __asm__ __volatile__("yield")
#endif

/* Results of run(); above DONE it is 1 + the rank whose header differs. */
enum { DONE = 0, INTERRUPTED = -1, RAISED = -2 /* never returned: an exception is set */ };

/* As in segment.py. */
enum {
    SMALL_BYTES = 8192,
    MAX_RANKS = 64,
    LINE_BYTES = 64,
    PAGE_BYTES = 4096,
    SLOT_BYTES = (HEAD_BYTES + SMALL_BYTES + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES,
    DEPTH = 4,
    BLOCK_BYTES = 128 * 1024,
    CHUNKS_BYTES = 32 << 20,
    CELL_BYTES = 16 * 1024,
    UNCACHED_BYTES = 2 << 20, /* results as large are written past the caches */
};

enum {
    PAUSES_WITH_GIL = 20, /* about 1 us: as long as giving the GIL up and taking it again */
    PAUSES = 128,         /* a few us; then another process may need this processor */
    YIELDS_BESIDE = 8,    /* to a peer on this processor; one of another session is not reached */
    LOOK_AT_CLOCK = 64,   /* spins between two looks */
    SPIN_NS = 50 * 1000,  /* as long as going to sleep and being woken */
    SLEEP_NS = 100 * 1000 * 1000, /* then signals are looked for, should one have come before it */
};

typedef struct { /* of one rank, in the segment */
    _Atomic uint64_t ready;  /* counts filled slots, and of large calls filled windows */
    _Atomic uint64_t folded; /* number of the newest chunk whose own block is reduced */
    _Atomic uint32_t cpu;    /* 1 + the processor on which the rank published, 0 if unknown */
    char line_of_ready[44];
    _Atomic uint32_t bell;   /* where the rank sleeps; its value says nothing */
    _Atomic uint32_t asleep; /* 1 from before its last look until it is awake */
    char line_of_bell[56];
} RankWords;
_Static_assert(sizeof(RankWords) == 2 * LINE_BYTES, "a rank has two cache lines");

/* What is shared with recovery/unasked_calls.py. */
enum { UNTIL_NS, EPOCH, BRANCH, VERSION, SEQNO, STEP, KEPT_ROOM, LOG_ROOM, CALLS, BYTES,
       NANOSECONDS };
enum { MAX_SEQNO = 1 << 22, ENTRY_BYTES = 512 }; /* as in protocol/position.py, result_log.py */

typedef struct { /* what a wait is for: all ranks' counter has this value */
    enum { READY, FOLDED } counter;
    uint64_t value;
} Goal;

typedef struct {
    PyObject_HEAD
    Py_buffer segment;
    int ranks, rank;
    int is_crowded;          /* more ranks than processors: spinning keeps a peer from running */
    int is_running;          /* a thread is in run(); written with the GIL */
    _Atomic int interrupted; /* for good; written with the GIL, read without */
    PyThreadState *thread; /* of the running call while it has given the GIL up */
    uint32_t rings;
    uint64_t call;   /* number of the newest call; both slots' turn follows from it */
    uint64_t filled; /* what `ready` of this rank is */
    uint64_t chunk;  /* number of the newest chunk of the large calls so far */
    _Atomic int awaited_counter; /* goal of the newest wait, for missing() */
    _Atomic uint64_t awaited;
    _Atomic int64_t sleeps_since; /* when the running wait went to sleep, 0 while none does */
    int64_t looked_ns;            /* when a large call looked for signals */
    char *result;  /* SMALL_BYTES, at the start of a cache line */
    char result_memory[SMALL_BYTES + LINE_BYTES];
} Core;

/* One inner loop of a ufunc: operands, length, strides, and what else belongs to the loop. */
typedef void (*InnerLoop)(char **, const Py_ssize_t *, const Py_ssize_t *, void *);

typedef struct { /* the public head of numpy's PyUFuncObject, the same in numpy 1 and 2 */
    PyObject_HEAD
    int nin, nout, nargs, identity;
    InnerLoop *functions;
    void *const *data;
    int ntypes, reserved;
    const char *name;
    const char *types; /* nargs type numbers for each loop */
} UfuncHead;

typedef struct { /* the public head of numpy's PyArrayObject, the same in numpy 1 and 2 */
    PyObject_HEAD
    char *data;
    int ndim;
    Py_ssize_t *shape, *strides;
    PyObject *base, *dtype;
    int flags;
} ArrayHead;
enum { CONTIGUOUS = 1, ALIGNED = 0x100, WRITEABLE = 0x400 }; /* numpy's flags */

typedef struct { /* calls of one kind, dtype and length */
    PyObject_HEAD
    Core *core;
    /* Of repeated calls, see core/__init__.py; `prepared` owns the objects, NULL before it. */
    PyObject *prepared, *call, *pattern, *calls, *holder, *holding;
    Py_buffer words;
    Py_ssize_t share;
    unsigned long thread_id;
    PyObject *ufunc; /* owner of the loop; NULL: payloads are gathered */
    InnerLoop loop;
    void *loop_data;
    Py_ssize_t itemsize, nbytes;
    char head[HEAD_BYTES];
} Form;

static PyTypeObject *form_type;

/* --- the segment ------------------------------------------------------------------------------ */

static RankWords *words_of(const Core *core, int rank)
{
    return (RankWords *)core->segment.buf + rank;
}

static Py_ssize_t slot_at(int ranks, int rank, uint64_t call)
{
    Py_ssize_t words = ranks * (Py_ssize_t)sizeof(RankWords);
    Py_ssize_t first = (words + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    return first + (2 * rank + (Py_ssize_t)(call % 2)) * SLOT_BYTES;
}

static char *slot_of(const Core *core, int rank, uint64_t call)
{
    return (char *)core->segment.buf + slot_at(core->ranks, rank, call);
}

static const char *payload_of(const Core *core, int rank)
{
    return slot_of(core, rank, core->call) + HEAD_BYTES;
}

/* Largest block of a chunk, in whole pages; see segment.py. */
static Py_ssize_t block_bytes(int ranks)
{
    Py_ssize_t fair = CHUNKS_BYTES / (DEPTH * (Py_ssize_t)ranks * (ranks + 1));
    fair = fair / PAGE_BYTES * PAGE_BYTES;
    return fair < PAGE_BYTES ? PAGE_BYTES : fair < BLOCK_BYTES ? fair : BLOCK_BYTES;
}

static Py_ssize_t window_at(int ranks, int rank, uint64_t chunk)
{
    Py_ssize_t first = (slot_at(ranks, ranks, 0) + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    return first + ((Py_ssize_t)rank * DEPTH + (Py_ssize_t)(chunk % DEPTH)) * ranks *
                       block_bytes(ranks);
}

static Py_ssize_t reduced_at(int ranks, int rank, uint64_t chunk)
{
    return window_at(ranks, ranks, 0) +
           ((Py_ssize_t)rank * DEPTH + (Py_ssize_t)(chunk % DEPTH)) * block_bytes(ranks);
}

static char *window_of(const Core *core, int rank, uint64_t chunk)
{
    return (char *)core->segment.buf + window_at(core->ranks, rank, chunk);
}

static char *reduced_of(const Core *core, int rank, uint64_t chunk)
{
    return (char *)core->segment.buf + reduced_at(core->ranks, rank, chunk);
}

static int has_reached(const Core *core, int rank, Goal goal)
{
    const RankWords *words = words_of(core, rank);
    return atomic_load(goal.counter == READY ? &words->ready : &words->folded) >= goal.value;
}

static int have_reached(const Core *core, Goal goal)
{
    for (int rank = 0; rank < core->ranks; rank++)
        if (!has_reached(core, rank, goal))
            return 0;
    return 1;
}

/* --- bells ------------------------------------------------------------------------------------ */

static long futex(_Atomic uint32_t *word, int operation, uint32_t value,
                  const struct timespec *limit)
{
    return syscall(SYS_futex, word, operation, value, limit, NULL, 0);
}

static void ring(Core *core, int rank)
{
    RankWords *words = words_of(core, rank);
    atomic_store(&words->bell, ++core->rings * MAX_RANKS + (uint32_t)core->rank);
    futex(&words->bell, FUTEX_WAKE, 1, NULL);
}

static uint32_t this_cpu(void)
{
    return (uint32_t)(1 + sched_getcpu()); /* -1 where the system does not say */
}

static void publish(Core *core, Goal reached)
{
    RankWords *own = words_of(core, core->rank);
    atomic_store_explicit(&own->cpu, this_cpu(), memory_order_relaxed);
    atomic_store(reached.counter == READY ? &own->ready : &own->folded, reached.value);
    for (int rank = 0; rank < core->ranks; rank++)
        if (rank != core->rank && atomic_load(&words_of(core, rank)->asleep))
            ring(core, rank);
}

/* --- waiting; what follows runs without the GIL unless it says otherwise ---------------------- */

static int is_over(const Core *core, Goal goal)
{
    return atomic_load(&core->interrupted) || have_reached(core, goal);
}

int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* True if a rank that is waited for was last on this processor, and so may be kept from running. */
static int is_beside_a_late_rank(const Core *core, Goal goal)
{
    uint32_t cpu = this_cpu();
    for (int rank = 0; cpu && rank < core->ranks; rank++)
        if (!has_reached(core, rank, goal) &&
            atomic_load_explicit(&words_of(core, rank)->cpu, memory_order_relaxed) == cpu)
            return 1;
    return 0;
}

/* Look for a bounded time; true if the wait is over. */
static int spin(const Core *core, Goal goal)
{
    int is_beside = is_beside_a_late_rank(core, goal);
    int64_t until = now_ns() + SPIN_NS;
    for (int spins = 1;; spins++) {
        if (core->is_crowded || is_beside || spins > PAUSES)
            sched_yield();
        else
            PAUSE();
        if (is_over(core, goal))
            return 1;
        if (is_beside && spins >= YIELDS_BESIDE)
            return 0;
        if (spins % LOOK_AT_CLOCK == 0 && now_ns() > until)
            return 0;
    }
}

/* Sleep until the wait is over: true; or until a signal or SLEEP_NS: false. */
static int sleep_until_over(const Core *core, Goal goal)
{
    const struct timespec limit = {0, SLEEP_NS};
    RankWords *own = words_of(core, core->rank);
    while (!is_over(core, goal)) {
        long got = 0;
        uint32_t bell = atomic_load(&own->bell);
        atomic_store(&own->asleep, 1);
        if (!is_over(core, goal))
            got = futex(&own->bell, FUTEX_WAIT, bell, &limit);
        atomic_store(&own->asleep, 0);
        if (got < 0 && errno != EAGAIN) /* EAGAIN: the bell was rung before the sleep */
            return is_over(core, goal);
    }
    return 1;
}

/* Run the handlers of signals that have come; RAISED if one does, else DONE. */
static int look_for_signals(Core *core)
{
    PyEval_RestoreThread(core->thread);
    int has_raised = PyErr_CheckSignals();
    core->thread = PyEval_SaveThread();
    return has_raised ? RAISED : DONE;
}

/* DONE, INTERRUPTED, or RAISED by a signal's handler. */
static int wait_for_all(Core *core, Goal goal)
{
    int status = DONE;
    if (have_reached(core, goal))
        return DONE;
    atomic_store_explicit(&core->awaited_counter, goal.counter, memory_order_relaxed);
    atomic_store_explicit(&core->awaited, goal.value, memory_order_relaxed);
    if (!spin(core, goal)) {
        atomic_store(&core->sleeps_since, now_ns());
        while (status == DONE && !sleep_until_over(core, goal))
            status = look_for_signals(core);
        atomic_store(&core->sleeps_since, 0);
    }
    return status == DONE && atomic_load(&core->interrupted) ? INTERRUPTED : status;
}

/* The same with the GIL, which it gives up if that takes longer than to do so. */
static int wait_with_gil(Core *core, Goal goal)
{
    for (int pauses = 0; !core->is_crowded && pauses < PAUSES_WITH_GIL; pauses++) {
        if (have_reached(core, goal))
            return DONE; /* the GIL was kept, so nobody can have interrupted since run() looked */
        PAUSE();
    }
    core->thread = PyEval_SaveThread();
    int status = wait_for_all(core, goal);
    PyEval_RestoreThread(core->thread);
    return status == DONE && atomic_load(&core->interrupted) ? INTERRUPTED : status;
}

/* --- what is done with the payloads ----------------------------------------------------------- */

static int compare_headers(const Form *form)
{
    const Core *core = form->core;
    for (int rank = 0; rank < core->ranks; rank++)
        if (memcmp(slot_of(core, rank, core->call), form->head, COMPARED_BYTES))
            return 1 + rank;
    return DONE;
}

/* One element is never combined in place: another path of numpy's loops prefers the other of two
   NaN, and python_core.py has no way to choose it. */
static void combine(const Form *form, const char *left, const char *right, char *to,
                    Py_ssize_t nbytes)
{
    _Alignas(16) char apart[16]; /* the largest item */
    Py_ssize_t size = form->itemsize, count = nbytes / size;
    Py_ssize_t strides[3] = {size, size, size};
    char *operands[3] = {(char *)left, (char *)right, count == 1 ? apart : to};
    form->loop(operands, &count, strides, form->loop_data);
    if (count == 1)
        memcpy(to, apart, (size_t)size);
}

/* The left fold of all ranks' operands in rank order. */
static void fold_into(const Form *form, const char *const *operands, char *to, Py_ssize_t nbytes)
{
    const char *left = operands[0];
    for (int rank = 1; rank < form->core->ranks; rank++) {
        combine(form, left, operands[rank], to, nbytes);
        left = to;
    }
    if (left != to)
        memmove(to, left, (size_t)nbytes);
}

static void fold(const Form *form, char *out)
{
    const Core *core = form->core;
    const char *operands[MAX_RANKS];
    for (int rank = 0; rank < core->ranks; rank++)
        operands[rank] = payload_of(core, rank);
    fold_into(form, operands, core->result, form->nbytes);
    memmove(out, core->result, (size_t)form->nbytes);
}

static void gather(const Form *form, char *out)
{
    for (int rank = 0; rank < form->core->ranks; rank++)
        memmove(out + rank * form->nbytes, payload_of(form->core, rank), (size_t)form->nbytes);
}

/* --- a call ----------------------------------------------------------------------------------- */

/* Begin a call: header and payload of a small one lie in the slot. */
static void fill_slot(Form *form, const char *x)
{
    Core *core = form->core;
    core->call++;
    char *slot = slot_of(core, core->rank, core->call);
    memcpy(slot, form->head, HEAD_BYTES);
    if (x != NULL)
        memmove(slot + HEAD_BYTES, x, (size_t)form->nbytes);
}

static int exchange_small(Form *form, const char *x, char *out)
{
    Core *core = form->core;
    fill_slot(form, form->nbytes ? x : NULL);
    Goal filled = {READY, ++core->filled};
    publish(core, filled);
    int status = wait_with_gil(core, filled);
    if (status == DONE)
        status = compare_headers(form);
    if (status == DONE && form->nbytes)
        (form->ufunc ? fold : gather)(form, out);
    return status;
}

/* One chunk of a large reduction, as this rank sees it. */
typedef struct {
    const char *x; /* its part of the input */
    char *out, *also; /* and of the result; a second one, or NULL */
    Py_ssize_t nbytes, lo, hi; /* of all of it; where the own block lies */
    uint64_t number, filled; /* of the chunk, and what `ready` is once its window is filled */
} Chunk;

/* Where the block of a rank begins in a chunk: at a whole cache line. Bytes behind the last whole
   one go with the block before, since numpy may keep the other one of two NaN where they are
   alone. */
static Py_ssize_t cut(Py_ssize_t nbytes, int ranks, int rank)
{
    Py_ssize_t lines = nbytes / LINE_BYTES, block = (lines + ranks - 1) / ranks;
    return rank && block * rank >= lines ? nbytes : block * rank * LINE_BYTES;
}

static Py_ssize_t chunk_bytes(int ranks)
{
    return ranks * block_bytes(ranks) - LINE_BYTES;
}

static Py_ssize_t count_chunks(Py_ssize_t nbytes, int ranks)
{
    Py_ssize_t chunks = nbytes / chunk_bytes(ranks);
    return chunks + (nbytes % chunk_bytes(ranks) >= LINE_BYTES || chunks == 0);
}

static Chunk chunk_of(const Form *form, const char *x, char *out, char *also, Py_ssize_t index)
{
    const Core *core = form->core;
    Py_ssize_t at = index * chunk_bytes(core->ranks), nbytes = chunk_bytes(core->ranks);
    if (index + 1 == count_chunks(form->nbytes, core->ranks))
        nbytes = form->nbytes - at;
    Chunk chunk = {x + at, out + at, also ? also + at : NULL, nbytes, 0, 0, 0, 0};
    chunk.lo = cut(nbytes, core->ranks, core->rank);
    chunk.hi = cut(nbytes, core->ranks, core->rank + 1);
    chunk.number = core->chunk + 1 + (uint64_t)index;
    chunk.filled = core->filled + 1 + (uint64_t)index;
    return chunk;
}

/* As memcpy, whose one instruction for all of it (`rep movsb`) is slow on some processors. A copy
   past the caches leaves them to other data, and does not read what it overwrites. */
static void copy(char *to, const char *from, Py_ssize_t nbytes, int is_past_caches)
{
#if defined(__x86_64__)
    Py_ssize_t head = (Py_ssize_t)(-(uintptr_t)to % LINE_BYTES);
    head = head < nbytes ? head : nbytes;
    memcpy(to, from, (size_t)head);
    for (to += head, from += head, nbytes -= head; nbytes >= LINE_BYTES; nbytes -= LINE_BYTES) {
        const __m128i *given = (const __m128i *)from;
        __m128i *line = (__m128i *)to;
        __m128i a = _mm_loadu_si128(given), b = _mm_loadu_si128(given + 1);
        __m128i c = _mm_loadu_si128(given + 2), d = _mm_loadu_si128(given + 3);
        if (is_past_caches) {
            _mm_stream_si128(line, a), _mm_stream_si128(line + 1, b);
            _mm_stream_si128(line + 2, c), _mm_stream_si128(line + 3, d);
        } else {
            _mm_store_si128(line, a), _mm_store_si128(line + 1, b);
            _mm_store_si128(line + 2, c), _mm_store_si128(line + 3, d);
        }
        to += LINE_BYTES, from += LINE_BYTES;
    }
#else
    (void)is_past_caches;
#endif
    memcpy(to, from, (size_t)nbytes);
}

/* Give the caller a part of the result. */
static void put(const Form *form, const Chunk *chunk, Py_ssize_t at, const char *from,
                Py_ssize_t nbytes)
{
    int is_past_caches = form->nbytes >= UNCACHED_BYTES;
    copy(chunk->out + at, from, nbytes, is_past_caches);
    if (chunk->also)
        copy(chunk->also + at, from, nbytes, is_past_caches);
}

static int wait_folded(Core *core, uint64_t number, int before)
{
    Goal goal = {FOLDED, number - (uint64_t)before};
    return number > (uint64_t)before ? wait_for_all(core, goal) : DONE;
}

/* Give the others their blocks. */
static int fill_window(const Form *form, const Chunk *chunk)
{
    Core *core = form->core;
    int status = wait_folded(core, chunk->number, DEPTH); /* all have read what was there */
    if (status != DONE)
        return status;
    char *window = window_of(core, core->rank, chunk->number);
    copy(window, chunk->x, chunk->lo, 0);
    copy(window + chunk->hi, chunk->x + chunk->hi, chunk->nbytes - chunk->hi, 0);
    publish(core, (Goal){READY, chunk->filled});
    return DONE;
}

/* Reduce the own block. */
static int reduce_block(const Form *form, const Chunk *chunk, int is_first)
{
    Core *core = form->core;
    int status = wait_for_all(core, (Goal){READY, chunk->filled});
    if (status == DONE && is_first)
        status = compare_headers(form);
    if (status == DONE)
        status = wait_folded(core, chunk->number, DEPTH - 2); /* all have copied what was there */
    if (status != DONE)
        return status;
    char *to = reduced_of(core, core->rank, chunk->number);
    Py_ssize_t block = chunk->hi - chunk->lo, nbytes;
    for (Py_ssize_t at = 0; at < block; at += nbytes) {
        nbytes = block - at < CELL_BYTES + LINE_BYTES ? block - at : CELL_BYTES;
        const char *operands[MAX_RANKS];
        for (int rank = 0; rank < core->ranks; rank++) {
            int is_own = rank == core->rank;
            const char *given = is_own ? chunk->x : window_of(core, rank, chunk->number);
            operands[rank] = given + chunk->lo + at;
        }
        fold_into(form, operands, to + at, nbytes);
        put(form, chunk, chunk->lo + at, to + at, nbytes);
    }
    publish(core, (Goal){FOLDED, chunk->number});
    return DONE;
}

/* Take the blocks that the others have reduced. */
static int copy_out(const Form *form, const Chunk *chunk)
{
    Core *core = form->core;
    int status = wait_folded(core, chunk->number, 0);
    for (int rank = 0; status == DONE && rank < core->ranks; rank++) {
        Py_ssize_t lo = cut(chunk->nbytes, core->ranks, rank);
        Py_ssize_t hi = cut(chunk->nbytes, core->ranks, rank + 1);
        if (rank != core->rank)
            put(form, chunk, lo, reduced_of(core, rank, chunk->number), hi - lo);
    }
    return status;
}

/* Between two chunks: INTERRUPTED, RAISED by a signal's handler, or DONE. */
static int look_around(Core *core)
{
    if (atomic_load(&core->interrupted))
        return INTERRUPTED;
    if (now_ns() < core->looked_ns + SLEEP_NS)
        return DONE;
    core->looked_ns = now_ns();
    return look_for_signals(core);
}

static int reduce_large(Form *form, const char *x, char *out, char *also)
{
    Core *core = form->core;
    Py_ssize_t chunks = count_chunks(form->nbytes, core->ranks);
    Chunk pipeline[3] = {{0}}; /* copied in, reduced, copied out */
    int status = DONE;
    fill_slot(form, NULL);
    core->thread = PyEval_SaveThread();
    for (Py_ssize_t k = 0; status == DONE && k < chunks + 2; k++) {
        status = look_around(core);
        if (status != DONE)
            break;
        pipeline[2] = pipeline[1];
        pipeline[1] = pipeline[0];
        if (k < chunks) {
            pipeline[0] = chunk_of(form, x, out, also, k);
            status = fill_window(form, &pipeline[0]);
        }
        if (status == DONE && 1 <= k && k <= chunks)
            status = reduce_block(form, &pipeline[1], k == 1);
        if (status == DONE && 2 <= k)
            status = copy_out(form, &pipeline[2]);
    }
    atomic_thread_fence(memory_order_seq_cst); /* behind all copies past the caches */
    PyEval_RestoreThread(core->thread);
    core->filled += (uint64_t)chunks;
    core->chunk += (uint64_t)chunks;
    return status == DONE && atomic_load(&core->interrupted) ? INTERRUPTED : status;
}

static int exchange(Form *form, const char *x, char *out, char *also)
{
    Core *core = form->core;
    if (atomic_load(&core->interrupted))
        return INTERRUPTED;
    int status = form->nbytes <= SMALL_BYTES ? exchange_small(form, x, out)
                                             : reduce_large(form, x, out, also);
    if (status == RAISED)
        atomic_store(&core->interrupted, 1); /* this rank cannot take part in the call again */
    return status;
}

/* Write one field of the prefix; -1 and ValueError or TypeError if it does not fit. */
static int put_field(char *at, PyObject *given, long long least, long long most, const char *name)
{
    int overflow;
    long long value = PyLong_AsLongLongAndOverflow(given, &overflow);
    if (value == -1 && !overflow && PyErr_Occurred())
        return -1;
    if (overflow || value < least || value > most) {
        PyErr_Format(PyExc_ValueError, "%s is %S, must be %lld to %lld", name, given, least, most);
        return -1;
    }
    uint32_t word = (uint32_t)value;
    memcpy(at, &word, sizeof word);
    return 0;
}

/* Epoch, branch, version, seqno and step, one behind the other. */
static int put_fields(Form *form, PyObject *const *given)
{
    static const char *const names[5] = {"epoch", "branch", "version", "seqno", "step"};
    for (int k = 0; k < 5; k++) {
        int is_version = k == 2;
        long long least = is_version ? INT32_MIN : 0, most = is_version ? INT32_MAX : UINT32_MAX;
        if (put_field(form->head + EPOCH_AT + 4 * k, given[k], least, most, names[k]))
            return -1;
    }
    return 0;
}

/* The bytes of an argument; None will do where there are none. */
static int take_buffer(PyObject *given, Py_ssize_t nbytes, int flags, const char *name,
                       Py_buffer *to)
{
    if (given == Py_None && nbytes == 0)
        return 0;
    if (PyObject_GetBuffer(given, to, flags))
        return -1;
    if (to->len == nbytes)
        return 0;
    PyErr_Format(PyExc_ValueError, "%s has %zd bytes, must have %zd", name, to->len, nbytes);
    return -1;
}

static int is_inside(const Py_buffer *segment, const Py_buffer *out)
{
    uintptr_t begin = (uintptr_t)segment->buf, end = begin + (uintptr_t)segment->len;
    uintptr_t other = (uintptr_t)out->buf;
    return out->len && other < end && begin < other + (uintptr_t)out->len;
}

static PyObject *run_checked(Form *form, PyObject *const *args, PyObject *second)
{
    Core *core = form->core;
    Py_buffer x = {0}, out = {0}, also = {0};
    Py_ssize_t out_bytes = form->ufunc ? form->nbytes : form->nbytes * core->ranks;
    PyObject *result = NULL;
    if (put_fields(form, args + 2) ||
        take_buffer(args[0], form->nbytes, PyBUF_SIMPLE, "x", &x) ||
        take_buffer(args[1], out_bytes, PyBUF_WRITABLE, "out", &out) ||
        (second != Py_None && take_buffer(second, out_bytes, PyBUF_WRITABLE, "also", &also)))
        goto release;
    if (is_inside(&core->segment, &out) || is_inside(&core->segment, &also)) {
        PyErr_SetString(PyExc_ValueError, "out lies in the segment");
        goto release;
    }
    int status = exchange(form, x.buf, out.buf, also.buf);
    if (status == DONE && also.len && form->nbytes <= SMALL_BYTES)
        memmove(also.buf, out.buf, (size_t)also.len);
    if (status != RAISED)
        result = PyLong_FromLong(status);
release:
    PyBuffer_Release(&x); /* nothing to do if it was not taken */
    PyBuffer_Release(&out);
    PyBuffer_Release(&also);
    return result;
}

static PyObject *form_run(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    Form *form = (Form *)self;
    Core *core = form->core;
    if (nargs != 7 && nargs != 8)
        return PyErr_Format(PyExc_TypeError, "run() takes 7 or 8 arguments (%zd given)", nargs);
    if (core->is_running) { /* by another thread, or below a signal's handler */
        PyErr_SetString(PyExc_RuntimeError, "a call of this core is running");
        return NULL;
    }
    core->is_running = 1;
    PyObject *status = run_checked(form, args, nargs == 8 ? args[7] : Py_None);
    core->is_running = 0;
    return status;
}

/* --- making a form ---------------------------------------------------------------------------- */

/* 1 if `object` is an instance of numpy's class `name`; -1 with an exception. */
static int is_of_numpy(PyObject *object, const char *name)
{
    PyObject *numpy = PyImport_ImportModule("numpy");
    PyObject *type = numpy ? PyObject_GetAttrString(numpy, name) : NULL;
    int is = type ? PyObject_IsInstance(object, type) : -1;
    Py_XDECREF(type);
    Py_XDECREF(numpy);
    return is;
}

static long long_attribute(PyObject *object, const char *name)
{
    PyObject *value = PyObject_GetAttrString(object, name);
    long number = value ? PyLong_AsLong(value) : -1;
    Py_XDECREF(value);
    return number;
}

/* Bools, integers and floats without padding; no objects, which are addresses of one process. */
static int is_carried(long type_number)
{
    enum { CLONGLONG = 10, FLOAT = 11, DOUBLE = 12, CFLOAT = 14, CDOUBLE = 15, HALF = 23 };
    return (type_number >= 0 && type_number <= CLONGLONG) || type_number == FLOAT ||
           type_number == DOUBLE || type_number == CFLOAT || type_number == CDOUBLE ||
           type_number == HALF;
}

/* Find the loop of the ufunc whose operands and result all have the dtype. */
static int find_loop(Form *form, PyObject *ufunc, PyObject *dtype)
{
    int is_ufunc = is_of_numpy(ufunc, "ufunc"), is_dtype = is_of_numpy(dtype, "dtype");
    if (is_ufunc < 0 || is_dtype < 0)
        return -1;
    if (!is_ufunc || !is_dtype) {
        PyErr_SetString(PyExc_TypeError, "form() takes a numpy.ufunc and a numpy.dtype");
        return -1;
    }
    const UfuncHead *head = (const UfuncHead *)ufunc;
    long type = long_attribute(dtype, "num"), is_native = long_attribute(dtype, "isnative");
    form->itemsize = long_attribute(dtype, "itemsize");
    if (PyErr_Occurred())
        return -1;
    for (int k = 0; head->nin == 2 && head->nout == 1 && is_native && k < head->ntypes; k++) {
        const char *types = head->types + 3 * k;
        if (is_carried(type) && types[0] == type && types[1] == type && types[2] == type) {
            form->loop = head->functions[k];
            form->loop_data = head->data ? head->data[k] : NULL;
            form->ufunc = Py_NewRef(ufunc);
            return 0;
        }
    }
    PyErr_Format(PyExc_TypeError, "%R has no inner loop for %R", ufunc, dtype);
    return -1;
}

static void write_head(Form *form, const char *suffix)
{
    uint16_t magic = FRAME_MAGIC;
    uint64_t length = (uint64_t)form->nbytes;
    memcpy(form->head, &magic, sizeof magic);
    form->head[KIND_AT] = DATA_FRAME;
    memcpy(form->head + LENGTH_AT, &length, sizeof length);
    memcpy(form->head + PREFIX_BYTES, suffix, SUFFIX_BYTES);
}

static PyObject *core_form(PyObject *self, PyObject *args)
{
    const char *suffix;
    Py_ssize_t suffix_bytes, nbytes;
    PyObject *ufunc, *dtype;
    if (!PyArg_ParseTuple(args, "y#OOn:form", &suffix, &suffix_bytes, &ufunc, &dtype, &nbytes))
        return NULL;
    if (suffix_bytes != SUFFIX_BYTES || nbytes < 0 || (nbytes > SMALL_BYTES && ufunc == Py_None))
        return PyErr_Format(PyExc_ValueError, "suffix of %zd and payload of %zd bytes, must be %d "
                            "and at most %d", suffix_bytes, nbytes, SUFFIX_BYTES, SMALL_BYTES);
    Form *form = (Form *)PyType_GenericAlloc(form_type, 0); /* zeros */
    if (form == NULL)
        return NULL;
    form->core = (Core *)Py_NewRef(self);
    form->nbytes = nbytes;
    write_head(form, suffix);
    int failed = ufunc != Py_None && find_loop(form, ufunc, dtype);
    if (!failed && form->ufunc && nbytes % form->itemsize) {
        PyErr_Format(PyExc_ValueError, "%zd bytes are no array of %R", nbytes, dtype);
        failed = 1;
    }
    if (failed)
        Py_CLEAR(form);
    return (PyObject *)form;
}

static void form_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Form *form = (Form *)self;
    Py_XDECREF((PyObject *)form->core);
    Py_XDECREF(form->ufunc);
    Py_XDECREF(form->prepared);
    PyBuffer_Release(&form->words);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/* --- repeated reductions ---------------------------------------------------------------------- */

static int is_like(PyObject *given, const Form *form, int flags)
{
    const ArrayHead *array = (const ArrayHead *)given, *like = (const ArrayHead *)form->pattern;
    int is = Py_TYPE(given) == Py_TYPE(form->pattern) && array->dtype == like->dtype &&
             array->ndim == like->ndim && (array->flags & flags) == flags;
    for (int k = 0; is && k < like->ndim; k++)
        is = array->shape[k] == like->shape[k];
    return is;
}

/* True if nothing is in the way; with the GIL nobody can come inside before the holder is set. */
static int may_repeat(const Form *form, PyObject *x, PyObject *out)
{
    const int64_t *words = form->words.buf;
    return words && is_like(x, form, CONTIGUOUS | ALIGNED) &&
           (out == Py_None || is_like(out, form, CONTIGUOUS | WRITEABLE)) && words[UNTIL_NS] &&
           words[SEQNO] < MAX_SEQNO && words[KEPT_ROOM] >= form->nbytes + ENTRY_BYTES &&
           words[LOG_ROOM] >= form->share && !form->core->is_running &&
           PyThread_get_thread_ident() == form->thread_id && PyDict_Size(form->holder) == 0;
}

static PyObject *repeat_inside(Form *form, PyObject *x, PyObject *out)
{
    Core *core = form->core;
    int64_t *words = form->words.buf, began = now_ns(), epoch = words[EPOCH];
    for (int k = 0; k < 5; k++) {
        uint32_t field = (uint32_t)words[EPOCH + k];
        memcpy(form->head + EPOCH_AT + 4 * k, &field, sizeof field);
    }
    if (PyList_Append(form->calls, form->call)) /* it is in flight */
        return NULL;
    int status = exchange(form, ((ArrayHead *)x)->data, core->result, NULL);
    PyObject *logged = NULL;
    if (status == DONE)
        logged = PyBytes_FromStringAndSize(core->result, form->nbytes);
    int64_t now = now_ns();
    if (logged && now <= words[UNTIL_NS] && !PyList_Append(form->calls, logged)) {
        words[SEQNO]++;
        words[KEPT_ROOM] -= form->nbytes + ENTRY_BYTES;
        words[LOG_ROOM] -= form->share;
        words[CALLS]++;
        words[BYTES] += form->nbytes;
        words[NANOSECONDS] += now - began;
        if (out == Py_None)
            return logged;
        memcpy(((ArrayHead *)out)->data, core->result, (size_t)form->nbytes);
        Py_DECREF(logged);
        return Py_NewRef(out);
    }
    Py_ssize_t calls = PyList_Size(form->calls); /* another thread may have taken those before */
    PyList_SetSlice(form->calls, calls - 1, calls, NULL);
    if (PyErr_Occurred()) {
        atomic_store(&core->interrupted, 1); /* the others may have completed it */
        Py_CLEAR(logged);
        return NULL;
    }
    if (status == DONE) {
        words[NANOSECONDS] += now - began; /* who completes it counts the rest */
        return Py_BuildValue("(NL)", logged, (long long)epoch);
    }
    return status == INTERRUPTED ? Py_NewRef(Py_None) : PyLong_FromLong(status);
}

static PyObject *form_repeat(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    Form *form = (Form *)self;
    if (nargs != 2)
        return PyErr_Format(PyExc_TypeError, "repeat() takes 2 arguments (%zd given)", nargs);
    if (!may_repeat(form, args[0], args[1]))
        return Py_NewRef(Py_None);
    PyObject *key = PyLong_FromLong(0), *result = NULL;
    if (!PyDict_SetItem(form->holder, key, form->holding)) {
        form->core->is_running = 1;
        result = repeat_inside(form, args[0], args[1]);
        form->core->is_running = 0;
        PyDict_DelItem(form->holder, key);
    }
    Py_DECREF(key);
    return result;
}

static PyObject *form_prepare(PyObject *self, PyObject *args)
{
    Form *form = (Form *)self;
    if (form->prepared || !form->ufunc || !form->nbytes || form->nbytes > SMALL_BYTES)
        return PyErr_Format(PyExc_ValueError, "these calls cannot be repeated, or can already");
    if (!PyArg_ParseTuple(args, "OOnw*O!O!O:prepare", &form->call, &form->pattern, &form->share,
                          &form->words, &PyList_Type, &form->calls, &PyDict_Type, &form->holder,
                          &form->holding))
        return NULL;
    form->thread_id = PyThread_get_thread_ident();
    form->prepared = Py_NewRef(args);
    return Py_NewRef(Py_True);
}

/* --- the core's other methods ----------------------------------------------------------------- */

static int count_processors(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) ? MAX_RANKS : CPU_COUNT(&set);
}

static PyObject *core_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    PyObject *segment;
    int ranks, rank;
    if (keywords && PyDict_Size(keywords))
        return PyErr_Format(PyExc_TypeError, "arguments have no names");
    if (!PyArg_ParseTuple(args, "Oii:CompiledCore", &segment, &ranks, &rank))
        return NULL;
    if (ranks < 1 || ranks > MAX_RANKS || rank < 0 || rank >= ranks)
        return PyErr_Format(PyExc_ValueError, "rank %d of %d", rank, ranks);
    Core *core = (Core *)PyType_GenericAlloc(type, 0);
    if (core == NULL)
        return NULL;
    core->ranks = ranks;
    core->rank = rank;
    core->is_crowded = ranks > count_processors();
    core->result = core->result_memory + LINE_BYTES - (uintptr_t)core->result_memory % LINE_BYTES;
    Py_ssize_t needed = reduced_at(ranks, ranks, 0);
    if (PyObject_GetBuffer(segment, &core->segment, PyBUF_WRITABLE)) {
        Py_CLEAR(core);
    } else if (core->segment.len < needed || (uintptr_t)core->segment.buf % LINE_BYTES) {
        PyErr_Format(PyExc_ValueError,
                     "segment of %zd bytes at %p, must have %zd and begin with a cache line",
                     core->segment.len, core->segment.buf, needed);
        Py_CLEAR(core);
    }
    return (PyObject *)core;
}

static void core_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyBuffer_Release(&((Core *)self)->segment);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyObject *core_interrupt(PyObject *self, PyObject *unused)
{
    (void)unused;
    Core *core = (Core *)self;
    atomic_store(&core->interrupted, 1);
    ring(core, core->rank);
    Py_RETURN_NONE;
}

static PyObject *core_missing(PyObject *self, PyObject *unused)
{
    (void)unused;
    const Core *core = (const Core *)self;
    Goal goal = {atomic_load(&core->awaited_counter), atomic_load(&core->awaited)};
    PyObject *found = PyList_New(0);
    for (int rank = 0; found && core->is_running && rank < core->ranks; rank++) {
        if (has_reached(core, rank, goal))
            continue;
        PyObject *number = PyLong_FromLong(rank);
        if (number == NULL || PyList_Append(found, number))
            Py_CLEAR(found);
        Py_XDECREF(number);
    }
    PyObject *missing = found ? PyList_AsTuple(found) : NULL;
    Py_XDECREF(found);
    return missing;
}

static PyObject *core_sleeps_since(PyObject *self, PyObject *unused)
{
    (void)unused;
    return PyFloat_FromDouble((double)atomic_load(&((Core *)self)->sleeps_since) * 1e-9);
}

static PyObject *core_header(PyObject *self, PyObject *given)
{
    const Core *core = (const Core *)self;
    long rank = PyLong_AsLong(given);
    if (rank == -1 && PyErr_Occurred())
        return NULL;
    if (rank < 0 || rank >= core->ranks)
        return PyErr_Format(PyExc_ValueError, "rank %ld of %d", rank, core->ranks);
    return PyBytes_FromStringAndSize(slot_of(core, (int)rank, core->call), HEAD_BYTES);
}

/* --- the module ------------------------------------------------------------------------------- */

static PyMethodDef core_methods[] = {
    {"form", core_form, METH_VARARGS, "The form of calls: suffix, ufunc or None, dtype, nbytes."},
    {"interrupt", core_interrupt, METH_NOARGS, "End the running call and all later ones."},
    {"missing", core_missing, METH_NOARGS, "Ranks that the running call waits for."},
    {"sleeps_since", core_sleeps_since, METH_NOARGS,
     "When the running call went to sleep, on the monotonic clock; 0 if it does not."},
    {"header", core_header, METH_O, "The 104 bytes in a rank's slot of the newest call."},
    {0},
};

static PyMethodDef form_methods[] = {
    {"run", (PyCFunction)(void (*)(void))form_run, METH_FASTCALL,
     "Make a call: x, out, epoch, branch, version, seqno, step, also; returns its status."},
    {"prepare", form_prepare, METH_VARARGS, 
     "Repeat calls: call, pattern, share, words, calls, holder, holding."},
    {"repeat", (PyCFunction)(void (*)(void))form_repeat, METH_FASTCALL,
     "Make a call as it was prepared, and complete it: x, out."},
    {0},
};

static PyType_Slot core_slots[] = {
    {Py_tp_new, core_new},
    {Py_tp_dealloc, core_dealloc},
    {Py_tp_methods, core_methods},
    {0},
};

static PyType_Slot form_slots[] = {
    {Py_tp_dealloc, form_dealloc},
    {Py_tp_methods, form_methods},
    {0},
};

static PyType_Spec core_spec = {
    .name = "ftcomm.core._core.CompiledCore",
    .basicsize = sizeof(Core),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = core_slots,
};

static PyType_Spec form_spec = {
    .name = "ftcomm.core._core.CompiledForm",
    .basicsize = sizeof(Form),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = form_slots,
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "ftcomm.core._core",
    .m_size = -1,
    .m_methods = socket_functions,
};

#ifndef FTCOMM_SOURCE
#define FTCOMM_SOURCE "" /* the hook that builds the core gives the digest of this file */
#endif

PyMODINIT_FUNC PyInit__core(void)
{
    PyObject *module = PyModule_Create(&definition);
    PyObject *core = PyType_FromSpec(&core_spec);
    form_type = (PyTypeObject *)PyType_FromSpec(&form_spec); /* for as long as the process runs */
    if (!module || !core || !form_type || PyModule_AddObjectRef(module, "CompiledCore", core) ||
        PyModule_AddStringConstant(module, "SOURCE", FTCOMM_SOURCE))
        Py_CLEAR(module);
    Py_XDECREF(core);
    return module;
}
