/* What both files of the core know of a frame; as in protocol/frame_header.py. */

#ifndef FTCOMM_CORE_H
#define FTCOMM_CORE_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <stdint.h>

enum {
    PREFIX_BYTES = 32,
    SUFFIX_BYTES = 72,
    HEAD_BYTES = PREFIX_BYTES + SUFFIX_BYTES,
    COMPARED_BYTES = 80, /* the call site behind them may differ between ranks */
    FRAME_MAGIC = 0xF7C1,
    DATA_FRAME = 1,
    KIND_AT = 2,
    EPOCH_AT = 4,
    STEP_AT = 20,
    LENGTH_AT = 24,
};

extern PyMethodDef socket_functions[];
int64_t now_ns(void); /* on the monotonic clock */

#endif
