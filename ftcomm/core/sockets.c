/* Frames over sockets: many at once, to and from ranks with which no memory is shared.

   A call sends and receives what the sockets take and have, all frames by turns, until all are
   whole: then it returns None. If nothing has moved for some time it returns as well, and the
   caller sleeps and calls again (execution/frames.py); the frames remember how far they are. So
   signals, interrupts and the report of whom this rank waits for are the caller's.

   Frames of one socket and direction follow each other. So the stream between two ranks is the one
   of steps made one after the other, as the executor makes them in Python, and a group may have
   ranks of both kinds. A header is compared as soon as it is there. */

#define _GNU_SOURCE
#include "core.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

enum {
    PIECE_BYTES = 512 * 1024,    /* copied by one system call, so that others get their turn */
    SPIN_LIMIT_NS = 2000 * 1000, /* as in transport/waiting.py */
    BUSY_NS = 100 * 1000 * 1000, /* then Python looks for signals, however much moves */
    LOOK_AT_CLOCK = 4,
    BUFFERS = 3, /* what is sent, the result, and rows of what others have sent */
    IDLE = -1,
    WHOLE = -2,
    OTHER_HEADER = -1, /* in the place of an errno; 0: the peer has closed */
};

typedef struct { /* as FRAME in execution/frames.py */
    int32_t fd, after; /* the frame before it on the same way, or -1 */
    int32_t buffer, receives;
    uint32_t tag; /* added to the header's step */
    int32_t rank; /* the caller's */
    int64_t at, nbytes, moved; /* payload in the buffer; and of header and payload what is done */
    char head[HEAD_BYTES];
} Frame;

typedef struct {
    Frame *frames;
    int count, error; /* of a system call */
    const char *head;
    Py_buffer buffers[BUFFERS];
} Exchange;

static int is_whole(const Frame *frame)
{
    return frame->moved == HEAD_BYTES + frame->nbytes;
}

static void make_head(const Exchange *all, const Frame *frame, char *to)
{
    uint32_t step;
    memcpy(to, all->head, HEAD_BYTES);
    memcpy(&step, to + STEP_AT, sizeof step);
    step += frame->tag;
    memcpy(to + STEP_AT, &step, sizeof step);
    memcpy(to + LENGTH_AT, &frame->nbytes, sizeof frame->nbytes);
}

/* One system call; how many bytes it moved, 0 if none could be, -1 if the socket is of no use. */
static ssize_t pass(Exchange *all, Frame *frame)
{
    struct iovec parts[2];
    struct msghdr message = {.msg_iov = parts};
    int64_t at = frame->moved > HEAD_BYTES ? frame->moved - HEAD_BYTES : 0;
    int64_t left = frame->nbytes - at;
    if (frame->moved < HEAD_BYTES)
        parts[message.msg_iovlen++] = (struct iovec){frame->head + frame->moved,
                                                     (size_t)(HEAD_BYTES - frame->moved)};
    if (left) {
        char *payload = (char *)all->buffers[frame->buffer].buf + frame->at + at;
        parts[message.msg_iovlen++] =
            (struct iovec){payload, (size_t)(left < PIECE_BYTES ? left : PIECE_BYTES)};
    }
    ssize_t moved = frame->receives ? recvmsg(frame->fd, &message, MSG_DONTWAIT)
                                    : sendmsg(frame->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    all->error = moved < 0 ? errno : 0;
    if (moved < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        return 0;
    return moved > 0 ? moved : -1;
}

/* The same, and compare the header once it is there: -1 if it is another one. */
static ssize_t advance(Exchange *all, Frame *frame)
{
    char expected[HEAD_BYTES];
    if (frame->moved == 0 && !frame->receives)
        make_head(all, frame, frame->head);
    ssize_t moved = pass(all, frame);
    int had_head = frame->moved >= HEAD_BYTES;
    if (moved <= 0)
        return moved;
    frame->moved += moved;
    if (!frame->receives || had_head || frame->moved < HEAD_BYTES)
        return moved;
    make_head(all, frame, expected);
    if (!memcmp(frame->head, expected, COMPARED_BYTES))
        return moved;
    all->error = OTHER_HEADER;
    return -1;
}

/* WHOLE, IDLE, or the number of a frame that cannot go on. */
static int exchange(Exchange *all, long spins)
{
    int64_t until = 0, limit = now_ns() + BUSY_NS;
    for (long empty = 0;;) {
        int is_open = 0, has_moved = 0;
        for (int k = 0; k < all->count; k++) {
            Frame *frame = all->frames + k;
            if (is_whole(frame))
                continue;
            int is_next = frame->after < 0 || is_whole(all->frames + frame->after);
            ssize_t moved = is_next ? advance(all, frame) : 0;
            if (moved < 0)
                return k;
            has_moved |= moved > 0;
            is_open |= !is_whole(frame);
        }
        if (!is_open)
            return WHOLE;
        if (has_moved) {
            empty = 0;
            if (now_ns() > limit)
                return IDLE;
            continue;
        }
        if (++empty >= spins)
            return IDLE;
        if (empty == LOOK_AT_CLOCK)
            until = now_ns() + SPIN_LIMIT_NS;
        else if (empty % LOOK_AT_CLOCK == 0 && now_ns() > until)
            return IDLE;
        sched_yield();
    }
}

/* 0 if all frames lie in their buffers and wait for one before them; else -1 and ValueError. */
static int check(const Exchange *all)
{
    for (int k = 0; k < all->count; k++) {
        const Frame *frame = all->frames + k;
        int is_sane = frame->after < k && frame->buffer >= 0 && frame->buffer < BUFFERS &&
                      !(frame->receives && frame->buffer == 0) && frame->at >= 0 &&
                      frame->nbytes >= 0 && frame->moved >= 0 &&
                      frame->moved <= HEAD_BYTES + frame->nbytes &&
                      frame->nbytes <= all->buffers[frame->buffer].len - frame->at;
        if (!is_sane) {
            PyErr_Format(PyExc_ValueError, "frame %d lies outside of its buffer", k);
            return -1;
        }
    }
    return 0;
}

static PyObject *run_exchange(Exchange *all, long spins)
{
    int end;
    if (check(all))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    end = exchange(all, spins);
    Py_END_ALLOW_THREADS
    if (end == WHOLE) {
        for (int k = 0; k < all->count; k++)
            all->frames[k].moved = 0;
        Py_RETURN_NONE;
    }
    if (end == IDLE)
        return Py_BuildValue("iiy", IDLE, 0, "");
    Py_ssize_t shown = all->error == OTHER_HEADER ? HEAD_BYTES : 0;
    return Py_BuildValue("iiy#", end, all->error, all->frames[end].head, shown);
}

static PyObject *exchange_frames(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    Exchange all = {0};
    Py_buffer frames = {0}, head = {0};
    PyObject *result = NULL;
    if (nargs != 6)
        return PyErr_Format(PyExc_TypeError, "takes 6 arguments (%zd given)", nargs);
    long spins = PyLong_AsLong(args[5]);
    if (PyErr_Occurred() || PyObject_GetBuffer(args[0], &frames, PyBUF_WRITABLE) ||
        PyObject_GetBuffer(args[1], &head, PyBUF_SIMPLE))
        goto release;
    for (int k = 0; k < BUFFERS; k++)
        if (PyObject_GetBuffer(args[2 + k], &all.buffers[k], k ? PyBUF_WRITABLE : PyBUF_SIMPLE))
            goto release;
    all.frames = frames.buf;
    all.count = (int)(frames.len / (Py_ssize_t)sizeof(Frame));
    all.head = head.buf;
    if (frames.len % (Py_ssize_t)sizeof(Frame) || head.len != HEAD_BYTES)
        PyErr_Format(PyExc_ValueError, "%zd bytes are no frames, or %zd no header", frames.len,
                     head.len);
    else
        result = run_exchange(&all, spins);
release:
    PyBuffer_Release(&frames); /* nothing to do if it was not taken */
    PyBuffer_Release(&head);
    for (int k = 0; k < BUFFERS; k++)
        PyBuffer_Release(&all.buffers[k]);
    return result;
}

PyMethodDef socket_functions[] = {
    {"exchange_frames", (PyCFunction)(void (*)(void))exchange_frames, METH_FASTCALL,
     "Move frames: frames, header, three buffers, empty tries; None once all are whole."},
    {0},
};
