/* One turn of the selector: what WideSelector of credgate/loops.py does each time that it wakes, without an object of
 * each event and a frame for each call. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <limits.h>
#include <sys/epoll.h>
#include <time.h>

enum { MOST = 256 };
/* inotify(7) says POLLRDNORM beside POLLIN, and a table of mounts POLLPRI: who asks for these alone is called first. */
enum { FIRST = EPOLLRDNORM | EPOLLPRI };
enum { FRESH = 2000000 }; /* nanoseconds for which what a wait has said may be relied on */

typedef struct {
    PyObject *read, *write; /* names */
} State;

/* Of this thread: the epoll whose events are being served, all of which it has told, and since when. */
static __thread int serving = -1;
static __thread struct timespec since;

static int milliseconds(PyObject *timeout)
{
    if (timeout == Py_None)
        return -1;
    double seconds = PyFloat_AsDouble(timeout);
    if (seconds == -1.0 && PyErr_Occurred())
        return -2;
    double millis = seconds * 1000.0;
    if (!(millis > 0.0))
        return 0;
    if (millis >= INT_MAX)
        return INT_MAX;
    return (int)millis + ((double)(int)millis < millis); /* rounded up: a timer that is not due yet would spin */
}

static int wait_for(int epoll, struct epoll_event *events, int millis)
{
    int count;
    if (millis == 0)
        return epoll_wait(epoll, events, MOST, 0);
    Py_BEGIN_ALLOW_THREADS
    count = epoll_wait(epoll, events, MOST, millis);
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

/* turn(epoll, timeout, watched, failed) -> [(fd, events), ...] of those that nobody is called for, or None. */
static PyObject *turn(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    State *state = PyModule_GetState(module);
    struct epoll_event events[MOST];
    if (count != 4 || !PyDict_CheckExact(args[2])) {
        PyErr_SetString(PyExc_TypeError, "turn(epoll, timeout, watched, failed)");
        return NULL;
    }
    int epoll = (int)PyLong_AsLong(args[0]), millis = milliseconds(args[1]);
    if (PyErr_Occurred())
        return NULL;
    int found = wait_for(epoll, events, millis);
    if (found < 0 && errno != EINTR)
        return PyErr_SetFromErrno(PyExc_OSError);
    if (found < 0)
        return PyErr_CheckSignals() < 0 ? NULL : Py_NewRef(Py_None);
    PyObject *others = NULL;
    int ended = 0, before = serving, is_all = found < MOST && clock_gettime(CLOCK_MONOTONIC, &since) == 0;
    for (int i = 0; i < found && ended == 0; i++)
        if (events[i].events & FIRST)
            ended = serve(state, args[2], args[3], &events[i], &others);
    if (is_all)
        serving = epoll;
    for (int i = 0; i < found && ended == 0; i++)
        if (!(events[i].events & FIRST))
            ended = serve(state, args[2], args[3], &events[i], &others);
    serving = before;
    if (ended < 0) {
        Py_XDECREF(others);
        return NULL;
    }
    return others == NULL ? Py_NewRef(Py_None) : others;
}

/* fresh(epoll) -> bool: this is called within a turn that began a moment ago, and all that was ready then, what is
 * called first before all else, was told. */
static PyObject *fresh(PyObject *module, PyObject *epoll)
{
    (void)module;
    struct timespec now;
    long fd = PyLong_AsLong(epoll);
    if (fd == -1 && PyErr_Occurred())
        return NULL;
    if (fd < 0 || fd != serving || clock_gettime(CLOCK_MONOTONIC, &now))
        Py_RETURN_FALSE;
    long long age = (now.tv_sec - since.tv_sec) * 1000000000LL + (now.tv_nsec - since.tv_nsec);
    return PyBool_FromLong(age >= 0 && age < FRESH);
}

static PyMethodDef functions[] = {{"turn", (PyCFunction)(void (*)(void))turn, METH_FASTCALL, NULL},
                                  {"fresh", fresh, METH_O, NULL},
                                  {NULL, NULL, 0, NULL}};

static int fill(PyObject *module)
{
    State *state = PyModule_GetState(module);
    state->read = PyUnicode_InternFromString("read");
    state->write = PyUnicode_InternFromString("write");
    return state->read == NULL || state->write == NULL || PyModule_AddStringConstant(module, "STAMP", STAMP) < 0 ? -1 : 0;
}

static int clear(PyObject *module)
{
    State *state = PyModule_GetState(module);
    Py_CLEAR(state->read);
    Py_CLEAR(state->write);
    return 0;
}

static struct PyModuleDef_Slot slots[] = {{Py_mod_exec, fill}, {0, NULL}};
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_credgate_turn", NULL, sizeof(State), functions, slots, NULL, clear, NULL};

PyMODINIT_FUNC PyInit__credgate_turn(void) { return PyModuleDef_Init(&definition); }
