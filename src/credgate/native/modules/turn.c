/* One turn of the selector: what WideSelector of credgate/loops.py does each time that it wakes, without an object of
 * each event and a frame for each call. And what gateway/wire.py asks of a socket then. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <limits.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>

enum { MOST = 256 };
/* inotify(7) says POLLRDNORM beside POLLIN, and a table of mounts POLLPRI: who asks for these alone is called first. */
enum { FIRST = EPOLLRDNORM | EPOLLPRI };
enum { FRESH = 2000000 }; /* nanoseconds for which what a wait has said may be relied on */

typedef struct {
    PyObject *read, *write, *due; /* names */
} State;

/* Of this thread: the epoll whose events are being served, all of which it has told, and since when. */
static __thread int serving = -1;
static __thread struct timespec since;

/* As time.monotonic() has it. */
static double now(void)
{
    struct timespec at;
    return clock_gettime(CLOCK_MONOTONIC, &at) ? 0.0 : (double)at.tv_sec + (double)at.tv_nsec * 1e-9;
}

static int milliseconds(double seconds)
{
    double millis = seconds * 1000.0;
    if (!(millis > 0.0))
        return 0;
    if (millis >= INT_MAX)
        return INT_MAX;
    return (int)millis + ((double)(int)millis < millis); /* rounded up: a timer that is not due yet would spin */
}

/* As epoll_wait(2). `at`: when it had told, before the interpreter's lock was waited for. */
static int told(int epoll, struct epoll_event *events, int millis, struct timespec *at)
{
    int count = epoll_wait(epoll, events, MOST, millis), why = errno;
    if (clock_gettime(CLOCK_MONOTONIC, at))
        *at = (struct timespec){0, 0}; /* long ago: nothing is relied on */
    errno = why;
    return count;
}

static int wait_for(int epoll, struct epoll_event *events, int millis, struct timespec *at)
{
    int count;
    if (millis == 0)
        return told(epoll, events, millis, at);
    Py_BEGIN_ALLOW_THREADS
    count = told(epoll, events, millis, at);
    Py_END_ALLOW_THREADS
    return count;
}

/* Call what is asked for by that name; what it raises is `failed`'s. -1: the turn ends. */
static int call(PyObject *calls, PyObject *name, PyObject *failed)
{
    PyObject *callback = PyObject_GetAttr(calls, name);
    if (callback == NULL)
        return -1;
    PyObject *done = callback == Py_None ? Py_NewRef(Py_None) : PyObject_CallNoArgs(callback);
    Py_DECREF(callback);
    if (done == NULL) {
        if (failed == Py_None || PyErr_ExceptionMatches(PyExc_SystemExit) || PyErr_ExceptionMatches(PyExc_KeyboardInterrupt))
            return -1;
        PyObject *error = PyErr_GetRaisedException();
        done = PyObject_CallOneArg(failed, error);
        Py_DECREF(error);
    }
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

static int stranger(PyObject **others, PyObject *fd, uint32_t event)
{
    if (*others == NULL && (*others = PyList_New(0)) == NULL)
        return -1;
    PyObject *one = Py_BuildValue("OI", fd, event);
    int failed = one == NULL || PyList_Append(*others, one) < 0;
    Py_XDECREF(one);
    return failed ? -1 : 0;
}

static int serve(State *state, PyObject *watched, PyObject *failed, const struct epoll_event *event, PyObject **others)
{
    PyObject *fd = PyLong_FromLong(event->data.fd);
    if (fd == NULL)
        return -1;
    PyObject *calls = PyDict_GetItemWithError(watched, fd);
    int ended = 0;
    if (calls == NULL) {
        ended = PyErr_Occurred() ? -1 : stranger(others, fd, event->events);
    } else {
        Py_INCREF(calls);
        if (event->events & ~(uint32_t)EPOLLOUT)
            ended = call(calls, state->read, failed);
        if (ended == 0 && event->events & ~(uint32_t)EPOLLIN)
            ended = call(calls, state->write, failed);
        Py_DECREF(calls);
    }
    Py_DECREF(fd);
    return ended;
}

typedef struct {
    int count;
    struct timespec at;
    struct epoll_event events[MOST];
} Found;

/* All of one wait: -1 with an error, else 0, and those that nobody is called for in `others`. */
static int serve_all(State *state, PyObject *const *args, int epoll, const Found *found, PyObject **others)
{
    int ended = 0, before = serving;
    struct timespec before_since = since; /* a call may turn another loop of this thread */
    for (int i = 0; i < found->count && ended == 0; i++)
        if (found->events[i].events & FIRST)
            ended = serve(state, args[2], args[3], &found->events[i], others);
    if (found->count < MOST) {
        serving = epoll;
        since = found->at;
    }
    for (int i = 0; i < found->count && ended == 0; i++)
        if (!(found->events[i].events & FIRST))
            ended = serve(state, args[2], args[3], &found->events[i], others);
    serving = before;
    since = before_since;
    return ended;
}

/* Whether the loop has more to do than to wait on: its selector's word for it. -1: an error. */
static int is_due(PyObject *selector, PyObject *name)
{
    PyObject *due = PyObject_GetAttr(selector, name);
    int is = due == NULL ? -1 : PyObject_IsTrue(due);
    Py_XDECREF(due);
    return is;
}

/* turn(epoll, timeout, watched, failed, selector) -> [(fd, events), ...] of those that nobody is called for, or None.
 * Waits on behind calls until there are such, the time is over, or `selector.due`. */
static PyObject *turn(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    State *state = PyModule_GetState(module);
    Found found;
    if (count != 5 || !PyDict_CheckExact(args[2])) {
        PyErr_SetString(PyExc_TypeError, "turn(epoll, timeout, watched, failed, selector)");
        return NULL;
    }
    int epoll = (int)PyLong_AsLong(args[0]), failed = PyErr_Occurred() != NULL;
    double seconds = failed || args[1] == Py_None ? -1.0 : PyFloat_AsDouble(args[1]);
    if (PyErr_Occurred())
        return NULL;
    int is_bounded = args[1] != Py_None;
    double until = is_bounded && seconds > 0.0 ? now() + seconds : 0.0;
    for (;;) {
        found.count = wait_for(epoll, found.events, is_bounded ? milliseconds(seconds) : -1, &found.at);
        if (found.count < 0 && errno != EINTR)
            return PyErr_SetFromErrno(PyExc_OSError);
        if (found.count < 0 && PyErr_CheckSignals() < 0)
            return NULL;
        PyObject *others = NULL;
        if (found.count > 0 && serve_all(state, args, epoll, &found, &others) < 0) {
            Py_XDECREF(others);
            return NULL;
        }
        if (others != NULL)
            return others;
        int due = is_due(args[4], state->due);
        if (due < 0)
            return NULL;
        seconds = is_bounded && !due ? until - now() : 0.0;
        if (due || (is_bounded && !(seconds > 0.0)))
            Py_RETURN_NONE;
    }
}

/* fresh(epoll) -> bool: this is called within a turn that began a moment ago, and all that was ready then, what is
 * called first before all else, was told. */
static PyObject *fresh(PyObject *module, PyObject *epoll)
{
    (void)module;
    struct timespec at;
    long fd = PyLong_AsLong(epoll);
    if (fd == -1 && PyErr_Occurred())
        return NULL;
    if (fd < 0 || fd != serving || clock_gettime(CLOCK_MONOTONIC, &at))
        Py_RETURN_FALSE;
    long long age = (at.tv_sec - since.tv_sec) * 1000000000LL + (at.tv_nsec - since.tv_nsec);
    return PyBool_FromLong(age >= 0 && age < FRESH);
}

/* receive(fd, buffer) -> bytes that were read to it, 0 at the end; -1 where none are there. Raises OSError. The lock is
 * kept: a socket that doesn't block is asked. */
static PyObject *receive(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    Py_buffer room;
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "receive(fd, buffer)");
        return NULL;
    }
    long fd = PyLong_AsLong(args[0]);
    if ((fd == -1 && PyErr_Occurred()) || PyObject_GetBuffer(args[1], &room, PyBUF_WRITABLE) < 0)
        return NULL;
    Py_ssize_t size = recv((int)fd, room.buf, (size_t)room.len, MSG_DONTWAIT);
    int why = errno;
    PyBuffer_Release(&room);
    if (size >= 0)
        return PyLong_FromSsize_t(size);
    if (why == EAGAIN || why == EWOULDBLOCK || why == EINTR)
        return PyLong_FromLong(-1);
    errno = why;
    return PyErr_SetFromErrno(PyExc_OSError);
}

/* send(fd, bytes) -> how many the kernel took, which may be none. Raises OSError. */
static PyObject *send_some(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    Py_buffer data;
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "send(fd, bytes)");
        return NULL;
    }
    long fd = PyLong_AsLong(args[0]);
    if ((fd == -1 && PyErr_Occurred()) || PyObject_GetBuffer(args[1], &data, PyBUF_SIMPLE) < 0)
        return NULL;
    Py_ssize_t size = send((int)fd, data.buf, (size_t)data.len, MSG_DONTWAIT | MSG_NOSIGNAL);
    int why = errno;
    PyBuffer_Release(&data);
    if (size >= 0)
        return PyLong_FromSsize_t(size);
    if (why == EAGAIN || why == EWOULDBLOCK || why == EINTR)
        return PyLong_FromLong(0);
    errno = why;
    return PyErr_SetFromErrno(PyExc_OSError);
}

static PyMethodDef functions[] = {{"turn", (PyCFunction)(void (*)(void))turn, METH_FASTCALL, NULL},
                                  {"fresh", fresh, METH_O, NULL},
                                  {"receive", (PyCFunction)(void (*)(void))receive, METH_FASTCALL, NULL},
                                  {"send", (PyCFunction)(void (*)(void))send_some, METH_FASTCALL, NULL},
                                  {NULL, NULL, 0, NULL}};

static int fill(PyObject *module)
{
    State *state = PyModule_GetState(module);
    state->read = PyUnicode_InternFromString("read");
    state->write = PyUnicode_InternFromString("write");
    state->due = PyUnicode_InternFromString("due");
    return state->read == NULL || state->write == NULL || state->due == NULL || PyModule_AddStringConstant(module, "STAMP", STAMP) < 0 ? -1 : 0;
}

static int clear(PyObject *module)
{
    State *state = PyModule_GetState(module);
    Py_CLEAR(state->read);
    Py_CLEAR(state->write);
    Py_CLEAR(state->due);
    return 0;
}

static struct PyModuleDef_Slot slots[] = {{Py_mod_exec, fill}, {0, NULL}};
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_credgate_turn", NULL, sizeof(State), functions, slots, NULL, clear, NULL};

PyMODINIT_FUNC PyInit__credgate_turn(void) { return PyModuleDef_Init(&definition); }
